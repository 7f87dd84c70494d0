"""What a run that `train` made knows of itself beside its checkpoints, in its `model_dir`.

Two files: `train.json` says what holds for the whole run, however often it is started: its seeds, where it began, and
what it may not be mixed with. `records/decision-<step>.json` says what the actions made of an evaluation.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping

from t5core import agreement, errors, records, storage
from t5core.config.base import StrictModel
from t5core.lock import RunLock
from t5core.metrics import json_numbers


class RunRecord(StrictModel):
    """A run.

    Attributes:
      run_id: names it in messages.
      created: UTC, ISO 8601.
      random_seed: of initialisation and dropout, given or drawn.
      dataset_seed: of datasets whose configuration has none.
      settings: what two starts of one run have in common; '' where it does not matter.
      first_step: the step of the state that the run began with; None until that is known.
      data_start: the step that reads the first batch of the dataset.
      relative_from: the step from which `relative_steps` counts; None until that was asked for.
    """

    run_id: str
    created: str
    random_seed: int
    dataset_seed: int
    settings: dict[str, str]
    first_step: int | None = None
    data_start: int = 0
    relative_from: int | None = None


class Decision(StrictModel):
    """What became of a step at which the actions looked at metrics, or at which training was stopped.

    Attributes:
      evaluated: whether the evaluation that is due at `step` was made.
      asked: keys of the actions that asked for a stop.
      reasons: of the stop, one line each.
      action_state: what the actions remember from here on, by key.
    """

    step: int
    evaluated: bool
    asked: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    action_state: json_numbers.AnyState = {}


def _path(model_dir: str) -> str:
    return f"{model_dir}/train.json"


@contextlib.contextmanager
def opened(
    model_dir: str, *, random_seed: int | None, settings: Mapping[str, str]
) -> Iterator[tuple[RunRecord, Callable[[], None]]]:
    """Gives the record of the run in `model_dir`, which is locked for it while the block runs; see `claim`.

    With it comes what every process calls before it saves: it raises InUseError when the lock is another's by now.

    Raises:
      RunDirectoryError: `model_dir` is another run's, is in use, or cannot be written.
    """
    # An owner of its own: two runs of one process exclude each other too.
    lock = RunLock(f"{model_dir}/lock.json", owner=f"train:{uuid.uuid4().hex}")
    agreement.on_primary(lock.acquire)
    try:
        agreement.on_primary(lambda: claim(model_dir, random_seed=random_seed, settings=settings))
        yield read(model_dir), lambda: agreement.on_primary(lock.check)
    finally:
        if agreement.is_primary():
            lock.release()


def load(model_dir: str) -> RunRecord | None:
    """Returns the record of the run in `model_dir`, None before its first start."""
    return records.read(_path(model_dir), RunRecord, otherwise="is not a RunRecord; restore it from a copy")


def read(model_dir: str) -> RunRecord:
    """Returns the record of the run in `model_dir`, which was started."""
    record = load(model_dir)
    assert record is not None, "a run that was started has a record"
    return record


def store(model_dir: str, record: RunRecord) -> None:
    """Writes the record; the first process alone does."""
    agreement.on_primary(lambda: records.write(_path(model_dir), record))


def claim(model_dir: str, *, random_seed: int | None, settings: Mapping[str, str]) -> RunRecord:
    """Writes the record of this start of a run into `model_dir`, after comparing it with the start before.

    Args:
      model_dir: of the run.
      random_seed: None takes the one that the run has, or draws one.
      settings: of this start; '' leaves open what the start before said.

    Raises:
      RunDirectoryError: `model_dir` is another run's.
    """
    existing = load(model_dir)
    if existing is None:
        existing = RunRecord(
            run_id=uuid.uuid4().hex[:8],
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            random_seed=secrets.randbelow(2**31) if random_seed is None else random_seed,
            dataset_seed=secrets.randbelow(2**31),
            settings=dict(settings),
        )
    compared = {**settings, "random_seed": "" if random_seed is None else str(random_seed)}
    for name, now in compared.items():
        before = {**existing.settings, "random_seed": str(existing.random_seed)}.get(name, "")
        if now and before and now != before:
            raise errors.RunDirectoryError(
                f"{model_dir} belongs to run {existing.run_id} of {existing.created}, which has {name}={before}, and "
                f"this run has {name}={now}; choose another model_dir, or set it back"
            )
    known = {name: now or existing.settings.get(name, "") for name, now in settings.items()}
    record = existing.model_copy(update={"settings": {**existing.settings, **known}})
    records.write(_path(model_dir), record)
    return record


def begun(model_dir: str, record: RunRecord, *, step: int, data_start: int, counts_from_here: bool) -> RunRecord:
    """Returns the record of a run whose state is known, and stores it when that tells something new.

    Args:
      model_dir: of the run.
      record: of this start.
      step: of the state.
      data_start: the step that reads the first batch, when the run begins with this state.
      counts_from_here: whether relative steps are asked for, and counted from here unless they are already.
    """
    known = record
    if known.first_step is None:
        known = known.model_copy(update={"first_step": step, "data_start": data_start})
    if counts_from_here and known.relative_from is None:
        known = known.model_copy(update={"relative_from": step})
    if known != record:
        store(model_dir, known)
    return known


def write_decision(model_dir: str, decision: Decision) -> None:
    """Writes a decision; the first process alone does."""
    uri = f"{model_dir}/records/decision-{decision.step:08d}.json"
    agreement.on_primary(lambda: records.write(uri, decision))


def last_decision(model_dir: str, step: int) -> Decision | None:
    """Returns the last decision at or before `step`."""
    folder = storage.path(f"{model_dir}/records")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    steps = [int(match[1]) for name in names if (match := re.fullmatch(r"decision-(\d{8,})\.json", name))]
    known = [s for s in steps if s <= step]
    if not known:
        return None
    uri = f"{model_dir}/records/decision-{max(known):08d}.json"
    return records.read(uri, Decision, otherwise="is not a Decision; restore it from a copy")
