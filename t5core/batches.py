"""The batches of a training run by step, whatever kind of dataset they come from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from t5core import agreement, counting, errors
from t5core.data.prefetch import Prefetcher
from t5core.loop import Batches

HostBatch = Mapping[str, np.ndarray]
_END = object()


class RandomAccess(Protocol):
    """A dataset that has the batch of any step at hand, as `t5core.data.reader.BatchReader` does."""

    def batch(self, step: int, *, rows: slice | None = None) -> Any:
        """Returns the batch of `step`, or some of its rows."""
        ...


def of_reader(reader: RandomAccess, *, rows: slice, first: int = 0) -> Callable[[int, int], Batches]:
    """Returns what opens the batches of steps [start, stop), read ahead in the background.

    Args:
      reader: of global batches.
      rows: those that this process feeds to its devices.
      first: the step that takes the dataset's first batch.
    """

    def opened(start: int, stop: int) -> Batches:
        return Prefetcher(lambda step: reader.batch(step - first, rows=rows), range(start, stop))

    return opened


def of_dataset(dataset: Any, *, rows: slice, first: int = 0) -> Callable[[int, int], Batches]:
    """Returns what opens the batches of steps [start, stop) of whatever a `get_dataset_fn` returned.

    A dataset with random access goes to a step at once. Any other is iterated from its beginning, and the batches of
    the steps that are done are skipped: a run that goes on reads what a straight run would have read if the dataset
    gives the same batches in the same order each time, which is the dataset's to see to.

    Args:
      dataset: something with `batch(step, rows=...)`, or a tf.data.Dataset or any iterable of this process's part of
        each batch, as mappings of arrays.
      rows: those of a global batch that this process feeds to its devices.
      first: the step that takes the dataset's first batch.

    Raises:
      DataError: it is none of these.
    """
    if _has_random_access(dataset):
        return of_reader(dataset, rows=rows, first=first)
    check(dataset)
    return _InOrder(dataset, num_rows=rows.stop - rows.start, first=first)


def check(dataset: Any) -> None:
    """Refuses what cannot be trained on.

    Raises:
      DataError: it is neither of the kinds that `of_dataset` knows.
    """
    if _has_random_access(dataset):
        return
    if not isinstance(dataset, Iterable) or isinstance(dataset, Mapping | str):
        raise errors.DataError(
            f"get_dataset_fn returned a {type(dataset).__name__}; return an iterable of batches, a tf.data.Dataset, or "
            f"something with batch(step, rows=...)"
        )


def _has_random_access(dataset: Any) -> bool:
    return not _is_tensorflow(dataset) and hasattr(dataset, "batch")


def _is_tensorflow(dataset: Any) -> bool:
    return hasattr(dataset, "as_numpy_iterator")


def iterate(dataset: Any, *, skip: int = 0) -> Iterator[Any]:
    """Returns an iterator over a dataset without its first `skip` elements; arrays are numpy's."""
    if _is_tensorflow(dataset):
        return dataset.skip(skip).as_numpy_iterator()
    iterator = iter(dataset)
    for _ in range(skip):
        next(iterator, None)
    return iterator


def checked(batch: Any, *, num_rows: int, of: str) -> HostBatch:
    """Returns a process's part of a batch as arrays.

    Raises:
      DataError: it is no mapping, or has another number of rows than `num_rows`.
    """
    if not isinstance(batch, Mapping):
        raise errors.DataError(f"the batch of {of} is a {type(batch).__name__}; give a mapping of feature -> array")
    arrays = {name: np.asarray(values) for name, values in batch.items()}
    wrong = {name: array.shape for name, array in arrays.items() if array.shape[:1] != (num_rows,)}
    if wrong or not arrays:
        raise errors.DataError(
            f"the batch of {of} has the shapes {wrong}; each feature needs {num_rows} rows, this process's part"
        )
    return arrays


class _InOrder:
    """Opens the batches of an iterable, which only goes forwards."""

    def __init__(self, dataset: Any, *, num_rows: int, first: int) -> None:
        self._dataset, self._num_rows, self._first = dataset, num_rows, first
        self._iterator: Iterator[Any] | None = None
        self._taken = 0

    @contextlib.contextmanager
    def __call__(self, start: int, stop: int) -> Iterator[Iterator[tuple[int, HostBatch]]]:
        self._go_to(start - self._first)
        with Prefetcher(self._take, range(start, stop)) as ahead:
            yield _in_step(ahead)

    def _go_to(self, position: int) -> None:
        assert position >= self._taken, "a run goes forwards"
        if self._iterator is None:
            self._iterator = iterate(self._dataset, skip=position)
        elif position > self._taken:
            self._iterator = iterate(self._iterator, skip=position - self._taken)
        self._taken = position

    def _take(self, step: int) -> HostBatch:
        assert self._iterator is not None, "opened before"
        batch = next(self._iterator, _END)
        if batch is _END:
            taken = counting.count(self._taken, "batch", "batches")
            raise errors.DataError(
                f"the training dataset ended after {taken}, and step {step} needs another; repeat it, "
                f"add data, or lower total_steps or the batch size"
            )
        self._taken += 1
        return checked(batch, num_rows=self._num_rows, of=f"step {step}")


def _in_step(ahead: Iterator[tuple[int, HostBatch]]) -> Iterator[tuple[int, HostBatch]]:
    """Yields batches while every process has one: a process that went on alone would wait for the others for ever."""
    while True:
        failure = item = None
        try:
            item = next(ahead, None)
        except Exception as error:
            failure = error  # raised below: the others are waiting to hear of it
        having = agreement.counts(failure is None)
        if failure is not None:
            raise failure
        if not all(having):
            raise errors.DataError(
                f"process {having.index(0)} has no further batch while process {having.index(1)} has one; give every "
                f"process the same number of batches"
            )
        if item is None:
            return
        yield item
