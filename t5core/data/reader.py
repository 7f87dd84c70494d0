"""Batches as a function of the step: no iterator, no state, nothing to save or to restore.

The rows of a dataset repeat for ever: once as they lie, then epoch after epoch, each in an order of its own that is
computed and not stored. Step s is rows [s*B, (s+1)*B) of that, whoever reads it and wherever training began; a host
reads its part of the rows and no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from t5core import counting, errors
from t5core.data import ordering, store
from t5core.data.converters import FeatureConverter
from t5core.data.prefetch import Prefetcher

Batch = dict[str, Int[np.ndarray, "rows length"]]


class BatchReader:
    """Reads the global batch of any step, or a host's part of it.

    Raises:
      DataError: there is no dataset at `uri`, or it is smaller than one batch.
      IntegrityError: it is damaged.
    """

    def __init__(self, uri: str, *, batch_size: int, converter: FeatureConverter, split: str = "train") -> None:
        self._rows = store.RowReader(uri, split=split)
        self._converter = converter
        self.batch_size = batch_size
        if self._rows.num_rows < batch_size:
            held = counting.count(self._rows.num_rows, "row")
            raise errors.DataError(
                f"{uri} holds {held} of {split!r}, fewer than one batch of {batch_size}; "
                "add data or lower the batch size"
            )

    @property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return self._rows.num_rows

    @property
    def steps_per_epoch(self) -> float:
        """Batches in one epoch; an epoch may end inside a batch."""
        return self.num_rows / self.batch_size

    def batch(self, step: int, *, rows: slice | None = None) -> Batch:
        """Returns T5X's model features for `step`, each int32[rows, length].

        Args:
          step: counted from 0 over the whole life of the run.
          rows: the part of the global batch to read, by position in it; None reads all of it.

        Raises:
          IntegrityError: what is stored differs from what was written.
        """
        assert step >= 0, f"step {step} is before the first"
        begin, end, stride = (rows or slice(None)).indices(self.batch_size)
        assert stride == 1, "a host reads neighbouring rows"
        return self._converter.to_model(self._read(step * self.batch_size + begin, step * self.batch_size + end))

    def prefetch(self, start: int, stop: int, *, rows: slice | None = None, depth: int = 2) -> Prefetcher[int, Batch]:
        """Returns an iterator over (step, batch) of steps [start, stop), read ahead in the background."""
        return Prefetcher(lambda step: self.batch(step, rows=rows), range(start, stop), depth=depth)

    def _read(self, begin: int, end: int) -> Batch:
        """Returns stored rows [begin, end) of the endless sequence of epochs."""
        parts = []
        while True:
            epoch, first = divmod(begin, self.num_rows)
            last = min(self.num_rows, first + end - begin)
            parts.append(self._read_epoch(epoch, first, last))
            begin += last - first
            if begin >= end:
                break
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _read_epoch(self, epoch: int, first: int, last: int) -> Batch:
        seed = self._rows.manifest.order_seed
        if epoch == 0 or seed is None:
            return self._rows.read(first, last)
        order = ordering.Permutation(self.num_rows, key=ordering.key(seed, "epoch", epoch))
        return self._rows.read_rows(order(np.arange(first, last)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationBatch:
    """A batch of evaluation: the first `num_rows` rows are the split's from `first_row` on, the rest is padding.

    Padding rows are all zeros, so their loss weights are too.
    """

    features: Batch
    first_row: int
    num_rows: int


def evaluation_batches(
    uri: str, *, split: str, batch_size: int, converter: FeatureConverter, max_rows: int | None = None
) -> Iterator[EvaluationBatch]:
    """Yields the rows of a task's split in order, each exactly once, in batches that all have `batch_size` rows.

    Args:
      uri: of a task's dataset, whose rows are unpacked examples.
      split: to evaluate.
      batch_size: rows of a batch; the last one is filled up with padding rows.
      converter: of the model.
      max_rows: stops after so many rows; None reads all.
    """
    reader = store.RowReader(uri, split=split)
    end = reader.num_rows if max_rows is None else min(max_rows, reader.num_rows)
    for first in range(0, end, batch_size):
        last = min(first + batch_size, end)
        features = converter.to_model(converter.from_task(reader.read(first, last)))
        padding = ((0, batch_size - (last - first)), (0, 0))
        yield EvaluationBatch(
            features={name: np.pad(values, padding) for name, values in features.items()},
            first_row=first,
            num_rows=last - first,
        )
