"""Tokenised examples on their way from SeqIO to disk: padded, trimmed, counted."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from t5core import errors
from t5core.data.shards import ShardRows
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary


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

    def padded(self, length: int) -> Int[np.ndarray, "examples length"]:
        """Returns one row for each example, cut or filled with 0 to `length`."""
        rows = np.zeros((len(self.sizes), length), np.int32)
        starts = np.cumsum(self.sizes) - self.sizes
        position = np.arange(len(self.values)) - np.repeat(starts, self.sizes)
        row = np.repeat(np.arange(len(self.sizes)), self.sizes)
        kept = position < length
        rows[row[kept], position[kept]] = self.values[kept]
        return rows


class ExampleWriter:
    """Writes examples as rows and counts what became of them.

    Args:
      rows: where they go; to be saved by who made them.
      lengths: tokens of a row, by feature.
      vocabulary: spells every feature.
    """

    def __init__(
        self,
        rows: ShardRows,
        *,
        lengths: Mapping[str, int],
        vocabulary: SentencePieceVocabulary | ByteVocabulary,
    ) -> None:
        self.rows = rows
        self._lengths = dict(lengths)
        self._vocabulary = vocabulary
        self.truncated: collections.Counter[str] = collections.Counter()
        self.dropped: collections.Counter[str] = collections.Counter()
        self.unknown_tokens = 0

    def append(self, batch: Mapping[str, Ragged]) -> Bool[np.ndarray, " examples"]:
        """Writes a batch, but for examples without targets, and returns which were written.

        Raises:
          DataError: a token is beyond the vocabulary.
        """
        for side in self._lengths:
            self._check_ids(side, batch[side].values)
        padded = {side: batch[side].padded(length) for side, length in self._lengths.items()}
        kept = np.any(padded["targets"] != 0, axis=1)
        self.dropped["no targets"] += int(np.count_nonzero(~kept))
        for side, rows in padded.items():
            self.truncated[side] += int(np.count_nonzero(self._was_cut(batch[side], rows) & kept))
            if self._vocabulary.unk_id is not None:
                self.unknown_tokens += int(np.count_nonzero(rows[kept] == self._vocabulary.unk_id))
        self.rows.append({side: rows[kept] for side, rows in padded.items()})
        return kept

    def _check_ids(self, side: str, values: Int[np.ndarray, " tokens"]) -> None:
        highest = self._vocabulary.vocab_size - 1
        outside = values[(values < 0) | (values > highest)]
        if outside.size:
            raise errors.DataError(
                f"{side} hold the token {outside[0]}, but the ids of the vocabulary go from 0 to "
                f"{highest}; name the vocabulary that the tokens were made with"
            )

    def _was_cut(self, feature: Ragged, rows: Int[np.ndarray, "examples length"]) -> Bool[np.ndarray, " examples"]:
        """Returns which examples lost tokens: here, or already in the task, where the text tells by its beginning."""
        if feature.cut is not None:
            return feature.cut
        length = rows.shape[1]
        cut = feature.sizes > length
        suspects = [number for number, text in enumerate(feature.texts) if text and feature.sizes[number] == length]
        encoded = self._vocabulary.encode_batch([feature.texts[number] for number in suspects])
        for number, ids in zip(suspects, encoded, strict=True):
            begins_alike = rows[number, : length - 1].tolist() == ids[: length - 1]
            cut[number] = begins_alike and len(ids) > length - (rows[number, -1] == self._vocabulary.eos_id)
        return cut
