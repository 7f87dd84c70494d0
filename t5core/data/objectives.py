"""The objectives of tasks that bring their own text, in numpy: many documents at once and without TensorFlow.

`seqio_tasks.task_from_config` defines these tasks for SeqIO; what comes from here is the same, token for token, at a
small part of the cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from t5core.config.data_schema import TaskConfig
from t5core.data import philox, templates
from t5core.data.documents import Document
from t5core.data.examples import Ragged
from t5core.data.noise import SpanCorruption
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary

MAX_CHUNKS = 1 << 24  # of one document, so that chunk and document together are one number
# Three odd constants of 64 bits: primes near 2**64 divided by the golden ratio, by pi and by e.
SPREAD = np.array([-7046029254386353131, 5871781006564002453, 6786174184893116049], np.int64)
FOLD = 29

Tokens = Int[np.ndarray, " tokens"]
Flags = Bool[np.ndarray, " tokens"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenised:
    """Documents as tokens, before an objective made examples of them.

    Attributes:
      sides: the tokens of each text, by feature; text without inputs is `targets`.
      texts: the texts themselves, in a supervised task, for its metrics to read.
      numbers: of the documents in their split.
    """

    sides: Mapping[str, Ragged]
    texts: Mapping[str, Sequence[str]]
    numbers: Int64[np.ndarray, " documents"]


def supports(config: TaskConfig) -> bool:
    """Tells whether a task's examples can be made here; SeqIO makes the others."""
    return not config.is_seqio and config.objective in ("span_corruption", "prefix_lm", "lm", "supervised")


def sides(config: TaskConfig) -> tuple[str, ...]:
    """Returns the features of the examples of a task with its own text."""
    return ("targets",) if config.objective == "lm" else ("inputs", "targets")


class Objective:
    """Makes examples of the documents of one task.

    Args:
      config: the task; SeqIO's own are not for this class.
      vocabulary: spells every feature.
      lengths: tokens of a row, by feature.
    """

    def __init__(
        self,
        config: TaskConfig,
        *,
        vocabulary: SentencePieceVocabulary | ByteVocabulary,
        lengths: Mapping[str, int],
    ) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._lengths = lengths
        self.sides = sides(config)

    def tokenise(self, documents: Sequence[Document], *, first: int) -> Tokenised:
        """Returns the tokens of `documents`, the first of which has the number `first`; no pass changes them."""
        texts = self._texts(documents)
        numbers = np.arange(first, first + len(documents), dtype=np.int64)
        sides = {side: encoded(self._vocabulary, lines) for side, lines in texts.items()}
        return Tokenised(sides=sides, texts=texts if self._is_supervised else {}, numbers=numbers)

    @property
    def _is_supervised(self) -> bool:
        return self._config.objective == "supervised"

    def _texts(self, documents: Sequence[Document]) -> dict[str, list[str]]:
        config = self._config
        if not self._is_supervised:
            return {"targets": [document.columns[config.text] for document in documents]}
        pieces = {side: templates.parse(getattr(config, side), setting=side) for side in self.sides}
        return {side: ["".join(_filled(parts, document)) for document in documents] for side, parts in pieces.items()}

    def examples(self, tokenised: Tokenised, *, seed: int) -> dict[str, Ragged]:
        """Returns the features of the examples of a pass, which `seed` tells from other passes."""
        eos, text = self._vocabulary.eos_id, tokenised.sides["targets"]
        if self._is_supervised:
            return {side: _trimmed(tokens, self._lengths[side], eos) for side, tokens in tokenised.sides.items()}
        if self._config.objective == "lm":
            length = self._lengths["targets"]
            return {"targets": Chunks.of(_with_end(text, eos), length=length, numbers=tokenised.numbers).tokens}
        split = self._prefix_lm if self._config.objective == "prefix_lm" else self._span_corruption
        return {side: _with_end(tokens, eos) for side, tokens in split(text, tokenised.numbers, seed).items()}

    def _prefix_lm(self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int) -> dict[str, Ragged]:
        room = {side: self._lengths[side] - 1 for side in self.sides}
        chunks = Chunks.of(text, length=sum(room.values()), numbers=numbers)
        size = chunks.tokens.sizes
        lowest = np.maximum(np.minimum(1, size - 1), size - room["targets"])
        highest = np.maximum(lowest, np.minimum(size - 1, room["inputs"]))
        cut = philox.integers(chunks.seeds(seed), lowest, highest + 1)
        in_targets = _positions(chunks.tokens) >= np.repeat(cut, size)
        return {
            "inputs": Ragged(values=chunks.tokens.values[~in_targets], sizes=cut),
            "targets": Ragged(values=chunks.tokens.values[in_targets], sizes=size - cut),
        }

    def _span_corruption(self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int) -> dict[str, Ragged]:
        noise = SpanCorruption(
            noise_density=self._config.noise_density,
            mean_span_length=self._config.mean_noise_span_length,
            sentinels=self._vocabulary.sentinels,
        )
        length = noise.chunk_length(
            inputs_length=self._lengths["inputs"], targets_length=self._lengths["targets"], task=self._config.name
        )
        chunks = Chunks.of(text, length=length, numbers=numbers)
        counts = np.array([noise.counts(size) for size in range(length + 1)])[chunks.tokens.sizes]
        hidden = span_mask(chunks.tokens.sizes, counts=counts, draws=philox.uniform_bits(chunks.seeds(seed), length))
        first_sentinel = self._vocabulary.sentinel(0)
        return {
            "inputs": _with_sentinels(chunks.tokens, hidden, first_sentinel),
            "targets": _with_sentinels(chunks.tokens, ~hidden, first_sentinel),
        }


def encoded(vocabulary: SentencePieceVocabulary | ByteVocabulary, texts: Sequence[str]) -> Ragged:
    """Returns the tokens of `texts`, without EOS."""
    arrays = vocabulary.encode_arrays(list(texts))
    values = np.concatenate([np.zeros(0, np.int32), *arrays])
    return Ragged(values=values, sizes=np.array([len(array) for array in arrays], np.int64))


def _filled(pieces: Iterable[templates.Piece], document: Document) -> Iterable[str]:
    for literal, column in pieces:
        yield literal
        if column is not None:
            yield document.columns[column]


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

    def seeds(self, seed: int) -> Int64[np.ndarray, "chunks 2"]:
        """Returns what the randomness of each chunk starts from: the seed of the pass, what it holds, where it stands.

        The seed comes as the two numbers that SeqIO would draw from it for its first random preprocessor.
        """
        drawn = np.array([philox.first_of_dataset(seed), philox.first_of_dataset(seed + 1)], np.int64)
        place = self.documents * MAX_CHUNKS + self.numbers
        return drawn ^ np.stack([content_hashes(self.tokens), place], axis=1)


def content_hashes(rows: Ragged) -> Int64[np.ndarray, " rows"]:
    """Returns 64 bits for what each row holds and where in it; cheap to have in numpy and in TensorFlow alike."""
    mixed = rows.values.astype(np.int64) * SPREAD[0] + _positions(rows) * SPREAD[1]
    sums = np.concatenate([[0], np.cumsum((mixed ^ (mixed >> FOLD)) * SPREAD[2])])  # wraps, and so do differences
    ends = np.cumsum(rows.sizes)
    return sums[ends] - sums[ends - rows.sizes]


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
    mantissas = np.take_along_axis(draws, index, axis=1).astype(np.int64) & 0x7FFFFF
    # One number orders draw and place: the larger the draw the smaller it is.
    keys = ((0x7FFFFF - mantissas) << 20) | places
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


def _with_sentinels(rows: Ragged, replaced: Flags, first_sentinel: int) -> Ragged:
    """Returns the rows with each run where `replaced` holds made into one sentinel, counted down from the first."""
    starts = replaced.copy()
    starts[1:] &= ~replaced[:-1] | (_positions(rows)[1:] == 0)
    number = np.concatenate([[0], np.cumsum(starts)])
    ends = np.cumsum(rows.sizes)
    before = np.repeat(number[ends - rows.sizes], rows.sizes)
    values = np.where(starts, first_sentinel + 1 - (number[1:] - before), rows.values)
    stays = starts | ~replaced
    kept = np.concatenate([[0], np.cumsum(stays)])
    return Ragged(values=values[stays].astype(np.int32), sizes=kept[ends] - kept[ends - rows.sizes])


def _trimmed(rows: Ragged, length: int, eos: int) -> Ragged:
    """Returns rows of `length` tokens at most, EOS among them, and which of them lost some."""
    room = length - 1
    kept = Ragged(values=rows.values[_positions(rows) < room], sizes=np.minimum(rows.sizes, room))
    return dataclasses.replace(_with_end(kept, eos), cut=rows.sizes > room)


def _with_end(rows: Ragged, token: int) -> Ragged:
    return Ragged(values=np.insert(rows.values, np.cumsum(rows.sizes), token), sizes=rows.sizes + 1)


def _positions(rows: Ragged) -> Int[np.ndarray, " tokens"]:
    """Returns the position of each token in its row."""
    return np.arange(len(rows.values)) - np.repeat(np.cumsum(rows.sizes) - rows.sizes, rows.sizes)
