"""Tokenised examples on their way to a shard: trimmed, checked, counted."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from t5core import errors
from t5core.data.ragged import Ragged
from t5core.data.shards import ShardRows
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary


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
        rows = {side: batch[side].at_most(length) for side, length in self._lengths.items()}
        kept = rows["targets"].counts(rows["targets"].values != 0) > 0
        self.dropped["no targets"] += int(np.count_nonzero(~kept))
        written = rows if kept.all() else {side: tokens.only(kept) for side, tokens in rows.items()}
        for side, tokens in written.items():
            self.truncated[side] += int(np.count_nonzero(self._was_cut(batch[side], self._lengths[side]) & kept))
            if self._vocabulary.unk_id is not None:
                self.unknown_tokens += int(np.count_nonzero(tokens.values == self._vocabulary.unk_id))
        self.rows.append(written)
        return kept

    def _check_ids(self, side: str, values: Int[np.ndarray, " tokens"]) -> None:
        highest = self._vocabulary.vocab_size - 1
        outside = values[(values < 0) | (values > highest)]
        if outside.size:
            raise errors.DataError(
                f"{side} hold the token {outside[0]}, but the ids of the vocabulary go from 0 to "
                f"{highest}; name the vocabulary that the tokens were made with"
            )

    def _was_cut(self, feature: Ragged, length: int) -> Bool[np.ndarray, " examples"]:
        """Returns which examples lost tokens: here, or already in the task, where the text tells by its beginning."""
        if feature.cut is not None:
            return feature.cut
        cut, ends = feature.sizes > length, np.cumsum(feature.sizes)
        suspects = [number for number, text in enumerate(feature.texts) if text and feature.sizes[number] == length]
        encoded = self._vocabulary.encode_batch([feature.texts[number] for number in suspects])
        for number, ids in zip(suspects, encoded, strict=True):
            tokens = feature.values[ends[number] - length : ends[number]].tolist()
            begins_alike = tokens[:-1] == ids[: length - 1]
            cut[number] = begins_alike and len(ids) > length - (tokens[-1] == self._vocabulary.eos_id)
        return cut
