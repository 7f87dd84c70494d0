"""A lock on a run directory: one execution at a time writes there, and a dead one does not stand in the way."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from t5core import errors, storage
from t5core.lockfile import LockRecord, UnreadableError, lock_file
from t5core.process import this_process

_ATTEMPTS = 50
_PAUSE_SECONDS = 0.1


class RunLock:
    """Holds the lock file at `uri` between `acquire` and `release`, or inside a `with`.

    `owner` names the execution that writes, and must be unique to it; the default is this process. The same owner may
    enter again: while the process that holds the lock lives on this machine, the lock is shared with it; otherwise (a
    retry on another machine) it is taken over at once. From another owner the lock is taken over when its process is
    gone from this machine, or when it is on another machine and has given no sign of life for `stale_seconds`.
    """

    def __init__(
        self, uri: str, *, owner: str | None = None, heartbeat_seconds: float = 10.0, stale_seconds: float = 60.0
    ) -> None:
        assert heartbeat_seconds < stale_seconds, "a holder that lives has to look alive"
        self._uri = str(uri)
        self._process = this_process()
        self._owner = owner or str(self._process)
        self._heartbeat_seconds, self._stale_seconds = heartbeat_seconds, stale_seconds
        self._file = lock_file(self._uri)
        self._record: LockRecord | None = None  # None while the lock is another's, also one that is shared
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._loss: str | None = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
          InUseError: another execution holds it.
          RunDirectoryError: the file cannot be written.
          RecoverableError: the storage was out of reach.
        """
        try:
            self._acquire()
        except OSError as error:
            raise storage.write_refused(self._uri, error) from error

    def _acquire(self) -> None:
        record = LockRecord.new(owner=self._owner, process=self._process)
        for _ in range(_ATTEMPTS):
            if self._file.create(record):
                self._hold(record)
                return
            try:
                holder = self._file.read()
            except UnreadableError as unreadable:
                if unreadable.age_seconds > self._stale_seconds and self._file.replace(record, previous=None):
                    self._hold(record)
                    return
                time.sleep(_PAUSE_SECONDS)  # its writer may be between two system calls
                continue
            if holder is None:
                continue  # released a moment ago
            if self._is_shared_with(holder):
                return
            self._refuse_unless_dead(holder)
            if self._file.replace(record, previous=holder):
                self._hold(record)
                return
        raise errors.RunDirectoryError(
            f"{self._uri} cannot be taken: others keep changing it, or it is no lock; delete it if no run is under way"
        )

    def _is_shared_with(self, holder: LockRecord) -> bool:
        return holder.owner == self._owner and holder.process.is_alive() is True

    def _refuse_unless_dead(self, holder: LockRecord) -> None:
        alive, age = holder.process.is_alive(), holder.age_seconds()
        if holder.owner == self._owner or alive is False or (alive is None and age > self._stale_seconds):
            return
        if_dead = "" if alive else f" (if it died: {self._stale_seconds:.0f} s from its last sign of life)"
        raise errors.InUseError(
            f"{self._uri} is held by {holder.owner!r} (process {holder.process.pid} on {holder.process.host}, last "
            f"sign of life {age:.0f} s ago); wait until it ends{if_dead}, stop it, or choose another run.name"
        )

    def _hold(self, record: LockRecord) -> None:
        self._record, self._loss = record, None
        self._stop.clear()
        self._heart = threading.Thread(target=self._beat, args=(record,), name="run-lock", daemon=True)
        self._heart.start()

    def _beat(self, record: LockRecord) -> None:
        """Refreshes the record until told to stop; finds out when the lock is lost."""
        alive_at = time.monotonic()
        while not self._stop.wait(self._heartbeat_seconds):
            try:
                if not self._file.refresh(record.refreshed()):
                    self._loss = "another execution took it over"
                    return
                alive_at = time.monotonic()
            except OSError as error:
                silent = time.monotonic() - alive_at
                if silent > self._stale_seconds:
                    self._loss = f"it could not be refreshed for {silent:.0f} s ({error.strerror or error})"
                    return

    def check(self) -> None:
        """Returns while the lock is held; to be called before anything that only its holder may write.

        Raises:
          InUseError: the lock was lost, and somebody else may be writing now.
        """
        if self._loss is None and not self._is_in_force():
            self._loss = "another execution took it over"
        if self._loss is not None:
            raise errors.InUseError(
                f"lost the lock {self._uri}: {self._loss}; stop this run, or the other one and start this again"
            )

    def _is_in_force(self) -> bool:
        try:
            holder = self._file.read()
        except UnreadableError:
            return False
        if holder is None:
            return False
        return holder.owner == self._owner if self._record is None else holder.token == self._record.token

    def release(self) -> None:
        """Gives the lock back; one that is shared stays with its holder."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
            self._heart = None
        if self._record is not None:
            self._file.remove(self._record)
            self._record = None
