"""Decoding, under the names that T5X gives it, and what becomes of the tokens afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jax import Array

from t5core import errors
from t5core.models.beam_search import NO_HYPOTHESIS, beam_search, brevity_penalty
from t5core.models.decode_state import Cache, CacheLayout, DecodingState, TokensToLogits
from t5core.models.sampling import SamplingLoopState, temperature_sample

__all__ = [
    "NO_HYPOTHESIS",
    "Cache",
    "CacheLayout",
    "CutDecode",
    "DecodingState",
    "SamplingLoopState",
    "TokensToLogits",
    "beam_search",
    "brevity_penalty",
    "cut_at_eos",
    "single_rng",
    "temperature_sample",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutDecode:
    """The text part of a decoded row.

    Attributes:
      ids: the tokens before EOS, without pads.
      reached_eos: False when the length limit came first.
    """

    ids: list[int]
    reached_eos: bool


def cut_at_eos(ids: Iterable[int], *, eos_id: int, pad_id: int = 0) -> CutDecode:
    """Returns the tokens of one decoded row that are text, and whether the row came to its end."""
    tokens = [int(token) for token in ids]
    reached_eos = eos_id in tokens
    text = tokens[: tokens.index(eos_id)] if reached_eos else tokens
    return CutDecode(ids=[token for token in text if token != pad_id], reached_eos=reached_eos)


def single_rng(rng: Array | None, decode_rng: Array | None) -> Array | None:
    """Returns the random key for decoding: whichever was given, or None.

    Raises:
      ConfigError: both were given.
    """
    if rng is not None and decode_rng is not None:
        raise errors.ConfigError("rng and decoder_params['decode_rng'] are both given; give one of them")
    return decode_rng if rng is None else rng
