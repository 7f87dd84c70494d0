"""Which run directories this process holds the lock of; it lets go when it ends."""

from __future__ import annotations

import atexit

from t5core.lock import RunLock
from t5core.rundir import RunDirectory

_held: dict[str, RunLock] = {}


def hold(run_uri: str, *, owner: str | None) -> None:
    """Takes the lock of a run directory until the process ends; taking it again is `check`.

    Raises:
      InUseError: another execution holds it, from before or by now.
    """
    if run_uri in _held:
        check(run_uri)
        return
    lock = RunLock(RunDirectory(run_uri).lock_uri, owner=owner)
    lock.acquire()
    _held[run_uri] = lock
    atexit.register(release, run_uri)


def check(run_uri: str) -> None:
    """Returns while the lock that this process took is in force; to be called before the run's state is written.

    A process that stood still (a paused machine, a lost network) may have been taken for dead meanwhile.

    Raises:
      InUseError: another execution works on the run now.
    """
    if run_uri in _held:
        _held[run_uri].check()


def release(run_uri: str) -> None:
    """Lets go of the lock, if this process holds it."""
    lock = _held.pop(run_uri, None)
    if lock is not None:
        lock.release()
