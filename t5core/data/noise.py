"""How many tokens span corruption hides, in how many spans, and which length of text then fills a row exactly."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from t5core import errors
from t5core.config.preprocessing_schema import DenoiserConfig


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


def _require_sentinels(sentinels: int, *, task: str) -> None:
    if sentinels < 1:
        raise errors.ConfigError(
            f"task {task!r}: span corruption needs sentinels, but the vocabulary has 0 extra ids; "
            "set data.vocabulary.extra_ids=100"
        )
