"""The objectives of tasks that bring their own text, in numpy: many documents at once and without TensorFlow.

`seqio_tasks.task_from_config` defines these tasks for SeqIO; what comes from here is the same, token for token, at a
small part of the cost.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64

from t5core.config.data_schema import TaskConfig
from t5core.data import filters, philox, templates
from t5core.data.chunks import Chunks, trimmed, with_end
from t5core.data.documents import Document, Tally
from t5core.data.noise import CAPPED, Denoiser, SpanCorruption, noise_table, resolved_denoisers
from t5core.data.ragged import Ragged
from t5core.data.spans import span_mask, with_sentinels
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary

# Those that make other examples in each pass.
NOISY = ("span_corruption", "prefix_lm", "ul2")
# What SeqIO gives a random preprocessor: two numbers, counted up from the seed. The second one gets the next two.
_SEEDS_OF_A_STEP = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenised:
    """Documents as tokens, before an objective made examples of them.

    Attributes:
      sides: the tokens of each text, by feature; text without inputs is `targets`.
      texts: the texts themselves, in a supervised task, for its metrics to read.
      numbers: of the documents in their split.
      dropped: the documents that are left out for their number of tokens, counted by reason.
    """

    sides: Mapping[str, Ragged]
    texts: Mapping[str, Sequence[str]]
    numbers: Int64[np.ndarray, " documents"]
    dropped: Tally


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples of a pass: their features, and what befell how many of them, by reason."""

    features: Mapping[str, Ragged]
    noted: Mapping[str, int]


def sides_of(config: TaskConfig) -> tuple[str, ...]:
    """Returns the features of the examples of a task with its own text."""
    return ("targets",) if config.objective == "lm" else ("inputs", "targets")


class Objective:
    """Makes examples of the documents of one task.

    Args:
      config: the task; SeqIO's own are not for this class.
      vocabulary: spells every feature.
      lengths: tokens of a row, by feature.

    Raises:
      ConfigError: the noise does not fit the lengths or the vocabulary, or a filter names another feature.
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
        self._limits = filters.token_limits(config)
        self.sides = sides_of(config)
        self._corruption = self._span_noise() if config.objective == "span_corruption" else None
        self._denoisers = self._resolved_denoisers() if config.objective == "ul2" else []

    def _span_noise(self) -> Denoiser:
        config, lengths = self._config, self._lengths
        noise = SpanCorruption(
            noise_density=config.noise_density,
            mean_span_length=config.mean_noise_span_length,
            sentinels=self._vocabulary.sentinels,
        )
        inputs, targets = lengths["inputs"], lengths["targets"]
        length = noise.chunk_length(inputs_length=inputs, targets_length=targets, task=config.name)
        return Denoiser(mode=[], noise=noise, length=length)

    def _resolved_denoisers(self) -> list[Denoiser]:
        denoisers = self._config.ul2_denoisers
        return resolved_denoisers(
            denoisers,
            spelt={denoiser.mode_token: self._vocabulary.encode(denoiser.mode_token) for denoiser in denoisers},
            unk_id=self._vocabulary.unk_id,
            sentinels=self._vocabulary.sentinels,
            lengths=self._lengths,
            task=self._config.name,
        )

    def tokenise(self, documents: Sequence[Document], *, numbers: Sequence[int]) -> Tokenised:
        """Returns the tokens of `documents`, which have these `numbers` in their split; no pass changes them."""
        texts = self._texts(documents)
        sides = {side: encoded(self._vocabulary, lines) for side, lines in texts.items()}
        kept, dropped = self._within_limits(sides, documents)
        places = np.flatnonzero(kept)
        return Tokenised(
            sides=sides if not dropped.counts else {side: tokens.only(kept) for side, tokens in sides.items()},
            texts={side: [lines[at] for at in places] for side, lines in texts.items()} if self._is_supervised else {},
            numbers=np.array(numbers, np.int64)[places],
            dropped=dropped,
        )

    @property
    def _is_supervised(self) -> bool:
        return self._config.objective == "supervised"

    def _texts(self, documents: Sequence[Document]) -> dict[str, list[str]]:
        config = self._config
        if not self._is_supervised:
            return {"targets": [document.columns[config.text] for document in documents]}
        pieces = {side: templates.parse(getattr(config, side), setting=side) for side in self.sides}
        return {side: ["".join(_filled(parts, document)) for document in documents] for side, parts in pieces.items()}

    def _within_limits(
        self, sides: Mapping[str, Ragged], documents: Sequence[Document]
    ) -> tuple[Bool[np.ndarray, " documents"], Tally]:
        """Returns which documents have as many tokens as the filters ask for; a drop counts for the first of them."""
        kept, dropped = np.ones(len(documents), bool), Tally()
        for limit in self._limits:
            sizes = sides[limit.feature].sizes
            passes = (sizes >= limit.minimum) & (sizes <= (np.inf if limit.maximum is None else limit.maximum))
            for at in np.flatnonzero(kept & ~passes).tolist():
                dropped.add(limit.reason, documents[at])
            kept &= passes
        return kept, dropped

    def examples(self, tokenised: Tokenised, *, seed: int) -> Examples:
        """Returns the examples of a pass, which `seed` tells from other passes."""
        eos, text, numbers = self._vocabulary.eos_id, tokenised.sides["targets"], tokenised.numbers
        if self._is_supervised:
            cut = {side: trimmed(tokens, self._lengths[side], eos) for side, tokens in tokenised.sides.items()}
            return Examples(features=cut, noted={})
        if self._config.objective == "lm":
            chunks = Chunks.of(with_end(text, eos), length=self._lengths["targets"], numbers=numbers)
            return Examples(features={"targets": chunks.tokens}, noted={})
        if self._config.objective == "prefix_lm":
            examples = self._prefix_lm(text, numbers, seed)
        elif self._corruption is not None:
            examples = self._span_corruption(text, numbers, seed, corruption=self._corruption)
        else:
            examples = self._denoised(text, numbers, seed)
        ended = {side: with_end(tokens, eos) for side, tokens in examples.features.items()}
        return dataclasses.replace(examples, features=ended)

    def _prefix_lm(self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int) -> Examples:
        room = {side: self._lengths[side] - 1 for side in self.sides}
        chunks = Chunks.of(text, length=sum(room.values()), numbers=numbers)
        size = chunks.tokens.sizes
        lowest = np.maximum(np.minimum(1, size - 1), size - room["targets"])
        highest = np.maximum(lowest, np.minimum(size - 1, room["inputs"]))
        cut = philox.integers(chunks.seeds(seed), lowest, highest + 1)
        in_targets = chunks.tokens.positions >= np.repeat(cut, size)
        sides = {
            "inputs": Ragged(values=chunks.tokens.values[~in_targets], sizes=cut),
            "targets": Ragged(values=chunks.tokens.values[in_targets], sizes=size - cut),
        }
        return Examples(features=sides, noted={})

    def _span_corruption(
        self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int, *, corruption: Denoiser
    ) -> Examples:
        chunks = Chunks.of(text, length=corruption.length, numbers=numbers)
        sizes = chunks.tokens.sizes
        table = np.array(noise_table(corruption.noise, corruption.length))[sizes]
        draws = philox.uniform_bits(chunks.seeds(seed), corruption.length)
        hidden = span_mask(sizes, counts=table[:, :2], draws=draws)
        return self._with_hidden(chunks.tokens, hidden, marked=np.ones(len(sizes), bool), capped=int(table[:, 2].sum()))

    def _with_hidden(
        self, rows: Ragged, hidden: Bool[np.ndarray, " tokens"], *, marked: Bool[np.ndarray, " rows"], capped: int
    ) -> Examples:
        first = self._vocabulary.sentinel(0) if marked.any() else 0
        sides = {
            "inputs": with_sentinels(rows, hidden, first, marked=marked),
            "targets": with_sentinels(rows, ~hidden, first, marked=marked),
        }
        return Examples(features=sides, noted={CAPPED: capped} if capped else {})

    def _denoised(self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int) -> Examples:
        chunks, chosen = self._pieces(text, numbers, seed)
        sizes, longest = chunks.tokens.sizes, max(denoiser.length for denoiser in self._denoisers)
        tables = np.array([noise_table(denoiser.noise, longest) for denoiser in self._denoisers])
        table = tables[chosen, sizes]
        is_suffix = np.array([denoiser.noise == "suffix" for denoiser in self._config.ul2_denoisers])[chosen]
        hidden = chunks.tokens.positions >= np.repeat(sizes - table[:, 0], sizes)
        in_spans = np.repeat(~is_suffix, sizes)
        draws = philox.uniform_bits(chunks.seeds(seed + _SEEDS_OF_A_STEP)[~is_suffix], longest)
        hidden[in_spans] = span_mask(sizes[~is_suffix], counts=table[~is_suffix, :2], draws=draws)
        capped = int(table[~is_suffix, 2].sum())
        examples = self._with_hidden(chunks.tokens, hidden, marked=~is_suffix, capped=capped)
        return dataclasses.replace(
            examples, features={**examples.features, "inputs": self._with_modes(examples.features["inputs"], chosen)}
        )

    def _pieces(
        self, text: Ragged, numbers: Int64[np.ndarray, " n"], seed: int
    ) -> tuple[Chunks, Int[np.ndarray, " pieces"]]:
        """Returns the pieces of texts, and the denoiser drawn for each, which decides how long it may be."""
        by_denoiser = np.array([denoiser.length for denoiser in self._denoisers])
        counts = text.sizes // by_denoiser.min() + 1
        draws = philox.ragged_uniform(Chunks.whole(text, numbers=numbers).seeds(seed), counts)
        bounds = np.cumsum(np.array([denoiser.rate for denoiser in self._config.ul2_denoisers], np.float32))
        chosen = np.minimum(np.searchsorted(bounds, draws * bounds[-1], side="right"), len(by_denoiser) - 1)
        lengths, document = by_denoiser[chosen], np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(lengths)
        begins = np.cumsum(counts) - counts
        ends -= (ends - lengths)[begins][document]
        starts, within = ends - lengths, np.arange(len(document)) - begins[document]
        used = starts < text.sizes[document]
        sizes = (np.minimum(ends, text.sizes[document]) - starts)[used]
        tokens = Ragged(values=text.values, sizes=sizes)
        return Chunks(tokens=tokens, documents=numbers[document[used]], numbers=within[used]), chosen[used]

    def _with_modes(self, rows: Ragged, chosen: Int[np.ndarray, " rows"]) -> Ragged:
        """Returns the rows with the mode token of its denoiser before each."""
        modes = [self._denoisers[number].mode for number in chosen]
        sizes = np.array([len(mode) for mode in modes], np.int64)
        places = np.repeat(np.cumsum(rows.sizes) - rows.sizes, sizes)
        prefixes = np.fromiter(itertools.chain.from_iterable(modes), np.int32)
        return Ragged(values=np.insert(rows.values, places, prefixes), sizes=rows.sizes + sizes)


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
