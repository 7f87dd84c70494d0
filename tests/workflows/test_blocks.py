"""The chain of segments in this process: what a stop leaves undone, and what a failure leaves done."""

from __future__ import annotations

import collections
import itertools

import pytest

from t5core.config.edges import CheckpointRef, Cursor, Evaluation, SegmentRecord
from t5core.rundir import RunDirectory
from t5core.stages import check, evaluate, holding, initialise, segment
from t5core.trainer import Trainer
from tests.t5core.stage_runs import inputs_in, settings_put_back
from workflows import blocks


def checkpoint(step):
    return CheckpointRef(uri=f"run/checkpoints/{step}", step=step, digest=f"d{step}")


@pytest.fixture
def calls(monkeypatch):
    """Stages that do nothing but count; the actions stop the run at `calls["stop at"]`."""
    counted = collections.Counter()

    def train_segment(inputs, cursor, end, owner):
        counted["train_segment"] += 1
        start = cursor.checkpoint
        return SegmentRecord(
            start=start.step,
            end=end,
            seconds=0,
            trained_steps=1,
            reused=False,
            parent=start,
            checkpoint=checkpoint(end),
        )

    def evaluated(inputs, record):
        counted["evaluate"] += 1
        return Evaluation(
            step=record.end, checkpoint=record.checkpoint, metrics={}, seconds=0, reused=False, uri="evaluation"
        )

    def check_actions(inputs, cursor, record, evaluation):
        counted["check_actions"] += 1
        assert not cursor.halt, "nothing looks at a run that was stopped"
        return Cursor(checkpoint=record.checkpoint, halt=record.end >= counted["stop at"])

    monkeypatch.setattr(initialise, "initialise", lambda inputs, owner: Cursor(checkpoint=checkpoint(0)))
    monkeypatch.setattr(segment, "train_segment", train_segment)
    monkeypatch.setattr(evaluate, "evaluate", evaluated)
    monkeypatch.setattr(check, "check_actions", check_actions)
    return counted


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A run whose segments end at 4, 5, 8 and 10."""
    return inputs_in(str(tmp_path_factory.mktemp("blocks")))


@pytest.mark.parametrize(("stop", "blocks_run"), [(4, 1), (5, 2), (10, 4), (99, 4)])
def test_one_branch_of_a_conditional_runs(calls, inputs, stop, blocks_run):
    calls["stop at"] = stop
    end = blocks.train_in_segments(inputs=inputs)
    assert {name: calls[name] for name in ("train_segment", "evaluate", "check_actions")} == dict.fromkeys(
        ("train_segment", "evaluate", "check_actions"), blocks_run
    )
    assert (end.checkpoint.step, end.halt) == (min(stop, 10), stop <= 10)


def test_a_run_that_failed_goes_on_where_it_was(tmp_path, monkeypatch):
    """Segments 1 and 2 of 5 are not trained again, and each takes up the checkpoint that the one before it left."""
    made = inputs_in(str(tmp_path))
    changed = {"total_steps": 5, "segment_steps": 1, "eval_period": 0, "checkpoint_period": 1, "actions": []}
    train = made.run.config.train.model_copy(update=changed)
    run = made.run.model_copy(update={"config": made.run.config.model_copy(update={"train": train})})
    made = made.model_copy(update={"run": run})
    train_step = Trainer.train_step
    trained = []

    def once_broken(self, state, batch):
        step = int(state.step)
        if step == 2 and 2 not in trained:
            trained.append(2)
            raise KeyError("a mistake in the code")
        trained.append(step)
        return train_step(self, state, batch)

    monkeypatch.setattr(Trainer, "train_step", once_broken)
    directory = RunDirectory(made.run.uri)
    with settings_put_back():
        with pytest.raises(KeyError, match="a mistake in the code"):
            blocks.train_in_segments(inputs=made)
        first = [directory.segment(end) for end in range(1, 6)]
        end = blocks.train_in_segments(inputs=made)
        holding.release(made.run.uri)
    assert [record is not None for record in first] == [True, True, False, False, False]
    assert trained == [0, 1, 2, 2, 3, 4], "step 2 failed once, and nothing was trained twice"
    records = [directory.segment(end) for end in range(1, 6)]
    assert records[:2] == [record.model_copy(update={"reused": True}) for record in first[:2]]
    assert [record.reused for record in records] == [True, True, False, False, False]
    assert [record.trained_steps for record in records] == [1] * 5
    for before, after in itertools.pairwise(records):
        assert after.parent == before.checkpoint
    assert end.checkpoint == records[-1].checkpoint
