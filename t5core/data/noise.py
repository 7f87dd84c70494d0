"""How many tokens span corruption hides, in how many spans, and which length of text then fills a row exactly."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

from t5core import errors
from t5core.config.preprocessing_schema import DenoiserConfig

CAPPED = "spans capped by the number of sentinels"


class Noise(Protocol):
    """How much of a text is hidden, as a function of its number of tokens."""

    def counts(self, length: int) -> tuple[int, int]:
        """Returns how many of `length` tokens are noise and in how many spans they lie."""
        ...

    def lengths(self, length: int) -> tuple[int, int]:
        """Returns the lengths of inputs and targets made from `length` tokens, each with EOS."""
        ...

    def is_capped(self, length: int) -> bool:
        """Tells whether there would be more spans if there were more sentinels."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """The noise of span corruption, as T5 defines it, as a function of the number of tokens.

    Attributes:
      noise_density: share of the tokens that is hidden.
      mean_span_length: tokens in a hidden span, on average.
      sentinels: how many sentinels there are; a text takes no more spans than that, and they grow longer instead.

    Source: `random_spans_noise_mask` and `random_spans_helper` of Raffel et al. (arXiv:1910.10683, section 3.1.4).
    Deliberate difference: the number of spans is capped by the sentinels, and by the tokens that are kept.
    """

    noise_density: float
    mean_span_length: float
    sentinels: int

    def counts(self, length: int) -> tuple[int, int]:
        """Returns how many of `length` tokens are noise and in how many spans they lie; a single token stays."""
        if length < 2:
            return 0, 0
        noise, spans = self._uncapped(length)
        return noise, min(spans, self.sentinels)

    def is_capped(self, length: int) -> bool:
        """Tells whether there would be more spans if there were more sentinels."""
        return length > 1 and self._uncapped(length)[1] > self.sentinels

    def _uncapped(self, length: int) -> tuple[int, int]:
        noise = min(max(round(length * self.noise_density), 1), length - 1)
        spans = max(round(noise / self.mean_span_length), 1)
        return noise, min(spans, noise, length - noise)

    def lengths(self, length: int) -> tuple[int, int]:
        """Returns the lengths of inputs and targets made from `length` tokens, each with a sentinel a span and EOS."""
        noise, spans = self.counts(length)
        return length - noise + spans + 1, noise + max(spans, 1) + 1

    def chunk_length(self, *, inputs_length: int, targets_length: int, task: str) -> int:
        """Returns the most tokens whose inputs fit `inputs_length` with EOS; a chunk of them fills the inputs.

        Raises:
          ConfigError: there are no sentinels, or the targets of such a chunk do not fit `targets_length`.
        """
        _require_sentinels(self.sentinels, task=task)
        length = 1
        while self.lengths(length + 1)[0] <= inputs_length:
            length += 1
        needed = self.lengths(length)[1]
        if self.noise_density == 0.5 and needed > inputs_length:  # T5 prefers targets as long as the inputs then
            length -= 1
            needed = self.lengths(length)[1]
        if length < 2:
            raise errors.ConfigError(
                f"task {task!r}: feature length inputs={inputs_length} holds no corrupted text; make it 4 or more"
            )
        if needed > targets_length:
            raise errors.ConfigError(
                f"task {task!r}: span corruption of inputs={inputs_length} writes targets of {needed} tokens, but "
                f"data.feature_lengths gives targets={targets_length}; make that {needed} or shorten the inputs"
            )
        return length


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixNoise:
    """The noise of prefix language modelling with a share that is fixed: the end of the text, without sentinels.

    Attributes:
      noise_density: share of the tokens that is hidden; of a single token, that one.
    """

    noise_density: float

    def counts(self, length: int) -> tuple[int, int]:
        """Returns how many of `length` tokens are noise, in a single span."""
        return (max(1, min(round(length * self.noise_density), length - 1)), 1) if length else (0, 0)

    def lengths(self, length: int) -> tuple[int, int]:
        """Returns the lengths of inputs and targets made from `length` tokens, each with EOS."""
        noise, _ = self.counts(length)
        return length - noise + 1, noise + 1

    def is_capped(self, length: int) -> bool:
        """Tells that no sentinel is ever missed, whatever the `length`."""
        del length
        return False


def noise_of(denoiser: DenoiserConfig, *, sentinels: int, task: str) -> Noise:
    """Returns the noise that `denoiser` describes.

    Raises:
      ConfigError: it hides spans and there are no sentinels.
    """
    if denoiser.mean_noise_span_length is None:
        return SuffixNoise(noise_density=denoiser.noise_density)
    _require_sentinels(sentinels, task=task)
    return SpanCorruption(
        noise_density=denoiser.noise_density, mean_span_length=denoiser.mean_noise_span_length, sentinels=sentinels
    )


def fitting_length(noise: Noise, *, inputs_length: int, targets_length: int) -> int:
    """Returns the most tokens for which that many, and any fewer, fit both lengths with EOS; 0 when none does."""
    length = 0
    while all(
        needed <= room for needed, room in zip(noise.lengths(length + 1), (inputs_length, targets_length), strict=True)
    ):
        length += 1
    return length


@functools.cache
def noise_table(noise: Noise, length: int) -> list[tuple[int, int, bool]]:
    """Returns how many tokens are noise, in how many spans, and whether those are capped, for 0 to `length` tokens."""
    return [(*noise.counts(size), noise.is_capped(size)) for size in range(length + 1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoiser:
    """A denoiser of a mixture: the tokens of its mode, its noise, and the most tokens of text that fit with it."""

    mode: list[int]
    noise: Noise
    length: int


def resolved_denoisers(
    denoisers: Sequence[DenoiserConfig],
    *,
    spelt: Mapping[str, list[int]],
    unk_id: int | None,
    sentinels: int,
    lengths: Mapping[str, int],
    task: str,
) -> list[Denoiser]:
    """Returns what `denoisers` come to in a vocabulary.

    Args:
      denoisers: of the mixture.
      spelt: the tokens of each mode token.
      unk_id: the token of what the vocabulary cannot spell.
      sentinels: how many the vocabulary has.
      lengths: of inputs and targets with EOS.
      task: for messages.

    Raises:
      ConfigError: the vocabulary has no sentinels, cannot spell a mode token, or a length holds no corrupted text.
    """
    found = []
    for denoiser in denoisers:
        mode = spelt[denoiser.mode_token] if denoiser.mode_token else []
        if unk_id in mode:
            raise errors.ConfigError(
                f"task {task!r}: the vocabulary cannot spell mode_token={denoiser.mode_token!r}; use characters that "
                "it knows, or data.vocabulary.byte_fallback"
            )
        noise = noise_of(denoiser, sentinels=sentinels, task=task)
        length = fitting_length(noise, inputs_length=lengths["inputs"] - len(mode), targets_length=lengths["targets"])
        if length < 2:
            raise errors.ConfigError(
                f"task {task!r}: feature lengths inputs={lengths['inputs']}, targets={lengths['targets']} hold no text "
                f"corrupted by denoiser {denoiser.mode_token!r} with noise_density={denoiser.noise_density}, whose "
                f"mode token takes {len(mode)}; make them longer"
            )
        found.append(Denoiser(mode=mode, noise=noise, length=length))
    return found


def _require_sentinels(sentinels: int, *, task: str) -> None:
    if sentinels < 1:
        raise errors.ConfigError(
            f"task {task!r}: span corruption needs sentinels, but the vocabulary has 0 extra ids; "
            "set data.vocabulary.extra_ids=100"
        )
