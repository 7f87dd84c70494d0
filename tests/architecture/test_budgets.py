"""Files and functions stay small enough to hold one idea."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted(path for package in ("t5core", "tasks", "workflows") for path in (ROOT / package).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def long_functions(source: str) -> list[str]:
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f.name for f in functions if f.end_lineno - f.lineno + 1 > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_keeps_its_budget(path):
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_FILE_LINES, f"{path.name} is over {MAX_FILE_LINES} lines: split it by idea"
    assert long_functions(source) == [], f"{path.name} has functions over {MAX_FUNCTION_LINES} lines: split them"


def test_the_budget_sees_a_long_function():
    assert long_functions("def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES) == ["f"]
    assert long_functions("def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)) == []


def test_there_are_sources_to_check():
    assert len(SOURCES) > 40
