"""Rows of different lengths, without padding."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Int, Shaped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ragged:
    """One feature of several examples: their tokens one after another, and how many each has.

    Attributes:
      values: all tokens.
      sizes: tokens of each example.
      texts: the text behind each example, '' where it does not matter; () if there is none.
      cut: which examples lost tokens, where that is known already.
    """

    values: Int[np.ndarray, " tokens"]
    sizes: Int[np.ndarray, " examples"]
    texts: tuple[str, ...] = ()
    cut: Bool[np.ndarray, " examples"] | None = None

    def first(self, count: int) -> Ragged:
        """Returns the first `count` examples, or all if there are fewer."""
        return Ragged(
            values=self.values[: self.sizes[:count].sum()],
            sizes=self.sizes[:count],
            texts=self.texts[:count],
            cut=None if self.cut is None else self.cut[:count],
        )

    def only(self, kept: Bool[np.ndarray, " examples"]) -> Ragged:
        """Returns the examples where `kept` holds."""
        return Ragged(
            values=self.values[np.repeat(kept, self.sizes)],
            sizes=self.sizes[kept],
            texts=tuple(text for text, stays in zip(self.texts, kept, strict=False) if stays),
            cut=None if self.cut is None else self.cut[kept],
        )

    def at_most(self, length: int) -> Ragged:
        """Returns the examples without what is beyond `length` tokens; they do not tell what they lost."""
        if not self.sizes.size or self.sizes.max() <= length:
            return Ragged(values=self.values, sizes=self.sizes)
        return Ragged(values=self.values[self.positions < length], sizes=np.minimum(self.sizes, length))

    @property
    def positions(self) -> Int[np.ndarray, " tokens"]:
        """The position of each token in its example."""
        return np.arange(len(self.values)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)

    def counts(self, flags: Bool[np.ndarray, " tokens"]) -> Int[np.ndarray, " examples"]:
        """Returns for how many tokens of each example a flag is set."""
        sums, ends = np.concatenate([[0], np.cumsum(flags)]), np.cumsum(self.sizes)
        return sums[ends] - sums[ends - self.sizes]

    def padded(self, length: int) -> Shaped[np.ndarray, "examples length"]:
        """Returns one row for each example, filled up with 0 to `length`; none is longer."""
        rows = np.zeros((len(self.sizes), length), self.values.dtype)
        rows[np.arange(length) < self.sizes[:, None]] = self.values
        return rows
