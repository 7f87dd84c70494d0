"""Functions and classes of the user's own, by dotted name: checked before anything is computed."""

import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.actions import called
from t5core.actions.called import CallAction
from tests.t5core import train_runs, user_actions

HERE = "tests.t5core.user_actions"


def test_a_function_gets_the_state_the_metrics_and_its_arguments():
    action = called.build(f"{HERE}.loss_below", {"limit": 2.0})
    state = object()
    assert action.run(state, {"mine": {"loss": 3.0}}) is False
    assert action.run(state, {"mine": {"loss": 1.0}}) is True
    assert user_actions.calls[-1] is state
    assert action.reason == f"{HERE}.loss_below asked for it"
    assert action.state_dict() == {}


@pytest.mark.parametrize("yes", [True, np.bool_(True), jnp.bool_(True)])
def test_any_yes_is_a_yes(yes):
    assert CallAction(lambda state, metrics: yes).run(None, {"t": {}}) is True


@pytest.mark.parametrize("answer", [None, 0.3, "stop", np.array([True, False])])
def test_an_answer_that_is_neither_yes_nor_no_is_an_error(answer):
    with pytest.raises(errors.ConfigError, match=r"returned .*; return True to stop and False to go on"):
        CallAction(lambda state, metrics: answer).run(None, {"t": {}})


def test_a_class_is_made_with_the_arguments_and_keeps_its_memory():
    action = called.build(f"{HERE}.Countdown", {"n": 2})
    assert action.run(None, {}) is False
    again = called.build(f"{HERE}.Countdown", {"n": 2})
    again.load_state_dict(action.state_dict())
    assert again.run(None, {}) is True


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("loss_below", {"limit": 1}, "'loss_below' is no dotted name; give module.function"),
        (
            "no.such.module",
            {},
            "'no.such.module' cannot be imported: No module named 'no'; give module.function, import",
        ),
        (f"{HERE}.loss_beolw", {"limit": 1}, f"unknown name in {HERE} 'loss_beolw'; did you mean 'loss_below'?"),
        (f"{HERE}.calls", {}, f"{HERE}.calls is []"),
        (
            f"{HERE}.loss_below",
            {},
            "cannot be called as (train_state, metrics_by_task): missing a required argument: 'l",
        ),
        (
            f"{HERE}.loss_below",
            {"limit": 1, "limt": 2},
            "unknown argument 'limt'; did you mean 'limit'? known: limit, task",
        ),
        (f"{HERE}.Countdown", {}, "cannot be called as (): missing a required argument: 'n'"),
        (f"{HERE}.Countdown", {"n": 0}, f"{HERE}.Countdown refuses its arguments {{'n': 0}}: n counts from 1"),
        (
            f"{HERE}.NotAnAction",
            {},
            f"the class {HERE}.NotAnAction is no action; derive it from t5core.actions.base",
        ),
        (f"{HERE}.HalfAnAction", {}, f"the class {HERE}.HalfAnAction lacks run; write it"),
    ],
)
def test_what_cannot_be_called_is_one_line(name, arguments, message):
    user_actions.calls.clear()
    with pytest.raises(errors.ConfigError, match=re.escape(message)) as raised:
        called.build(name, arguments)
    assert "\n" not in str(raised.value)


def test_a_module_that_is_no_python_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_action.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.ConfigError, match=r"'broken_action\.f' cannot be imported: .*line 1"):
        called.build("broken_action.f", {})


def test_checking_a_configuration_loads_no_jax():
    code = f"""
import sys
from t5core.actions import configured
from t5core.config import load
from t5core.config.schema import PretrainConfig
call = {{"name": "call", "function": "{HERE}.loss_below", "arguments": {{"limit": 1.0}}}}
settings = {{"data": {{"tasks": [{{"name": "mine", "files": ["a.txt"]}}]}}, "train": {{"actions": [call]}}}}
configured.check(load.validate(settings, PretrainConfig, origin="test"))
assert "{HERE}" in sys.modules
assert "jax" not in sys.modules and "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_train_calls_it(tmp_path):
    at_three = CallAction(lambda state, metrics: bool(state.step == 3) and metrics["train"]["loss"] > 0)
    step, _ = train_runs.run(tmp_path, actions={"TRAIN": [at_three]}, total_steps=6, stats_period=1)
    assert step == 3
