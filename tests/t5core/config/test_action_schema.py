"""Each kind of action has its own settings: one that cannot take effect is an error that says what there is."""

import pytest

from t5core import errors
from t5core.config import load, yaml_text
from t5core.config.schema import PretrainConfig

MINIMAL = {"data": {"tasks": [{"name": "mine", "files": ["a.txt"]}]}}
ALL = [
    {"name": "early_stopping", "task": "mine", "mode": "max", "metric": "accuracy", "patience": 1},
    {"name": "terminate_on_nan", "task": "mine"},
    {"name": "budget", "seconds": 1e-05, "target_tokens": 2**53 + 1},
    {"name": "keep_best", "task": "mine", "keep": 2},
    {"name": "call", "function": "a.b", "arguments": {"i": 3, "f": 3.0, "yes": True, "text": "1e-5", "none": None}},
]


def configured(*actions, **train):
    settings = {**MINIMAL, "train": {"actions": list(actions), **train}}
    return load.validate(settings, PretrainConfig, origin="test")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            {"name": "terminate_on_nan", "task": "mine", "patience": 3},
            "unknown key 'train.actions.0.patience' (value 3); known keys there: metric, name, task",
        ),
        (
            {"name": "early_stopping", "task": "mine", "patince": 3},
            "unknown key 'train.actions.0.patince' (value 3); did you mean 'train.actions.0.patience'?",
        ),
        (
            {"name": "budget", "seconds": 3, "task": "mine"},
            "unknown key 'train.actions.0.task' (value 'mine'); known keys there: name, seconds, target_tokens",
        ),
        (
            {"name": "early_stoping", "task": "mine"},
            "unknown train.actions.0.name 'early_stoping'; did you mean 'early_stopping'? known: budget, call, ear",
        ),
        ({"task": "mine"}, "missing key 'train.actions.0.name'; give it a value"),
        ({"name": "keep_best"}, "missing key 'train.actions.0.task'; give it a value"),
        (
            {"name": "early_stopping", "task": "mine", "patience": 0},
            "train.actions.0.patience=0 is not valid: Input sh",
        ),
        ({"name": "budget"}, "train.actions.0: a budget of nothing stops nothing; give seconds, target_tokens or both"),
        ({"name": "budget", "seconds": float("nan")}, "train.actions.0.seconds=nan is not valid"),
        ({"name": "budget", "seconds": 0}, "train.actions.0.seconds=0 is not valid: Input should be greater than 0"),
        ({"name": "keep_best", "task": "mien"}, "train.actions: unknown task 'mien'; did you mean 'mine'? known: mine"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(action, message):
    with pytest.raises(errors.ConfigError) as caught:
        configured(action)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_keeps_nothing_more_is_refused():
    with pytest.raises(
        errors.ConfigError, match="the action keep_best has no effect: keep_checkpoints=null keeps every"
    ):
        configured(ALL[3], keep_checkpoints=None)
    with pytest.raises(errors.ConfigError, match="keep_period=9 has no effect: keep_checkpoints=null keeps all"):
        configured(keep_period=9, keep_checkpoints=None)
    # Off the grid of checkpoints a step only hands over to the next segment, and goes unless it is among the best.
    assert configured(ALL[3], keep_checkpoints=None, eval_period=100, checkpoint_period=250)


def test_every_kind_survives_its_own_yaml_with_types_and_values():
    config = configured(*ALL)
    text = yaml_text.dump(config.model_dump(mode="json"))
    again = load.validate(yaml_text.parse(text, origin="x"), PretrainConfig, origin="x")
    assert again == config
    arguments = again.train.actions[4].arguments
    assert {name: type(value) for name, value in arguments.items()} == {
        "i": int,
        "f": float,
        "yes": bool,
        "text": str,
        "none": type(None),
    }


def test_actions_and_what_is_kept_may_change_between_two_starts_of_a_run():
    assert load.identity(configured(*ALL, keep_period=500)) == load.identity(configured())
