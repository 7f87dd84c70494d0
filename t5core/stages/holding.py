"""Which run directories this process holds the lock of; it lets go when it ends."""

from __future__ import annotations

import atexit

from t5core.lock import RunLock
from t5core.rundir import RunDirectory

_held: dict[str, RunLock] = {}


def hold(run_uri: str, *, owner: str | None) -> None:
    """Takes the lock of a run directory until the process ends; taking it again is nothing to do.

    Raises:
      RunDirectoryError: another execution holds it.
    """
    if run_uri in _held:
        return
    lock = RunLock(RunDirectory(run_uri).lock_uri, owner=owner)
    lock.acquire()
    _held[run_uri] = lock
    atexit.register(release, run_uri)


def release(run_uri: str) -> None:
    """Lets go of the lock, if this process holds it."""
    lock = _held.pop(run_uri, None)
    if lock is not None:
        lock.release()
