"""What the documents name exists."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

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


@pytest.mark.xdist_group("seqio")
def test_the_run_in_the_page_about_train_runs_as_it_stands(tmp_path):
    page = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    scripts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = next(script for script in scripts if "seqio.MixtureRegistry" in script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("step 20: ")
    for kind, figure in (("training_eval", "accuracy"), ("inference_eval", "eval/exact_match")):
        lines = (tmp_path / "runs" / "words" / kind / "reverse" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [10, 20]
        assert figure in json.loads(lines[0])
