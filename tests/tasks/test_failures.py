"""What the engine is told of a failure: whether another attempt is worth it."""

import ast
import inspect
import pathlib

import pytest
from flyteidl.core import errors_pb2, literals_pb2
from flytekit import FlyteContextManager
from flytekit.bin import entrypoint
from flytekit.core.type_engine import TypeEngine

from t5core import errors
from t5core.config.schema import PretrainConfig
from t5core.stages import resolve

ROOT = pathlib.Path(__file__).parents[2]
RECOVERABLE, FINAL = errors_pb2.ContainerError.RECOVERABLE, errors_pb2.ContainerError.NON_RECOVERABLE
OURS = {
    errors.UserError: FINAL,
    errors.ConfigError: FINAL,
    errors.DataError: FINAL,
    errors.CheckpointError: FINAL,
    errors.RunDirectoryError: FINAL,
    errors.InUseError: FINAL,
    errors.IntegrityError: FINAL,
    errors.RecoverableError: RECOVERABLE,
    errors.Preempted: RECOVERABLE,
}
OTHERS = {
    "lost storage": (ConnectionResetError("reset"), RECOVERABLE),
    "lost peer": (ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"), RECOVERABLE),
    "a mistake in the code": (KeyError("a"), FINAL),
    "no memory": (MemoryError("16 GB"), FINAL),
}
KINDS = {kind.__name__: (kind("said why"), expected) for kind, expected in OURS.items()} | OTHERS


def literal(value, kind):
    context = FlyteContextManager.current_context()
    return TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()


def executed(folder, **inputs):
    """Runs `resolve_config` by its container's command, in this process."""
    (folder / "inputs.pb").write_bytes(literals_pb2.LiteralMap(literals=inputs).SerializeToString())
    command = ["--inputs", folder / "inputs.pb", "--output-prefix", folder / "out"]
    command += ["--raw-output-data-prefix", folder / "raw"]
    command += ["--resolver", "flytekit.core.python_auto_container.default_task_resolver", "--"]
    command += ["task-module", "tasks.configuration", "task-name", "resolve_config"]
    entrypoint.execute_task_cmd.main([str(word) for word in command], standalone_mode=False)
    return errors_pb2.ErrorDocument.FromString((folder / "out" / "error.pb").read_bytes()).error


@pytest.mark.parametrize("name", KINDS)
def test_another_attempt_is_asked_for_where_it_may_help(monkeypatch, tmp_path, name):
    raised, expected = KINDS[name]

    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(resolve, "resolve_run", fail)
    config = PretrainConfig.model_validate({"data": {"tasks": [{"name": "a", "files": ["a.txt"]}]}})
    error = executed(tmp_path, config=literal(config, PretrainConfig), overrides=literal([], list[str]))
    assert error.kind == expected
    assert str(raised.args[0]) in error.message


def test_every_kind_of_error_was_thought_of():
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)}
    assert kinds == OURS.keys()


def test_every_task_that_does_something_says_what_is_worth_another_attempt():
    unguarded = []
    for path in sorted((ROOT / "tasks").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(
                "profiles." in ast.unparse(d) for d in function.decorator_list
            ):
                body = ast.unparse(function)
                if "t5core" in body and "with failures.retry_what_helps():" not in body:
                    unguarded.append(f"{path.name}:{function.name}")
    assert unguarded == [], "wrap the call in failures.retry_what_helps()"
