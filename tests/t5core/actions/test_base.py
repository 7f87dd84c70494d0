"""Actions: best-so-far comparison, NaN, any numeric type, memory across tasks, names checked."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.actions import base
from t5core.actions.base import EarlyStoppingAction, TerminateOnNanAction


def stops(action, values, *, task="t", metric="loss"):
    return [action.run(None, {task: {metric: value}}) for value in values]


def early(**settings):
    return EarlyStoppingAction(("t", "loss"), **{"mode": "min", "patience": 3, **settings})


def test_stops_after_patience_evaluations_without_a_new_best():
    assert stops(early(), [1.0, 9.0, 8.0, 9.0]) == [False, False, False, True]
    assert stops(early(), [5, 4, 3, 2, 1, 0]) == [False] * 6
    assert stops(early(mode="max"), [0.5, 0.4, 0.45, 0.5]) == [False, False, False, True]


def test_patience_one_stops_at_the_first_evaluation_that_is_no_better():
    assert stops(early(patience=1), [3.0, 2.0, 2.0]) == [False, False, True]


def test_nan_is_no_improvement():
    assert stops(early(), [float("nan")] * 3) == [False, False, True]
    assert stops(early(), [1.0, float("nan"), float("nan"), 0.5, float("nan")]) == [False] * 5


def test_twenty_nan_a_zigzag_and_an_improving_loss():
    assert stops(early(), [float("nan")] * 20) == [False] * 2 + [True] * 18
    assert stops(early(), [1.0, 9.0, 8.0, 9.0, 8.0]) == [False, False, False, True, True]
    assert stops(early(patience=1), [9.0, 8.0, 7.0, 6.0, 5.0]) == [False] * 5


def test_tolerances_ask_for_more_than_a_hair():
    assert stops(early(patience=1, atol=0.1), [1.0, 0.95]) == [False, True]
    assert stops(early(patience=1, rtol=0.1), [1.0, 0.85]) == [False, False]


@pytest.mark.parametrize("number", [np.float32(2), 2, 2.0, jnp.float32(2), np.array(2.0), np.int64(2)])
def test_any_numeric_type_counts(number):
    action = early(patience=1)
    assert stops(action, [number, number]) == [False, True]
    assert action.state_dict() == {"best": 2.0, "bad": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), jnp.float32("nan")])
def test_terminates_on_anything_that_is_not_finite(value):
    action = TerminateOnNanAction("t")
    assert action.run(None, {"t": {"loss": 1.0}}) is False
    assert action.run(None, {"t": {"loss": value}}) is True


def test_memory_crosses_tasks():
    values = [3.0, 2.0, 2.5, 2.5, 2.5]
    straight = stops(early(), values)
    cut, memory = [], {"best": None, "bad": 0}
    for value in values:
        action = early()
        action.load_state_dict(memory)
        cut += stops(action, [value])
        memory = action.state_dict()
    assert cut == straight == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"tt": {"loss": 1.0}}, "unknown task of an action 't'; did you mean 'tt'"),
        ({"t": {"los": 1.0}}, "unknown metric of task 't' 'loss'; did you mean 'los'"),
        ({"t": {"loss": "low"}}, "metric 'loss' of task 't' is str, not a number"),
    ],
)
def test_wrong_names_and_values_are_errors(metrics, message):
    with pytest.raises(errors.ConfigError, match=message):
        early().run(None, metrics)


@pytest.mark.parametrize("settings", [{"mode": "least"}, {"patience": 0}, {"atol": -1.0}, {"rtol": -1.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(errors.ConfigError):
        early(**settings)


def test_every_action_runs_and_each_reason_is_kept():
    loud = [TerminateOnNanAction("t"), early(patience=1), TerminateOnNanAction("t")]
    reasons = base.run_all(loud, None, {"t": {"loss": float("nan")}})
    assert reasons == [
        "terminate on NaN: t/loss is nan",
        "early stopping: t/loss no better than none for 1 evaluation",
        "terminate on NaN: t/loss is nan",
    ]
