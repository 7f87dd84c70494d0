"""The stage that gives a run its first checkpoint, or finds the one at which it stands."""

from __future__ import annotations

import time

from t5core import errors, incumbent, progress
from t5core.checkpoints import index
from t5core.config.edges import CheckpointRef, Cursor, RunInputs
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import evaluate, failure, holding


def initialise(inputs: RunInputs, *, owner: str | None = None) -> Cursor:
    """Returns a cursor at the run's latest checkpoint; a run without any gets one of its first step.

    Raises:
      CheckpointError: there are checkpoints, but none that can be used.
      RunDirectoryError: another run has taken the directory over before this one had a checkpoint.
    """
    began = time.monotonic()
    holding.hold(inputs.run.uri, owner=owner)
    directory = RunDirectory(inputs.run.uri)
    directory.check_identity(inputs.run.fingerprint)
    latest = index.latest(directory.checkpoints_uri)
    with failure.recorded(inputs.run.uri, where="initialise"):
        checkpoint, reason = _found(directory, latest) if latest is not None else _fresh(inputs, directory)
        parent = index.read_record(directory.checkpoints_uri, checkpoint.step).provenance.parent
        if parent is not None:
            directory.write_parent(parent)
    with failure.recorded(inputs.run.uri, where="measuring what is published"):
        incumbent.measure(inputs, settings=evaluate.settings_fingerprint(inputs))
    progress.say(f"initialise: {'reused' if latest is not None else 'done'} ({reason})")
    directory.write_stage(
        StageRecord(
            stage="initialise",
            reused=latest is not None,
            reason=reason,
            seconds=time.monotonic() - began,
            fingerprint=checkpoint.digest[:16],
            uri=checkpoint.uri,
        )
    )
    return Cursor(checkpoint=checkpoint)


def _found(directory: RunDirectory, latest: int) -> tuple[CheckpointRef, str]:
    return index.reference(directory.checkpoints_uri, latest), f"the run stands at step {latest}"


def _fresh(inputs: RunInputs, directory: RunDirectory) -> tuple[CheckpointRef, str]:
    survey = index.survey(directory.checkpoints_uri)
    if not survey.is_fresh:
        broken = ", ".join([*map(str, survey.broken), *survey.set_aside])
        raise errors.CheckpointError(
            f"no usable checkpoint in {directory.checkpoints_uri} (damaged: {broken}); "
            f"restore one from a copy, or choose another run.name to start anew"
        )
    from t5core import training

    checkpoint = training.initialise(inputs)
    parent = index.read_record(directory.checkpoints_uri, checkpoint.step).provenance.parent
    return checkpoint, f"from {parent}" if parent else f"drawn from seed {inputs.run.seed}"
