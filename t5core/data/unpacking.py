"""From stored rows back to examples: what packing put side by side, taken apart again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int

from t5core.data import store
from t5core.data.converters import DECODER, ENCODER, segment_ids
from t5core.data.store import RowReader

_ROWS_AT_ONCE = 256
_TARGETS, _WEIGHTS = "decoder_target_tokens", "decoder_loss_weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredExample:
    """One example of a row: its number there, from 1, and the ids of its inputs and targets without padding."""

    row: int
    segment: int
    inputs: Int[np.ndarray, " tokens"]
    targets: Int[np.ndarray, " tokens"]


def read_examples(
    uri: str, *, split: str = "train", start: int = 0, stop: int | None = None
) -> Iterator[StoredExample]:
    """Yields the examples in rows [start, stop) of a dataset, a task's or a mixture's; None reads to the end.

    Raises:
      DataError: no dataset at `uri`, or it lacks the split.
      IntegrityError: it is damaged.
    """
    reader = store.RowReader(uri, split=split)
    end = min(reader.num_rows, reader.num_rows if stop is None else stop)
    for first in range(start, end, _ROWS_AT_ONCE):
        yield from _examples_in(reader, first, min(end, first + _ROWS_AT_ONCE))


def _examples_in(reader: RowReader, first: int, last: int) -> Iterator[StoredExample]:
    stored = reader.read(first, last)
    for number in range(last - first):
        row = {name: values[number].astype(np.int64) for name, values in stored.items()}
        for segment in range(1, 1 + _segments(row)):
            inputs, targets = _sides(row, segment)
            yield StoredExample(row=first + number, segment=segment, inputs=inputs, targets=targets)


def _segments(row: Mapping[str, np.ndarray]) -> int:
    return int(row[segment_ids(DECODER)].max(initial=0)) if segment_ids(DECODER) in row else 1


def _sides(row: Mapping[str, np.ndarray], segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and the targets of a segment; a decoder-only model's inputs are what has no loss."""
    if "targets" in row:  # a task's own row
        return _filled(row.get("inputs", np.zeros(0, np.int64))), _filled(row["targets"])
    tokens = _of_segment(row, _TARGETS, DECODER, segment)
    if _WEIGHTS in row:
        is_target = _of_segment(row, _WEIGHTS, DECODER, segment) > 0
        return _filled(tokens[~is_target]), tokens[is_target]
    if "encoder_input_tokens" not in row:
        return np.zeros(0, np.int64), _filled(tokens)
    return _filled(_of_segment(row, "encoder_input_tokens", ENCODER, segment)), _filled(tokens)


def _of_segment(row: Mapping[str, np.ndarray], name: str, group: str, segment: int) -> np.ndarray:
    ids = row.get(segment_ids(group))
    return row[name] if ids is None else row[name][ids == segment]


def _filled(tokens: np.ndarray) -> np.ndarray:
    """Returns the tokens without the padding at their end."""
    present = np.flatnonzero(tokens)
    return tokens[: present[-1] + 1] if present.size else tokens[:0]
