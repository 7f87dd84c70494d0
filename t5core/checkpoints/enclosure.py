"""The files of a folder that somebody else made, none of which may lead out of it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable

from t5core import errors, progress, storage

_BLOCK = 1 << 23


def files_of(folder: str) -> dict[str, int]:
    """Returns the size in bytes of each file below `folder`, by its path from there, in order.

    A link may lead to another place in the folder, or, in a snapshot of Hugging Face's cache, to the blobs beside it.

    Raises:
      CheckpointError: a link leads elsewhere, or there is something that is neither file nor folder.
    """
    if storage.is_remote(folder):
        return dict(sorted(_remote_files(storage.path(folder), "")))
    found = {}
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(where, name)
            _require_inside(folder, path)
            kind = os.stat(path).st_mode
            if stat.S_ISREG(kind):
                found[os.path.relpath(path, folder)] = os.path.getsize(path)
            elif os.path.islink(path) or not stat.S_ISDIR(kind):
                raise errors.CheckpointError(f"{path} is not a file of its own; copy the checkpoint without it")
    return dict(sorted(found.items()))


def _remote_files(folder: storage.epath.Path, prefix: str) -> Iterable[tuple[str, int]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _remote_files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.stat().length


def _require_inside(folder: str, path: str) -> None:
    if not os.path.islink(path):
        return
    root, target = os.path.realpath(folder), os.path.realpath(path)
    allowed = [root]
    if os.path.basename(os.path.dirname(root)) == "snapshots":
        allowed.append(os.path.join(os.path.dirname(os.path.dirname(root)), "blobs"))
    if not os.path.exists(target):
        raise errors.CheckpointError(f"{path} is a link to {os.readlink(path)!r}, where nothing is; copy the file")
    if not any(os.path.commonpath([target, place]) == place for place in allowed):
        raise errors.CheckpointError(
            f"{path} is a link that leads out of {folder}; do not trust it, or put the file itself there"
        )


def content_digest(folder: str, files: dict[str, int]) -> str:
    """Returns the SHA-256 in hex over names and content of `files` of `folder`."""
    lines = []
    with progress.stage("digest", total=max(sum(files.values()) >> 20, 1), unit="MB") as bar:
        read = 0
        for name in sorted(files):
            summed = hashlib.sha256()
            with (storage.path(folder) / name).open("rb") as handle:
                while block := handle.read(_BLOCK):
                    summed.update(block)
                    before, read = read >> 20, read + len(block)
                    bar.advance((read >> 20) - before)
            lines.append(f"{name} {files[name]} {summed.hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
