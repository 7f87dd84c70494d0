"""What the documents name exists."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+|\*)`", (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8"))


def names_in(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_named_test_is_there(file, name):
    names = names_in(ROOT / "tests" / file)
    assert name in names or (name == "*" and any(each.startswith("test_") for each in names))


def test_every_case_names_a_test():
    lines = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8").splitlines()
    cases = [line for line in lines if line.startswith("| ") and not line.startswith("| case")]
    assert len(cases) > 40
    assert [case for case in cases if "::" not in case] == []
