"""Files and functions stay small enough to hold one idea."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted(path for package in ("t5core", "tasks", "workflows") for path in (ROOT / package).rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Counts the lines below signature and docstring: T5X's signatures are long, and a docstring is no burden."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def long_functions(source: str) -> list[str]:
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f.name for f in functions if body_lines(f) > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_keeps_its_budget(path):
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_FILE_LINES, f"{path.name} is over {MAX_FILE_LINES} lines: split it by idea"
    assert long_functions(source) == [], f"{path.name} has functions over {MAX_FUNCTION_LINES} lines: split them"


def test_the_budget_sees_a_long_function():
    head = 'def f():\n    """Returns nothing."""\n'
    assert long_functions(head + "    x = 1\n" * (MAX_FUNCTION_LINES + 1)) == ["f"]
    assert long_functions(head + "    x = 1\n" * MAX_FUNCTION_LINES) == []


def test_there_are_sources_to_check():
    assert len(SOURCES) > 40
