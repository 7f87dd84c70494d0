"""Budgets: what counts, whatever type it has, and that it adds up over calls, segments and kills."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.actions import budget
from t5core.actions.budget import BudgetAction, Spent
from t5core.config.edges import CheckpointRef, Evaluation
from t5core.metrics.writer import MetricWriter
from t5core.rundir import RunDirectory
from tests.t5core import train_runs
from tests.t5core.train_runs import lines, run, steps_saved


@pytest.fixture
def clock(monkeypatch):
    """The seconds that `budget` reads from its clock; a test moves them on."""
    now = [1000.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def reported(seconds, tokens):
    return {"train": {"timing/seconds": seconds, "timing/target_tokens_per_second": tokens / seconds}}


def test_seconds_count_from_the_first_step_and_with_what_lies_between_the_looks(clock):
    action = BudgetAction(seconds=30)
    assert action.run(None, reported(10.0, 1)) is False
    clock[0] += 15.0  # five seconds of evaluation, ten of training
    assert action.run(None, reported(10.0, 1)) is False
    assert action.state_dict()["seconds"] == 25.0
    clock[0] += 4.0
    assert action.state_dict()["seconds"] == 29.0
    clock[0] += 1.0
    assert action.run(None, reported(1.0, 1)) is True
    assert action.reason == "budget: 30 of 30 seconds spent"


def test_what_was_spent_crosses_calls_and_the_time_between_them_does_not_count(clock):
    first = BudgetAction(seconds=30, target_tokens=100)
    first.run(None, reported(20.0, 60))
    memory = json.loads(json.dumps(first.state_dict()))
    clock[0] += 10_000.0
    second = BudgetAction(seconds=30, target_tokens=100)
    second.load_state_dict(memory)
    assert second.run(None, reported(5.0, 30)) is False
    assert second.state_dict() == {"seconds": 25.0, "target_tokens": 90}
    clock[0] += 5.0
    assert second.run(None, reported(5.0, 10)) is True
    assert second.reason == "budget: 30 of 30 seconds and 100 of 100 target tokens spent"


@pytest.mark.parametrize("number", [np.float32, np.float64, float, jnp.float32, np.array, int])
def test_any_numeric_type_counts(number, clock):
    action = BudgetAction(target_tokens=2**31)
    action.run(None, {"train": {"timing/seconds": number(2), "timing/target_tokens_per_second": number(512)}})
    assert action.state_dict() == {"seconds": 2.0, "target_tokens": 1024}


@pytest.mark.parametrize("limits", [{}, {"seconds": 0}, {"target_tokens": -1}, {"seconds": float("nan")}])
def test_a_budget_that_limits_nothing_is_refused(limits):
    with pytest.raises(errors.ConfigError, match="give one of them or both, above 0"):
        BudgetAction(**limits)


def train(directory, *, start, stop):
    """Writes the lines of an attempt that trained (start, stop], ten tokens and half a second a step."""
    with MetricWriter(directory.metrics_uri("train"), resume_step=start, tensorboard=False) as writer:
        for step in range(start + 1, stop + 1):
            writer.write(step, {"timing/seconds": 0.5, "timing/target_tokens_per_second": 20.0})


def evaluated(directory, step, seconds):
    checkpoint = CheckpointRef(uri=f"c/{step}", step=step, digest="d")
    directory.write_evaluation(
        Evaluation(step=step, checkpoint=checkpoint, metrics={}, seconds=seconds, reused=False, uri="e")
    )


def test_the_records_count_each_step_and_evaluation_once_however_the_run_was_cut(tmp_path):
    straight, cut = RunDirectory(str(tmp_path / "straight")), RunDirectory(str(tmp_path / "cut"))
    train(straight, start=0, stop=8)
    train(cut, start=0, stop=6)  # killed at 6, resumed from 4
    train(cut, start=4, stop=8)
    for directory in (straight, cut):
        evaluated(directory, 4, seconds=3.0)
        evaluated(directory, 8, seconds=2.0)
        assert budget.recorded(directory, 8) == Spent(seconds=9.0, target_tokens=80)
        assert budget.recorded(directory, 4) == Spent(seconds=5.0, target_tokens=40)
    assert budget.recorded(RunDirectory(str(tmp_path / "new")), 8) == Spent()


def test_train_stops_at_a_token_budget_at_the_same_step_however_it_is_cut(tmp_path):
    run(tmp_path / "counted", total_steps=5, stats_period=1)
    spent = [
        round(line["timing/seconds"] * line["timing/target_tokens_per_second"])
        for line in lines(tmp_path / "counted", "train")
    ]
    batches = [int(train_runs.tiny.batch(step)["decoder_loss_weights"].sum()) for step in range(5)]
    assert spent == batches
    for name, cuts in {"straight": [9], "cut": [2, 4, 9]}.items():
        for total_steps in cuts:
            actions = {"TRAIN": [BudgetAction(target_tokens=sum(batches))]}
            step, _ = run(tmp_path / name, actions=actions, total_steps=total_steps, stats_period=1)
        assert step == 5, name
        assert steps_saved(tmp_path / name)[-1] == 5
    actions = {"TRAIN": [BudgetAction(target_tokens=sum(batches))]}
    assert run(tmp_path / "straight", actions=actions, total_steps=9)[0] == 5, "a rerun after a stop trains nothing"
    larger = {"TRAIN": [BudgetAction(target_tokens=sum(batches) + 1)]}
    assert run(tmp_path / "straight", actions=larger, total_steps=9, stats_period=1)[0] == 6, "a larger budget goes on"


def test_train_stops_at_a_budget_of_seconds_that_an_earlier_call_has_spent(tmp_path):
    actions = {"TRAIN": [BudgetAction(seconds=1e6)]}
    assert run(tmp_path, actions=actions, total_steps=3, stats_period=1)[0] == 3
    spent = actions["TRAIN"][0].state_dict()["seconds"]
    assert spent > sum(line["timing/seconds"] for line in lines(tmp_path, "train")[1:])
    later = {"TRAIN": [BudgetAction(seconds=lines(tmp_path, "train")[0]["timing/seconds"])]}
    assert run(tmp_path, actions=later, total_steps=9, stats_period=1)[0] == 4


def test_a_budget_under_another_mode_is_refused(tmp_path):
    cfg = train_runs.config("val", split="validation")
    with pytest.raises(errors.ConfigError, match=r"BudgetAction: unknown task 'train'; .*known: first, second"):
        run(tmp_path, actions={"TRAIN_EVAL": [BudgetAction(seconds=1)]}, train_eval_dataset_cfg=cfg)
