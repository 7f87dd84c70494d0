"""Checkpoints that retention leaves alone: those being read at the moment, and those published by name."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator

from t5core import errors, records, storage
from t5core.checkpoints import index
from t5core.config.base import StrictModel
from t5core.process import ProcessIdentity, this_process

_FOLDER = "pins"
_LONGEST_READ_SECONDS = 24 * 3600.0  # after which a reader on another machine is taken for dead


class _Pin(StrictModel):
    """Why `step` has to stay; `reader` is None when it was published, which has no end."""

    step: int
    reader: ProcessIdentity | None
    since: float

    def is_over(self) -> bool:
        if self.reader is None:
            return False
        alive = self.reader.is_alive()
        return time.time() - self.since > _LONGEST_READ_SECONDS if alive is None else not alive


def publish(uri: str, step: int, *, name: str) -> None:
    """Keeps the checkpoint of `step` in the folder `uri` for good, under `name`.

    Raises:
      CheckpointError: there is no such checkpoint, the name cannot name a file, or it names another step already.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise errors.CheckpointError(f"{name!r} cannot name a checkpoint; use letters, digits, '.', '_' and '-'")
    pin = f"{uri}/{_FOLDER}/published-{name}.json"
    taken = _read(pin)
    if taken is not None and taken.step != step:
        raise errors.CheckpointError(f"{name!r} is checkpoint {taken.step} of {uri} already; choose another name")
    _write(uri, step, pin=pin, reader=None)


def withdraw(uri: str, *, name: str) -> None:
    """Gives what was published in the folder `uri` under `name` back to retention; nothing happens if it was not."""
    storage.path(f"{uri}/{_FOLDER}/published-{name}.json").unlink(missing_ok=True)


@contextlib.contextmanager
def reading(uri: str, step: int) -> Iterator[None]:
    """Keeps the checkpoint of `step` in the folder `uri` while the block runs, or until this process dies.

    Raises:
      CheckpointError: there is no such checkpoint, or not any more.
    """
    pin = f"{uri}/{_FOLDER}/reading-{step}-{uuid.uuid4().hex[:12]}.json"
    try:
        _write(uri, step, pin=pin, reader=this_process())
        yield
    finally:
        storage.path(pin).unlink(missing_ok=True)


def pinned_steps(uri: str) -> frozenset[int]:
    """Returns the steps in the folder `uri` that must stay."""
    folder = storage.path(uri) / _FOLDER
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    pins = [_read(str(folder / name)) for name in names if re.fullmatch(r"(published|reading)-.*\.json", name)]
    return frozenset(pin.step for pin in pins if pin is not None and not pin.is_over())


def _write(uri: str, step: int, *, pin: str, reader: ProcessIdentity | None) -> None:
    """Pins first and looks for the checkpoint after, so that it cannot be deleted in between."""
    storage.write_json(pin, _Pin(step=step, reader=reader, since=time.time()).model_dump())
    steps = index.committed_steps(uri)
    if step not in steps:
        storage.path(pin).unlink(missing_ok=True)
        have = ", ".join(map(str, steps)) or "none"
        raise errors.CheckpointError(
            f"no checkpoint of step {step} in {uri} (removed by retention, or never committed); committed steps: {have}"
        )


def _read(pin: str) -> _Pin | None:
    """Returns None when its reader has just finished."""
    return records.read(pin, _Pin, otherwise="is no pin; delete it if nothing was published or reads there")
