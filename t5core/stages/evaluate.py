"""Evaluation of the checkpoint that a segment left, where the schedule asks for one; never twice the same."""

from __future__ import annotations

import time

from t5core import progress, schedule, storage
from t5core.checkpoints import index
from t5core.config.edges import Evaluation, RunInputs, SegmentRecord
from t5core.rundir import RunDirectory
from t5core.stages import failure


def evaluate(inputs: RunInputs, segment: SegmentRecord) -> Evaluation:
    """Returns the metrics of the segment's checkpoint; none when no evaluation is due at its step.

    A segment that was found finished by a run cut elsewhere may hand over a later checkpoint: its own step is gone
    then and cannot be evaluated any more. Neither can a step whose checkpoint was deleted; what was measured of it with
    other settings stays.
    """
    directory = RunDirectory(inputs.run.uri)
    step = segment.checkpoint.step
    existing = directory.evaluation(step)
    due = schedule.of(inputs.run.config.train).is_evaluation_due(step) and step == segment.end
    # Telling the settings takes SeqIO where a task is of the user's module.
    settings = settings_fingerprint(inputs) if due or existing is not None else ""
    if existing is not None and (existing.checkpoint.digest, existing.settings) == (
        segment.checkpoint.digest,
        settings,
    ):
        progress.say(f"evaluate step {step}: reused (same checkpoint, same settings)")
        return _reused(directory, existing)
    if due and step not in index.committed_steps(directory.checkpoints_uri):
        progress.say(f"evaluate step {step}: its checkpoint is gone, {'kept as it is' if existing else 'left out'}")
        if existing is not None:
            return _reused(directory, existing)
        due = False
    began = time.monotonic()
    metrics: dict[str, dict[str, float]] = {}
    if due:
        from t5core.evaluation import checkpoint

        with failure.recorded(inputs.run.uri, where=f"evaluation of step {step}"):
            metrics = checkpoint.evaluate(inputs, segment.checkpoint)
    evaluation = Evaluation(
        step=step,
        checkpoint=segment.checkpoint,
        metrics=metrics,
        seconds=time.monotonic() - began,
        reused=False,
        settings=settings,
        uri=directory.evaluation_uri(step),
    )
    if due:
        from t5core import agreement

        agreement.on_primary(lambda: directory.write_evaluation(evaluation))
    return evaluation


def _reused(directory: RunDirectory, existing: Evaluation) -> Evaluation:
    """Returns the evaluation as one that was there, and records that, for the report of this start."""
    evaluation = existing.model_copy(update={"reused": True})
    if evaluation != existing:
        directory.write_evaluation(evaluation)
    return evaluation


def settings_fingerprint(inputs: RunInputs) -> str:
    """Returns 16 hex digits that name what an evaluation of this run measures and how."""
    from t5core.evaluation import identity

    return storage.fingerprint(identity.parts(inputs))
