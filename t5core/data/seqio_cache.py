"""The files of a cache that SeqIO wrote for a task: which splits they hold, whether they are all there, their content.

TensorFlow-free; the examples themselves are read in `seqio_cached`.
"""

from __future__ import annotations

import re
from typing import Any

from t5core import errors, storage
from t5core.data import files

_COMPLETED = "COMPLETED"


def splits(folder: str, *, task: str) -> dict[str, int]:
    """Returns the number of examples of each split in the cache at `folder`.

    Raises:
      DataError: there is no cache, it was not finished, or files of it are missing.
    """
    names = _names(folder, task=task)
    found = sorted(match[1] for match in (re.fullmatch(r"info\.(.+)\.json", name) for name in names) if match)
    if not found:
        raise errors.DataError(
            f"task {task!r}: {folder} is no SeqIO cache, as it holds no info.SPLIT.json; name the folder of one task"
        )
    if _COMPLETED not in names:
        raise errors.DataError(
            f"task {task!r}: the SeqIO cache {folder} was not finished, as {_COMPLETED} is missing; write it again"
        )
    for split in found:
        _shards(folder, split, names=names, task=task)
    return {split: int(_json(f"{folder}/stats.{split}.json", task=task).get("examples", 0)) for split in found}


def digest(folder: str, *, task: str) -> str:
    """Returns the digest of every split in the cache at `folder`."""
    names = _names(folder, task=task)
    contents: dict[str, Any] = {}
    for split in splits(folder, task=task):
        shards = _shards(folder, split, names=names, task=task)
        contents[split] = [_json(f"{folder}/info.{split}.json", task=task), *map(files.digest, shards)]
    return storage.fingerprint(contents)


def _names(folder: str, *, task: str) -> set[str]:
    place = storage.path(folder)
    if not place.is_dir():
        raise errors.DataError(f"task {task!r}: there is no folder {folder}; check the path of the SeqIO cache")
    return {entry.name for entry in place.iterdir()}


def _shards(folder: str, split: str, *, names: set[str], task: str) -> list[str]:
    """Returns the files of a split, in order, after looking that none is missing."""
    count = int(_json(f"{folder}/info.{split}.json", task=task).get("num_shards", 0))
    expected = [f"{split}.tfrecord-{number:05d}-of-{count:05d}" for number in range(count)]
    missing = [name for name in expected if name not in names]
    if missing or not expected:
        raise errors.DataError(
            f"task {task!r}: the SeqIO cache {folder} lacks {missing[0] if missing else f'the files of {split!r}'} "
            f"({len(missing)} of {count} missing); copy it again, as TFRecords"
        )
    return [f"{folder}/{name}" for name in expected]


def _json(file: str, *, task: str) -> dict[str, Any]:
    try:
        content = storage.read_json(file)
    except FileNotFoundError as error:
        raise errors.DataError(f"task {task!r}: the SeqIO cache lacks {file}; write it again") from error
    if not isinstance(content, dict):
        raise errors.DataError(f"task {task!r}: {file} holds no object; write the SeqIO cache again")
    return content
