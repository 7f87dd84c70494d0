"""A process that stood still and was taken for dead: when it goes on, it leaves the run to whoever has it now."""

import os

import pytest

from t5core import errors, training
from t5core.checkpoints import index
from t5core.config.edges import Cursor
from t5core.lockfile import LockRecord, lock_file
from t5core.process import this_process
from t5core.rundir import RunDirectory
from t5core.stages import check, evaluate, finish, holding, initialise, segment
from tests.t5core import small_runs


def take_over(directory):
    """Another machine finds the lock old, and takes it."""
    elsewhere = this_process().model_copy(update={"host": "elsewhere"})
    os.unlink(directory.lock_uri)
    assert lock_file(directory.lock_uri).create(LockRecord.new(owner="other", process=elsewhere))


@pytest.fixture
def inputs(tmp_path):
    made = small_runs.inputs(small_runs.config(tmp_path))
    yield made
    holding.release(made.run.uri)


def test_training_commits_nothing_more_once_the_lock_is_another_s(inputs, monkeypatch):
    directory = RunDirectory(inputs.run.uri)

    class Reader(training.BatchReader):
        def batch(self, step, **options):
            if step == 4:
                take_over(directory)
            return super().batch(step, **options)

    with small_runs.settings_put_back():
        cursor = initialise.initialise(inputs)
        monkeypatch.setattr(training, "BatchReader", Reader)
        with pytest.raises(errors.InUseError, match=r"lost the lock .*: another execution took it over; stop this run"):
            segment.train_segment(inputs, cursor, 7)
    assert index.committed_steps(directory.checkpoints_uri)[-1] < 6
    assert not os.path.exists(directory.summary_uri), "the run is the other's, which has not failed"
    holding.release(inputs.run.uri)
    assert lock_file(directory.lock_uri).read().owner == "other"


def test_no_later_stage_of_that_process_writes_into_the_run(inputs):
    directory = RunDirectory(inputs.run.uri)
    with small_runs.settings_put_back():
        cursor = initialise.initialise(inputs)
        record = segment.train_segment(inputs, cursor, 2)
    evaluation = evaluate.evaluate(inputs, record)
    take_over(directory)
    with pytest.raises(errors.InUseError, match="lost the lock"):
        segment.train_segment(inputs, cursor, 7)
    with pytest.raises(errors.InUseError, match="lost the lock"):
        check.check_actions(inputs, cursor, record, evaluation)
    with pytest.raises(errors.InUseError, match="lost the lock"):
        finish.finish(inputs, Cursor(checkpoint=record.checkpoint))
    assert not os.path.exists(directory.summary_uri)
