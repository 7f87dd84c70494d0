"""The decision between segments: sticky, remembered, and a function of the evaluations alone."""

import logging
import math

import pytest

from t5core import errors
from t5core.checkpoints import index, pins
from t5core.config import load
from t5core.config.edges import CheckpointRef, Cursor, DatasetRef, Evaluation, RunInputs, SegmentRecord, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.metrics.writer import MetricWriter
from t5core.rundir import RunDirectory
from t5core.stages import check
from tests.t5core import user_actions
from tests.t5core.checkpoints.test_retention import make_checkpoints

ACTIONS = [
    {"name": "terminate_on_nan", "task": "mine"},
    {"name": "early_stopping", "task": "mine", "patience": 2},
]


def inputs_with(root, actions, **train):
    settings = {
        "run": {"name": "r", "root": str(root)},
        "data": {"tasks": [{"name": "mine", "files": ["a.txt"]}]},
        "train": {"actions": actions, **train},
    }
    run = load.resolve(load.validate(settings, PretrainConfig, origin="test"))
    dataset = DatasetRef(name="mine", uri="u", fingerprint="f", rows=1, reused=False, reason="")
    vocabulary = VocabularyRef(uri="u", kind="bytes", extra_ids=0, size=1, fingerprint="f")
    return RunInputs(run=run, vocabulary=vocabulary, tasks=(dataset,), mixture=dataset)


@pytest.fixture
def inputs(tmp_path):
    return inputs_with(tmp_path, ACTIONS)


def checkpoint(step):
    return CheckpointRef(uri=f"c/{step}", step=step, digest=f"d{step}")


def checked(inputs, cursor, step, loss):
    reference = checkpoint(step)
    segment = SegmentRecord(
        start=0, end=step, seconds=1, trained_steps=1, reused=False, parent=reference, checkpoint=reference
    )
    metrics = {} if loss is None else {"mine": {"loss": loss}}
    evaluation = Evaluation(step=step, checkpoint=reference, metrics=metrics, seconds=0, reused=False, uri="e")
    return check.check_actions(inputs, cursor, segment, evaluation)


def run(inputs, losses):
    cursors = [Cursor(checkpoint=checkpoint(0))]
    for step, loss in enumerate(losses, start=1):
        cursors.append(checked(inputs, cursors[-1], step, loss))
    return cursors[1:]


def test_memory_crosses_the_segments(inputs):
    cursors = run(inputs, [3.0, 2.0, 2.5, 2.5])
    assert [cursor.halt for cursor in cursors] == [False, False, False, True]
    assert cursors[-1].stop_reason == "early stopping: mine/loss no better than 2 for 2 evaluations"
    assert [cursor.checkpoint.step for cursor in cursors] == [1, 2, 3, 4]


def test_a_step_without_evaluation_moves_on_and_forgets_nothing(inputs):
    cursors = run(inputs, [3.0, 3.0, None, 3.0])
    assert [cursor.halt for cursor in cursors] == [False, False, False, True]


def test_a_stop_is_sticky(inputs):
    cursors = run(inputs, [math.nan, 1.0])
    assert [cursor.halt for cursor in cursors] == [True, True]
    assert cursors[-1].stop_reason == "terminate on NaN: mine/loss is nan"


def test_the_same_evaluation_again_gives_the_same_decision(inputs):
    before = run(inputs, [3.0, 3.0])[-1]
    assert checked(inputs, before, 3, 3.0) == checked(inputs, before, 3, 3.0)


def test_the_actions_of_a_stopped_run_decide_the_same_when_all_segments_are_looked_at_again(inputs):
    """A second start of the chain begins with an empty memory at the last checkpoint, and finds every segment done."""
    first = run(inputs, [3.0, 2.0, 2.5, 2.5])
    assert run(inputs, [3.0, 2.0, 2.5, 2.5]) == first
    assert run(inputs_with(inputs.run.config.run.root, []), [3.0, 2.0, 2.5, 2.5])[-1].halt is False


# Budgets


def trained(directory, start, end):
    """Writes what training (start, end] reports: ten tokens and half a second a step."""
    with MetricWriter(directory.metrics_uri("train"), resume_step=start, tensorboard=False) as writer:
        for step in range(start + 1, end + 1):
            writer.write(step, {"timing/seconds": 0.5, "timing/target_tokens_per_second": 20.0})


def evaluated(directory, step, loss=1.0, seconds=0.0):
    directory.write_evaluation(
        Evaluation(
            step=step,
            checkpoint=checkpoint(step),
            metrics={"mine": {"loss": loss}},
            seconds=seconds,
            reused=False,
            uri="e",
        )
    )


@pytest.mark.parametrize(
    ("limit", "stops_at", "reason"),
    [
        ({"target_tokens": 30}, 3, "budget: 30 of 30 target tokens spent"),
        ({"target_tokens": 31}, 4, "budget: 40 of 31 target tokens spent"),
        ({"seconds": 1.5}, 3, "budget: 1.5 of 1.5 seconds spent"),
        ({"seconds": 3.5, "target_tokens": 100}, 5, "budget: 4.5 of 3.5 seconds spent"),
    ],
)
def test_a_budget_is_looked_at_after_every_segment_evaluated_or_not(tmp_path, limit, stops_at, reason):
    inputs = inputs_with(tmp_path, [{"name": "budget", **limit}])
    directory = RunDirectory(inputs.run.uri)
    trained(directory, 0, 6)
    evaluated(directory, 5, seconds=2.0)
    cursors = run(inputs, [None] * 4 + [1.0, None])
    assert [cursor.halt for cursor in cursors] == [step >= stops_at for step in range(1, 7)]
    assert cursors[stops_at - 1].stop_reason == reason
    assert run(inputs, [None] * 4 + [1.0, None]) == cursors
    assert directory.cursors()[0].action_state == {"0-budget": {"seconds": 0.5, "target_tokens": 10}}


def test_a_budget_leaves_the_memory_of_the_others_alone_where_nothing_is_evaluated(tmp_path):
    inputs = inputs_with(tmp_path, [*ACTIONS, {"name": "budget", "target_tokens": 1000}])
    trained(RunDirectory(inputs.run.uri), 0, 4)
    assert [cursor.halt for cursor in run(inputs, [3.0, None, 3.0, 3.0])] == [False, False, False, True]


# Functions of the user's own


def test_a_function_sees_the_checkpoint_and_a_class_remembers_over_segments(tmp_path):
    here = "tests.t5core.user_actions"
    calls = [
        {"name": "call", "function": f"{here}.loss_below", "arguments": {"limit": 2.0}},
        {"name": "call", "function": f"{here}.Countdown", "arguments": {"n": 3}},
    ]
    cursors = run(inputs_with(tmp_path, calls), [3.0, 1.0, 3.0])
    assert user_actions.calls[-1] == checkpoint(3)
    assert [cursor.halt for cursor in cursors] == [False, True, True]
    assert cursors[-1].action_state == {"1-call": {"left": 0}}
    assert cursors[-1].stop_reason == f"{here}.loss_below asked for it; 3 evaluations are enough"


def test_an_answer_that_is_neither_yes_nor_no_fails_the_run_where_it_was_given(tmp_path):
    inputs = inputs_with(tmp_path, [{"name": "call", "function": "tests.t5core.user_actions.forgets_its_answer"}])
    RunDirectory(inputs.run.uri).claim(inputs.run, identity="r", config_text="{}")
    with pytest.raises(errors.ConfigError, match="forgets_its_answer returned None; return True to stop"):
        run(inputs, [1.0])
    assert "actions at step 1" in (tmp_path / "r" / "summary.json").read_text()


# The best checkpoints


def test_after_an_evaluation_what_is_not_among_the_best_goes_and_the_newest_stays(tmp_path, caplog):
    """Each step is saved before it is evaluated; 2 is the best by loss for a while, then 4; 3 has NaN."""
    inputs = inputs_with(tmp_path, [{"name": "keep_best", "task": "mine"}], keep_checkpoints=1, checkpoint_period=1)
    directory = RunDirectory(inputs.run.uri)
    cursor, left = Cursor(checkpoint=checkpoint(0)), []
    for step, loss in enumerate([3.0, 2.0, math.nan, 1.0, 5.0], start=1):
        make_checkpoints(directory.checkpoints_uri, step)
        evaluated(directory, step, loss)
        with caplog.at_level(logging.INFO):
            cursor = checked(inputs, cursor, step, loss)
        left.append(index.committed_steps(directory.checkpoints_uri))
    assert left == [(1,), (2,), (2, 3), (4,), (4, 5)]
    assert [message.split(":")[0].rsplit("/", 1)[-1] for message in caplog.messages] == ["1", "2", "3"]
    assert cursor.halt is False


def test_a_checkpoint_that_is_being_read_stays_until_the_reader_is_done(tmp_path):
    inputs = inputs_with(tmp_path, [{"name": "keep_best", "task": "mine"}], keep_checkpoints=1, checkpoint_period=1)
    directory = RunDirectory(inputs.run.uri)
    for step in (1, 2):
        make_checkpoints(directory.checkpoints_uri, step)
        evaluated(directory, step, loss=-float(step))
    with pins.reading(directory.checkpoints_uri, 1):
        checked(inputs, Cursor(checkpoint=checkpoint(1)), 2, -2.0)
        assert index.committed_steps(directory.checkpoints_uri) == (1, 2)
    checked(inputs, Cursor(checkpoint=checkpoint(1)), 2, -2.0)
    assert index.committed_steps(directory.checkpoints_uri) == (2,)


def test_a_metric_of_the_user_s_own_that_no_evaluation_gave_is_named(tmp_path):
    inputs = inputs_with(tmp_path, [{"name": "keep_best", "task": "mine", "metric": "lsos"}])
    directory = RunDirectory(inputs.run.uri)
    make_checkpoints(directory.checkpoints_uri, 1)
    evaluated(directory, 1)
    with pytest.raises(errors.ConfigError, match="unknown metric to keep checkpoints by 'mine/lsos'; did you mean"):
        checked(inputs, Cursor(checkpoint=checkpoint(0)), 1, 1.0)
