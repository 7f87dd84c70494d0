"""Folders that become visible whole or not at all.

On a disk a dataset is written beside its place and renamed into it; a writer that dies leaves only a scratch folder,
which the next writer of the same dataset sweeps away. An object store has no renames: there the dataset is written in
place, and counts as there when its manifest is, which comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import uuid
from collections.abc import Iterator

from t5core import storage


@contextlib.contextmanager
def refusals_as_errors(uri: str) -> Iterator[None]:
    """Turns what the system refuses while writing to `uri` into a RunDirectoryError of one line."""
    try:
        yield
    except OSError as error:
        raise storage.write_refused(uri, error) from error


class Scratch:
    """A place to write what shall appear at `target`; `folder` is where the files go meanwhile."""

    def __init__(self, target: str) -> None:
        self._target = target.rstrip("/")
        self._handle: int | None = None
        if storage.is_remote(target):
            self.folder = self._target
            return
        with refusals_as_errors(self._target):
            os.makedirs(os.path.dirname(os.path.abspath(self._target)), exist_ok=True)
            self._sweep()
            self.folder = self._claim()

    def _claim(self) -> str:
        """Returns a new folder that is locked: the kernel drops the lock when the writer dies, however it dies."""
        while True:
            folder = f"{self._target}.tmp-{uuid.uuid4().hex[:12]}"
            os.mkdir(folder)
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                self._handle = handle
                return folder
            os.close(handle)  # a sweeper took it between the two calls for a dead writer's

    def _sweep(self) -> None:
        """Removes the scratch folders of writers of the same target that died."""
        for folder in glob.glob(f"{glob.escape(self._target)}.tmp-*"):
            with contextlib.suppress(OSError):  # a living writer holds it, or another sweeper was faster
                handle = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(handle)

    def publish(self, *, marker: str) -> bool:
        """Moves the folder to the target and tells whether that worked; False when another writer was first.

        Args:
          marker: the file that a finished target holds; a folder without it is what somebody left and is replaced.
        """
        if self._handle is None:
            return True
        with refusals_as_errors(self._target):
            while True:
                try:
                    os.rename(self.folder, self._target)
                except OSError:
                    if os.path.exists(os.path.join(self._target, marker)):
                        return False
                    if not os.path.isdir(self._target):
                        raise
                    aside = f"{self._target}.tmp-{uuid.uuid4().hex[:12]}"
                    os.rename(self._target, aside)
                    shutil.rmtree(aside, ignore_errors=True)
                else:
                    self._release()
                    return True

    def discard(self) -> None:
        """Removes what was not published; does nothing after `publish` worked."""
        if self._handle is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        assert self._handle is not None
        os.close(self._handle)
        self._handle = None
