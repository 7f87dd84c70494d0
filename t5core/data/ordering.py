"""Orders that are computed, never stored: keyed permutations, and a mixture's interleaving of its tasks.

Everything is a pure function of keys and positions, so that any part of an order can be had without the rest, on any
host and whatever came before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt64

ROUNDS = 8
# Constants of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key(*parts: int | str) -> int:
    """Returns 64 bits that differ wherever any of `parts` does."""
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode("utf-8"), digest_size=8).digest(), "little")


def _mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def hashed(values: Int[np.ndarray, " n"], *, key: int) -> UInt64[np.ndarray, " n"]:
    """Returns 64 pseudo-random bits for each value, another set for each key."""
    return _mix(_mix(values.astype(np.uint64) + np.uint64(key)) + _GOLDEN)


class Permutation:
    """A pseudo-random permutation of 0..size-1 by key, computed for any index at any time in constant memory.

    A Feistel network permutes the numbers of as many bits as `size` needs; a result outside the range is permuted again
    until it lies inside (cycle walking), which takes fewer than two turns on average.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 4.
    """

    def __init__(self, size: int, *, key: int) -> None:
        assert size > 0, "there is nothing to permute"
        self.size = size
        self._key = key
        bits = max(2, (size - 1).bit_length())
        self._right_bits = np.uint64(bits // 2)
        self._left_bits = np.uint64(bits - bits // 2)

    def __call__(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns where each index goes."""
        values = self._network(np.asarray(indices).astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            values[outside] = self._network(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _network(self, values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        one = np.uint64(1)
        left_bits, right_bits = self._left_bits, self._right_bits
        for number in range(ROUNDS):
            left, right = values >> right_bits, values & ((one << right_bits) - one)
            noise = hashed(right, key=(self._key + number * int(_GOLDEN)) % (1 << 64))
            # The halves change places, and with them their widths: an even number of rounds restores those.
            values = (right << left_bits) | ((left ^ noise) & ((one << left_bits) - one))
            left_bits, right_bits = right_bits, left_bits
        return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOrder:
    """The order in which the rows of one task are read: every row once, then every row again in another order.

    Attributes:
      pass_rows: rows of each pass of the task's dataset, one after another; a pass is read to its end before the next.
      seed: of the order; None reads rows as they lie, each time the same.
      name: of the task, so that two tasks of the same size differ.
    """

    pass_rows: tuple[int, ...]
    seed: int | None
    name: str

    def rows(self, reads: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns the row of the dataset that each read takes, counted from 0 over the whole mixture."""
        total = sum(self.pass_rows)
        turns, within = np.divmod(np.asarray(reads, np.int64), total)
        if self.seed is None:
            return within
        ends = np.cumsum(self.pass_rows)
        passes = np.searchsorted(ends, within, side="right")
        rows = np.empty_like(within)
        for turn, number in {*zip(turns.tolist(), passes.tolist(), strict=True)}:
            here = (turns == turn) & (passes == number)
            begin = ends[number] - self.pass_rows[number]
            order = Permutation(self.pass_rows[number], key=key(self.seed, "task", self.name, turn, number))
            rows[here] = begin + order(within[here] - begin)
        return rows


def interleave(
    counts: Sequence[int], *, seed: int | None, block: int = 4096
) -> Iterator[tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]]:
    """Yields a mixture in order, about `block` reads at a time: the task of each read and its number within the task.

    Read j of a task with n reads falls somewhere in [j/n, (j+1)/n) of the whole, so every stretch of the mixture holds
    each task at its rate, to within one read at either end. Where exactly is drawn by `seed`; with None it is the
    middle. The result does not depend on `block`.
    """
    total = sum(counts)
    windows = max(1, -(-total // block))
    for window in range(windows):
        begin, end = window / windows, (window + 1) / windows
        parts = [_within(task, count, begin=begin, end=end, seed=seed) for task, count in enumerate(counts)]
        places = np.concatenate([places for places, _ in parts])
        tasks = np.repeat(np.arange(len(counts)), [len(places) for places, _ in parts])
        reads = np.concatenate([reads for _, reads in parts])
        order = np.lexsort((tasks, places))
        yield tasks[order], reads[order]


def _within(
    task: int, count: int, *, begin: float, end: float, seed: int | None
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Returns the places of a task's reads that fall in [begin, end), and their numbers."""
    first, last = max(0, int(begin * count) - 2), min(count, int(end * count) + 2)
    reads = np.arange(first, max(first, last), dtype=np.int64)
    if seed is None:
        offsets = np.full(len(reads), 0.5)
    else:
        offsets = (hashed(reads, key=key(seed, "interleave", task)) >> np.uint64(11)) * 2.0**-53
    places = (reads + offsets) / max(1, count)
    # The very last place may round up to 1.
    inside = (places >= begin) & ((places < end) | (end == 1.0))
    return places[inside], reads[inside]
