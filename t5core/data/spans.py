"""Span noise in numpy: which tokens of many texts are hidden, and what stands in their place."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from t5core.data import philox
from t5core.data.ragged import Ragged

Flags = Bool[np.ndarray, " tokens"]


def span_mask(
    sizes: Int[np.ndarray, " rows"], *, counts: Int[np.ndarray, "rows 2"], draws: Int[np.ndarray, "rows length"]
) -> Flags:
    """Returns which tokens are hidden, row after row: spans of random lengths, the first token being kept.

    Args:
      sizes: tokens of each row.
      counts: how many tokens are hidden, and in how many spans.
      draws: random words; those of the hidden tokens come first.
    """
    noise, spans = counts[:, 0], counts[:, 1]
    width = max(1, int(spans.max(initial=1)))
    hidden = _random_parts(noise, spans, draws=draws, first=np.zeros_like(noise), width=width)
    kept = _random_parts(sizes - noise, spans, draws=draws, first=noise, width=width)
    lengths = np.stack([kept, hidden], axis=2)
    return np.repeat(np.tile(np.array([False, True]), lengths.size // 2), lengths.ravel())


def _random_parts(
    totals: Int[np.ndarray, " rows"],
    parts: Int[np.ndarray, " rows"],
    *,
    draws: Int[np.ndarray, "rows length"],
    first: Int[np.ndarray, " rows"],
    width: int,
) -> Int[np.ndarray, "rows width"]:
    """Returns the lengths of random parts of each total, 0 behind the last; a total is one part at least.

    The cuts go behind the places of the largest of the total's draws, which begin at `first`; its last place has none,
    and of equal draws the earlier place wins.
    """
    length = draws.shape[1]
    places = np.arange(length)
    index = np.minimum(first[:, None] + places, length - 1)
    mantissas = np.take_along_axis(draws, index, axis=1).astype(np.int64) & philox.MANTISSA
    # One number orders draw and place: the larger the draw the smaller it is.
    keys = ((philox.MANTISSA - mantissas) << 20) | places
    keys[places >= (totals - 1)[:, None]] = np.iinfo(np.int64).max
    ranked = np.sort(keys, axis=1)
    cuts = np.maximum(parts - 1, 0)
    threshold = np.take_along_axis(ranked, np.maximum(cuts - 1, 0)[:, None], axis=1)
    ends = (keys <= threshold) & (cuts > 0)[:, None]
    row, place = np.nonzero(ends)
    number = np.arange(len(row)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    edges = np.zeros((len(totals), width + 1), np.int64)
    edges[:, 1:] = totals[:, None]
    edges[row, number + 1] = place + 1
    return np.diff(edges, axis=1)


def with_sentinels(rows: Ragged, replaced: Flags, first_sentinel: int, *, marked: Bool[np.ndarray, " rows"]) -> Ragged:
    """Returns the rows with each run where `replaced` holds made into one sentinel, counted down from the first.

    Where a row is not `marked`, such a run leaves no trace.
    """
    starts = replaced.copy()
    starts[1:] &= ~replaced[:-1] | (rows.positions[1:] == 0)
    starts &= np.repeat(marked, rows.sizes)
    number = np.concatenate([[0], np.cumsum(starts)])
    ends = np.cumsum(rows.sizes)
    before = np.repeat(number[ends - rows.sizes], rows.sizes)
    values = np.where(starts, first_sentinel + 1 - (number[1:] - before), rows.values)
    stays = starts | ~replaced
    kept = np.concatenate([[0], np.cumsum(stays)])
    return Ragged(values=values[stays].astype(np.int32), sizes=kept[ends] - kept[ends - rows.sizes])
