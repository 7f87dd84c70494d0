"""A training segment: from the last committed step to its end; nothing to do when that is committed already."""

from __future__ import annotations

import time

from t5core import progress
from t5core.checkpoints import index
from t5core.config.edges import CheckpointRef, Cursor, RunInputs, SegmentRecord
from t5core.rundir import RunDirectory
from t5core.stages import failure, holding


def train_segment(inputs: RunInputs, cursor: Cursor, end: int, *, owner: str | None = None) -> SegmentRecord:
    """Returns what it took to bring the run to step `end`, whose checkpoint is committed.

    Args:
      inputs: the run and what it trains on.
      cursor: where the run stood before this segment.
      end: absolute step.
      owner: execution that works on the run; None: this process.

    Raises:
      Preempted: the process was told to stop; everything up to the step that it finished is committed.
      CheckpointError: no checkpoint can be used, or none can be written.
      InUseError: another execution works on the run, from before or by now.
    """
    holding.hold(inputs.run.uri, owner=owner)
    directory = RunDirectory(inputs.run.uri)
    latest = index.latest(directory.checkpoints_uri)
    if latest is not None and latest >= end:
        return _reused(directory, cursor, end, latest)
    from t5core import training

    began = time.monotonic()
    with failure.recorded(inputs.run.uri, where=f"segment to step {end}"):
        trained = training.train_to(
            inputs, end, action_state=cursor.action_state, still_ours=lambda: holding.check(inputs.run.uri)
        )
    record = SegmentRecord(
        start=cursor.checkpoint.step,
        end=end,
        seconds=time.monotonic() - began,
        trained_steps=end - trained.resumed_from.step,
        reused=False,
        parent=trained.resumed_from,
        checkpoint=trained.checkpoint,
    )
    directory.write_segment(record)
    return record


def _reused(directory: RunDirectory, cursor: Cursor, end: int, latest: int) -> SegmentRecord:
    existing = record = directory.segment(end)
    if record is None:
        # The process died between the commit and the record, or the run was cut elsewhere the first time.
        record = SegmentRecord(
            start=cursor.checkpoint.step,
            end=end,
            seconds=0.0,
            trained_steps=0,
            reused=True,
            parent=cursor.checkpoint,
            checkpoint=_reference(directory, end, latest),
        )
    record = record.model_copy(update={"reused": True})
    if record != existing:
        directory.write_segment(record)
    progress.say(f"segment to {end}: reused (step {latest} is committed, digest {record.checkpoint.digest[:12]})")
    return record


def _reference(directory: RunDirectory, end: int, latest: int) -> CheckpointRef:
    committed = index.committed_steps(directory.checkpoints_uri)
    return index.reference(directory.checkpoints_uri, end if end in committed else latest)
