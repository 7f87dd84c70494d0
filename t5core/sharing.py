"""What several runs need is made once: one of them makes it, and those that come meanwhile wait and take it.

`<root>/made/<key>.lock` is held by the one that makes, and `<root>/made/<key>.json` says that it was made, so that
a thing that is gone can be told from one that never was. `turn` keeps apart what else one does after the other.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from t5core import errors, progress, records
from t5core.config.base import StrictModel
from t5core.lock import RunLock

_Made = TypeVar("_Made")
POLL_SECONDS = 1.0


class _MadeRecord(StrictModel):
    made: str  # ISO 8601, UTC


def made_once(
    root: str, key: str, *, find: Callable[[], _Made | None], make: Callable[[], _Made], note: bool = True
) -> _Made:
    """Returns what `find` finds, else what `make` makes while all others that ask for `key` wait.

    One that dies while it makes is followed by the next; `make` has to cope with what that one left.

    Args:
      root: folder of the runs.
      key: names the thing by content; it may be a name of a file.
      find: returns the thing if it is there, whole.
      make: makes it.
      note: whether to write down that it was made; not for what goes away when it has served.

    Raises:
      RunDirectoryError: nothing can be written below `root`.
    """
    found = find()
    if found is not None:
        return found
    with turn(f"{_folder(root)}/{key}.lock", busy=f"{key} is being made by another run"):
        found = find()
        if found is not None:
            return found
        made = make()
        if note:
            records.write(_record_uri(root, key), _MadeRecord(made=datetime.datetime.now(datetime.UTC).isoformat()))
    return made


def when_made(root: str, key: str) -> str | None:
    """Returns the day on which `key` was made last, or None when it never was.

    Raises:
      IntegrityError: the record of that is damaged.
    """
    record = records.read(
        _record_uri(root, key), _MadeRecord, otherwise="does not say when it was made; delete it and run again"
    )
    return None if record is None else record.made[:10]


@contextlib.contextmanager
def turn(uri: str, *, busy: str, owner: str | None = None) -> Iterator[None]:
    """Holds the lock at `uri`, once nobody else does; one that died is followed by the next.

    Args:
      uri: of the lock.
      busy: what is said when another holds it, such as 'x is being made by another run'.
      owner: what wants it, unique to it; None: this process.

    Raises:
      RunDirectoryError: nothing can be written there.
    """
    lock, said = RunLock(uri, owner=owner), False
    while True:
        try:
            lock.acquire()
        except errors.InUseError:
            if not said:
                progress.say(f"  {busy}: waiting for it")
                said = True
            time.sleep(POLL_SECONDS)
        else:
            break
    try:
        yield
    finally:
        lock.release()


def _folder(root: str) -> str:
    return f"{root.rstrip('/')}/made"


def _record_uri(root: str, key: str) -> str:
    return f"{_folder(root)}/{key}.json"
