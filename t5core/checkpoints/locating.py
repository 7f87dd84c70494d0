"""Where a checkpoint lies that a person names: by its run, by its own folder, or by the name it was published under."""

from __future__ import annotations

import os
from collections.abc import Sequence

from t5core import errors, publishing, storage
from t5core.checkpoints import index
from t5core.config.edges import CheckpointRef
from t5core.rundir import RunDirectory

PUBLISHED = "published:"
_CHECKPOINTS = "checkpoints"


def locate(spec: str, *, root: str, setting: str = "checkpoint") -> CheckpointRef:
    """Returns the checkpoint that `spec` names, its URI absolute; reads its record, no arrays.

    Args:
      spec: a run directory or a folder of steps, for the last committed step in it; the folder of one step; or
        `published:NAME`, for what NAME points to now.
      root: folder of the runs, in which names are published.
      setting: the key that `spec` is the value of, for messages.

    Raises:
      CheckpointError: there is no checkpoint, or a published one is not what it was.
    """
    if spec.startswith(PUBLISHED):
        return _published(spec.removeprefix(PUBLISHED), root=root, setting=setting)
    place = spec.rstrip("/") if storage.is_remote(spec) else os.path.abspath(spec)
    folder, step = _step_in(place)
    if step is None:
        raise errors.CheckpointError(_nothing_there(place, given=f"{setting}={spec!r}"))
    return _reference(folder, step)


def run_of(checkpoint: CheckpointRef) -> RunDirectory | None:
    """Returns the directory of the run that trained `checkpoint`, None when it lies in no run's directory."""
    folder, _ = index.locate(checkpoint.uri)
    head, _, tail = folder.rpartition("/")
    directory = RunDirectory(head)
    return directory if tail == _CHECKPOINTS and directory.info() is not None else None


def _step_in(place: str) -> tuple[str, int | None]:
    """Returns the folder of steps that `place` leads to, and the step; None: there is none."""
    folder, _, name = place.rpartition("/")
    if name.isdecimal() and int(name) in index.committed_steps(folder):
        return folder, int(name)
    for candidate in (f"{place}/{_CHECKPOINTS}", place):
        step = index.latest(candidate)
        if step is not None:
            return candidate, step
    return place, None


def _nothing_there(place: str, *, given: str) -> str:
    remedy = "name a run directory, the folder of one step, or published:NAME"
    folder, _, name = place.rpartition("/")
    if name.isdecimal() and index.committed_steps(folder):
        return f"{given}: no such step; committed in {folder}: {', '.join(map(str, index.committed_steps(folder)))}"
    if name.startswith("checkpoint_") and storage.path(place).is_dir():
        return f"{given} is a checkpoint of T5X; convert it first (workflows/convert.py)"
    if any(storage.path(place).glob("*.safetensors")):
        return f"{given} is a model of Hugging Face; convert it first (workflows/convert.py)"
    found = [index.survey(f"{place}/{_CHECKPOINTS}"), index.survey(place)]
    broken = [name for survey in found for name in (*map(str, survey.broken), *survey.set_aside)]
    if broken:
        return f"{given} has no usable checkpoint (damaged: {', '.join(broken)}); restore one from a copy, or {remedy}"
    what = "has no checkpoint" if storage.path(place).exists() else "does not exist"
    return f"{given} {what}; {remedy} (`make pretrain` trains runs/demo)"


def _published(name: str, *, root: str, setting: str) -> CheckpointRef:
    decision = publishing.current(root, name)
    if decision is None:
        raise errors.CheckpointError(
            f"{setting}: {errors.unknown_name('published name', name, publishing.names(root))} in {root}"
        )
    promised = decision.candidate.checkpoint
    found = _reference(*index.locate(promised.uri))
    if found.digest != promised.digest:
        raise errors.CheckpointError(
            f"{setting}={PUBLISHED + name!r} points to {promised.uri} with digest {promised.digest[:12]}, but "
            f"{found.digest[:12]} lies there; publish it again"
        )
    return found


def _reference(folder: str, step: int) -> CheckpointRef:
    try:
        return index.reference(folder, step)
    except errors.IntegrityError as damage:
        raise errors.CheckpointError(f"{damage}; restore it from a copy, or name another checkpoint") from damage


def locate_all(
    spec: str, *, root: str, steps: Sequence[int] | None = None, setting: str = "checkpoint"
) -> list[CheckpointRef]:
    """Returns the checkpoints that `spec` names, ascending: of a run directory or a folder of steps all of them.

    Args:
      spec: as for `locate`.
      root: folder of the runs, in which names are published.
      steps: those to take; None: every one there is.
      setting: the key that `spec` is the value of, for messages.

    Raises:
      CheckpointError: there is no checkpoint, or none of one of the steps.
    """
    last = locate(spec, root=root, setting=setting)
    folder, step = index.locate(last.uri)
    if spec.startswith(PUBLISHED) or spec.rstrip("/").rpartition("/")[2] == str(step):
        if steps is not None:
            raise errors.CheckpointError(f"steps={list(steps)} has no effect on {setting}={spec!r}, which is one step")
        return [last]
    committed = index.committed_steps(folder)
    missing = next((wanted for wanted in steps or () if wanted not in committed), None)
    if missing is not None:
        there = ", ".join(map(str, committed))
        raise errors.CheckpointError(f"{setting}={spec!r} has no checkpoint of step {missing}; committed: {there}")
    return [_reference(folder, wanted) for wanted in sorted(set(committed if steps is None else steps))]
