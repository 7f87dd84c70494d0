"""Tokenised examples between the processes that make them and the dataset that they become: a folder of files.

A shard holds the examples of a part of a split in one pass. It appears under its name whole or not at all, so whoever
starts again after a kill goes on with the shards that are missing. The folder lies beside the dataset that it is for,
named by the same fingerprint, and goes away once the dataset is committed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5core import errors, outages, storage
from t5core.config.base import StrictModel
from t5core.data.files import Piece
from t5core.data.ragged import Ragged

_RECORD = "record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one process makes at a time: the part `index` of a split, in every pass that differs.

    Attributes:
      split: which it belongs to.
      index: its place among the parts of the split.
      passes: how often it is made.
      piece: of a file, which it is made from, and the number of its first document; None for the whole split.
      of: of so many parts of a SeqIO source it is one; None for the whole split.
    """

    split: str
    index: int
    passes: int
    piece: tuple[int, Piece] | None = None
    of: int | None = None

    def file(self, number: int) -> str:
        """Returns the name of the shard of one pass."""
        return f"{self.split}-{self.index:06d}-{number:03d}.npz"

    @property
    def files(self) -> list[str]:
        """The names of its shards."""
        return [self.file(number) for number in range(self.passes)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """All parts of a task, the longest to make first.

    Attributes:
      sides: the features of its examples.
      parts: what they are made in.
      size: bytes of its text, about; 0 where only SeqIO could tell.
    """

    sides: tuple[str, ...]
    parts: tuple[Part, ...]
    size: int

    def has(self, split: str) -> bool:
        """Tells whether the task has a split."""
        return any(part.split == split for part in self.parts)


class ShardRecord(StrictModel):
    """What became of the examples of a shard, counted as in a SplitRecord.

    Attributes:
      others: what examples hold beside their features, row by row; of validation examples only.
      sample: texts for judging the vocabulary.
    """

    truncated: dict[str, int] = {}
    dropped: dict[str, int] = {}
    noted: dict[str, int] = {}
    first: dict[str, str] = {}
    unknown_tokens: int = 0
    others: list[dict[str, Any]] = []
    sample: list[str] = []


class ShardRows:
    """Collects rows."""

    def __init__(self) -> None:
        self._values: dict[str, list[np.ndarray]] = {}
        self._sizes: dict[str, list[np.ndarray]] = {}

    def append(self, rows: Mapping[str, Ragged]) -> None:
        """Appends rows; each feature has as many."""
        for side, tokens in rows.items():
            values = tokens.values
            fits = values.size and values.min() >= 0 and values.max() < 1 << 16
            self._values.setdefault(side, []).append(values.astype(np.uint16) if fits else values)
            self._sizes.setdefault(side, []).append(tokens.sizes.astype(np.int32))

    def save(self, uri: str, record: ShardRecord) -> None:
        """Writes the shard, atomically."""
        arrays: dict[str, np.ndarray] = {}
        for side, values in self._values.items():
            arrays[f"values/{side}"] = np.concatenate(values)
            arrays[f"sizes/{side}"] = np.concatenate(self._sizes[side])
        arrays[_RECORD] = np.frombuffer(record.model_dump_json().encode("utf-8"), np.uint8)
        content = io.BytesIO()
        np.savez(content, **arrays)  # pyright: ignore[reportArgumentType] - no array is called allow_pickle
        storage.write_bytes(uri, content.getvalue())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The rows of a shard, by feature, and what became of its examples."""

    features: Mapping[str, Ragged]
    record: ShardRecord

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self.features.values())).sizes) if self.features else 0


def load(uri: str) -> Shard:
    """Returns the shard at `uri`.

    Raises:
      RecoverableError: it is not there any more, or damaged; then it is deleted, so that it is made again.
    """
    try:
        with np.load(io.BytesIO(storage.path(uri).read_bytes()), allow_pickle=False) as content:
            arrays = dict(content)
    except FileNotFoundError as error:
        raise errors.RecoverableError(f"{uri} is gone while its dataset is made of it; run again") from error
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        storage.path(uri).unlink(missing_ok=True)
        raise errors.RecoverableError(f"{uri} was damaged and is deleted; run again") from error
    record = ShardRecord.model_validate_json(arrays.pop(_RECORD).tobytes())
    sides = [name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")]
    features = {side: Ragged(values=arrays[f"values/{side}"], sizes=arrays[f"sizes/{side}"]) for side in sides}
    return Shard(features=features, record=record)


class ShardFolder:
    """The shards of a dataset that is being made."""

    def __init__(self, dataset: str) -> None:
        self.uri = f"{dataset.rstrip('/')}.shards"

    def names(self, *, ending: str = ".npz") -> set[str]:
        """Returns the names of the shards that are finished, or of other files by how they end."""
        folder = storage.path(self.uri)
        if not folder.exists():
            return set()
        return {entry.name for entry in folder.iterdir() if entry.name.endswith(ending)}

    @contextlib.contextmanager
    def removed_after_a_failure(self) -> Iterator[None]:
        """Removes all shards when the block fails, unless another attempt may succeed: they serve that one."""
        try:
            yield
        except Exception as error:
            if not outages.is_outage(error):
                self.remove()
            raise

    def remove(self) -> None:
        """Removes all shards."""
        if storage.is_remote(self.uri):
            storage.path(self.uri).rmtree(missing_ok=True)
        else:
            shutil.rmtree(self.uri, ignore_errors=True)
