"""The decision between segments: sticky, remembered, and a function of the evaluations alone."""

import math

import pytest

from t5core.config import load
from t5core.config.edges import CheckpointRef, Cursor, DatasetRef, Evaluation, RunInputs, SegmentRecord, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.stages import check

ACTIONS = [
    {"name": "terminate_on_nan", "task": "mine"},
    {"name": "early_stopping", "task": "mine", "patience": 2},
]


@pytest.fixture
def inputs(tmp_path):
    settings = {
        "run": {"name": "r", "root": str(tmp_path)},
        "data": {"tasks": [{"name": "mine", "files": ["a.txt"]}]},
        "train": {"actions": ACTIONS},
    }
    run = load.resolve(load.validate(settings, PretrainConfig, origin="test"))
    dataset = DatasetRef(name="mine", uri="u", fingerprint="f", rows=1, reused=False, reason="")
    vocabulary = VocabularyRef(uri="u", kind="bytes", extra_ids=0, size=1, fingerprint="f")
    return RunInputs(run=run, vocabulary=vocabulary, tasks=(dataset,), mixture=dataset)


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
