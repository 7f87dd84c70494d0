"""Texts as runs of tokens without padding, cut to lengths, each with randomness of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int64

from t5core.data import philox
from t5core.data.ragged import Ragged

MAX_CHUNKS = 1 << 24  # of one document, so that chunk and document together are one number
# Three odd numbers of 64 bits without a pattern, which spread tokens and their places over the hash.
SPREAD = np.array([-7046029254386353131, 5871781006564002453, 6786174184893116049], np.int64)
FOLD = 29


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunks:
    """Documents cut to a length, the last chunk of each being shorter; no token is lost, none is in two.

    Attributes:
      tokens: of the chunks.
      documents: the number of the document that each comes from.
      numbers: of each chunk within its document.
    """

    tokens: Ragged
    documents: Int64[np.ndarray, " chunks"]
    numbers: Int64[np.ndarray, " chunks"]

    @classmethod
    def of(cls, text: Ragged, *, length: int, numbers: Int64[np.ndarray, " documents"]) -> Chunks:
        """Returns the chunks of documents with these numbers."""
        counts = -(-text.sizes // length)
        document = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        sizes = np.minimum(text.sizes[document] - within * length, length)
        return cls(tokens=Ragged(values=text.values, sizes=sizes), documents=numbers[document], numbers=within)

    @classmethod
    def whole(cls, text: Ragged, *, numbers: Int64[np.ndarray, " documents"]) -> Chunks:
        """Returns the documents uncut, with randomness that none of their chunks has."""
        return cls(tokens=text, documents=numbers, numbers=np.full(len(numbers), MAX_CHUNKS - 1))

    def seeds(self, seed: int) -> Int64[np.ndarray, "chunks 2"]:
        """Returns what the randomness of each chunk starts from: the seed of the pass, what it holds, where it stands.

        The seed comes as the two numbers that SeqIO would draw from it for its first random preprocessor.
        """
        drawn = np.array([philox.first_of_dataset(seed), philox.first_of_dataset(seed + 1)], np.int64)
        place = self.documents * MAX_CHUNKS + self.numbers
        return drawn ^ np.stack([content_hashes(self.tokens), place], axis=1)


def content_hashes(rows: Ragged) -> Int64[np.ndarray, " rows"]:
    """Returns 64 bits for what each row holds and where in it; cheap to have in numpy and in TensorFlow alike."""
    mixed = rows.values.astype(np.int64) * SPREAD[0] + rows.positions * SPREAD[1]
    sums = np.concatenate([[0], np.cumsum((mixed ^ (mixed >> FOLD)) * SPREAD[2])])  # wraps, and so do differences
    ends = np.cumsum(rows.sizes)
    return sums[ends] - sums[ends - rows.sizes]


def trimmed(rows: Ragged, length: int, eos: int) -> Ragged:
    """Returns rows of `length` tokens at most, EOS among them, and which of them lost some."""
    room = length - 1
    kept = Ragged(values=rows.values[rows.positions < room], sizes=np.minimum(rows.sizes, room))
    return dataclasses.replace(with_end(kept, eos), cut=rows.sizes > room)


def with_end(rows: Ragged, token: int) -> Ragged:
    """Returns the rows with `token` at the end of each."""
    return Ragged(values=np.insert(rows.values, np.cumsum(rows.sizes), token), sizes=rows.sizes + 1)
