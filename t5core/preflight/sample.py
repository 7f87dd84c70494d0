"""A sample of a task's text, read in a moment however large the text is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from t5core import storage
from t5core.config.data_schema import TaskConfig
from t5core.data import files, plain_rows
from t5core.data.sources import TRAIN, TaskSource, columns_of, tolerance_of

# Tokenised in 0.3 s.
CHARACTERS = 4_000_000
# Text up to this size is read whole, so that its figures are those of the text itself.
SMALL_BYTES = 16 << 20
_FILES_OPENED = 8
_HEAD_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Some of a task's documents to train on.

    Attributes:
      documents: texts by column.
      total: how many documents there are; estimated unless `is_counted`.
      is_counted: whether all of the text was read to count them.
    """

    documents: Sequence[Mapping[str, str]]
    total: int
    is_counted: bool

    @property
    def is_whole(self) -> bool:
        """Whether no document is missing."""
        return self.is_counted and len(self.documents) == self.total


def sample(task: TaskConfig) -> Sample:
    """Returns a sample of the documents of a task that brings its own text.

    Raises:
      DataError: there is no text, a row cannot be read, or nothing is left to train on.
    """
    names = files.matching(task.files, task=task.name) if task.files else ()
    if task.builtin or sum(map(size_of, names)) <= SMALL_BYTES:
        return _of_whole_text(task)
    return _of_heads(task, names)


def text_bytes(task: TaskConfig) -> int:
    """Returns the bytes of all files that the task names, 0 for a builtin corpus.

    Raises:
      DataError: a pattern matches nothing.
    """
    patterns = [*task.files, *task.validation_files]
    return sum(map(size_of, files.matching(patterns, task=task.name))) if patterns else 0


def size_of(file: str) -> int:
    """Returns the bytes of a file."""
    return storage.path(file).stat().length


def _of_whole_text(task: TaskConfig) -> Sample:
    """Takes every n-th document."""
    source = TaskSource(task)
    total = source.scan.documents[TRAIN]
    stride = max(1, source.scan.characters // CHARACTERS)
    chosen = itertools.islice(source.documents(TRAIN), 0, None, stride)
    return Sample(documents=[document.columns for document in chosen], total=total, is_counted=True)


def _of_heads(task: TaskConfig, names: Sequence[str]) -> Sample:
    """Takes the first documents of some files, and counts the documents of all from their density there."""
    inputs, targets = columns_of(task)
    columns = tuple(dict.fromkeys((*inputs, *targets)))
    opened = names[:: -(-len(names) // _FILES_OPENED)]
    documents = [
        texts
        for name in opened
        for texts in _head(name, task=task, columns=columns, characters=CHARACTERS // len(opened))
    ]
    density = sum(map(_rows_in_head, opened)) / max(1, sum(min(size_of(name), _HEAD_BYTES) for name in opened))
    held_out = 0.0 if task.validation_files else task.validation_fraction
    total = round(density * sum(map(size_of, names)) * (1 - held_out))
    return Sample(documents=documents[:total], total=total, is_counted=False)


def _head(name: str, *, task: TaskConfig, columns: Sequence[str], characters: int) -> Iterable[Mapping[str, str]]:
    taken = 0
    for row in plain_rows.read(files.Piece(name), columns=columns, tolerance=tolerance_of(task)):
        if taken >= characters:
            return
        taken += sum(map(len, row.columns.values()))
        left_out = row.mended and task.invalid_utf8 == "drop"
        if not left_out and any(text.strip() for text in row.columns.values()):
            yield row.columns


def _rows_in_head(name: str) -> float:
    """Returns the rows in the first bytes of a file, or their share of those that a Parquet file says it has."""
    if name.endswith(".parquet"):
        from pyarrow import parquet

        with storage.path(name).open("rb") as handle:
            rows = parquet.ParquetFile(handle).metadata.num_rows
        return rows * min(1.0, _HEAD_BYTES / size_of(name))
    with storage.path(name).open("rb") as handle:
        return handle.read(_HEAD_BYTES).count(b"\n")
