"""The file of a lock, on a disk or in an object store: created, taken over and refreshed without two holders."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Protocol

import fsspec
import pydantic

from t5core import storage
from t5core.config.base import StrictModel
from t5core.process import ProcessIdentity

_SETTLE_SECONDS = 2.0  # how far apart two writers of one object can be and still see who came last


class LockRecord(StrictModel):
    """What the file says; `token` is new at each acquisition, `heartbeat` is the last sign of life."""

    owner: str
    process: ProcessIdentity
    token: str
    heartbeat: datetime.datetime

    @classmethod
    def new(cls, *, owner: str, process: ProcessIdentity) -> LockRecord:
        """Returns a record that is in force from now on."""
        return cls(owner=owner, process=process, token=uuid.uuid4().hex, heartbeat=_now())

    def refreshed(self) -> LockRecord:
        """Returns this record with a heartbeat of now."""
        return self.model_copy(update={"heartbeat": _now()})

    def age_seconds(self) -> float:
        """Returns the seconds since the last heartbeat."""
        return max(0.0, (_now() - self.heartbeat).total_seconds())  # clocks differ

    def content(self) -> bytes:
        """Returns the record as JSON, of one length whatever the heartbeat."""
        heartbeat = self.heartbeat.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (json.dumps({**self.model_dump(), "heartbeat": heartbeat}, indent=2) + "\n").encode("utf-8")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class UnreadableError(Exception):
    """The file holds no record: its writer died in the middle, or it is no lock at all. `age_seconds` is its age."""

    def __init__(self, age_seconds: float) -> None:
        super().__init__(f"no record in a lock file of {age_seconds:.0f} s")
        self.age_seconds = age_seconds


class LockFile(Protocol):
    """Where the record of one lock is kept."""

    def read(self) -> LockRecord | None:
        """Returns the record in force, or None when there is none; raises UnreadableError when it is not a record."""
        ...

    def create(self, record: LockRecord) -> bool:
        """Returns whether `record` came into force; False when another is."""
        ...

    def replace(self, record: LockRecord, *, previous: LockRecord | None) -> bool:
        """Returns whether `record` took the place of `previous` (None: of what is not a record)."""
        ...

    def refresh(self, record: LockRecord) -> bool:
        """Returns whether the lock is still the holder's, and writes `record` with its new heartbeat if so."""
        ...

    def remove(self, record: LockRecord) -> None:
        """Ends the lock if it is still the holder's."""
        ...


def lock_file(uri: str) -> LockFile:
    """Returns the lock file at `uri`."""
    return _ObjectLockFile(uri) if storage.is_remote(uri) else _LocalLockFile(uri)


class _LocalLockFile:
    """A file whose inode is the lock: a holder writes into the file that it made, and so never over another's."""

    def __init__(self, uri: str) -> None:
        self._path = os.path.abspath(uri)
        self._held: int | None = None

    def read(self) -> LockRecord | None:
        try:
            with open(self._path, "rb") as handle:
                content, changed = handle.read(), os.fstat(handle.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return _parse(content, age_seconds=time.time() - changed)

    def create(self, record: LockRecord) -> bool:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        try:
            self._held = _new_file(self._path, record.content())
        except FileExistsError:
            return False
        return True

    def replace(self, record: LockRecord, *, previous: LockRecord | None) -> bool:
        with self._guarded() as in_force:
            if not in_force or not self._still_holds(previous):
                return False
            scratch = f"{self._path}.{record.token}"
            self._held = _new_file(scratch, record.content())
            os.replace(scratch, self._path)
        return True

    def refresh(self, record: LockRecord) -> bool:
        if not self._is_ours():
            return False
        assert self._held is not None
        os.pwrite(self._held, record.content(), 0)
        return True

    def remove(self, record: LockRecord) -> None:
        with self._guarded() as in_force:
            if in_force and self._is_ours():
                os.unlink(self._path)
        if self._held is not None:
            os.close(self._held)
            self._held = None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Keeps two from replacing one file at once; False when the file was replaced while waiting for the turn."""
        try:
            current = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            yield False
            return
        try:
            fcntl.flock(current, fcntl.LOCK_EX)
            yield _same_file(current, self._path)
        finally:
            os.close(current)

    def _still_holds(self, previous: LockRecord | None) -> bool:
        try:
            current = self.read()
        except UnreadableError:
            return previous is None
        return current is not None and previous is not None and current.token == previous.token

    def _is_ours(self) -> bool:
        return self._held is not None and _same_file(self._held, self._path)


def _new_file(path: str, content: bytes) -> int:
    """Returns the descriptor of a file that did not exist before; leaves none when there is no space for `content`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
    except OSError:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


def _same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class _ObjectLockFile:
    """An object: its creation is exclusive; of two that take it over at once, both look again and one gives way."""

    def __init__(self, uri: str) -> None:
        self._files, self._path = fsspec.core.url_to_fs(uri)

    def read(self) -> LockRecord | None:
        try:
            with _outages_as_os_errors():
                content = self._files.cat_file(self._path)
        except FileNotFoundError:
            return None
        return _parse(content, age_seconds=0.0)

    def create(self, record: LockRecord) -> bool:
        try:
            with _outages_as_os_errors():
                self._files.pipe_file(self._path, record.content(), mode="create")
        except FileExistsError:
            return False
        return True

    def replace(self, record: LockRecord, *, previous: LockRecord | None) -> bool:
        if not self._write_over(previous, record=record):
            return False
        time.sleep(_SETTLE_SECONDS)
        return self._holds(record)

    def refresh(self, record: LockRecord) -> bool:
        return self._write_over(record, record=record)

    def _write_over(self, previous: LockRecord | None, *, record: LockRecord) -> bool:
        """Returns whether `previous` was in force, and writes `record` over it if so."""
        if not self._holds(previous):
            return False
        with _outages_as_os_errors():
            self._files.pipe_file(self._path, record.content())
        return True

    def remove(self, record: LockRecord) -> None:
        if self._holds(record):
            with _outages_as_os_errors():
                self._files.rm_file(self._path)

    def _holds(self, record: LockRecord | None) -> bool:
        try:
            current = self.read()
        except UnreadableError:
            return record is None
        return current is not None and record is not None and current.token == record.token


@contextlib.contextmanager
def _outages_as_os_errors() -> Iterator[None]:
    """Object stores report an outage with their own kinds of exception, each library with others."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _parse(content: bytes, *, age_seconds: float) -> LockRecord:
    try:
        return LockRecord.model_validate_json(content)
    except pydantic.ValidationError as error:
        raise UnreadableError(age_seconds) from error
