"""Which positions attend to which: boolean masks [batch, 1, query, key], True where attention is allowed.

Token 0 is padding. With segment ids (packed rows), attention stays inside a segment.
Source: `t5x/examples/t5/network.py@cc342d4` and `layers.py: make_decoder_mask`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Tokens = Int[Array, "batch length"]
Mask = Bool[Array, "batch 1 query key"]


def _pairs(query: Array, key: Array) -> tuple[Array, Array]:
    """Returns both with dims that broadcast to [batch, 1, query, key]."""
    return query[:, None, :, None], key[:, None, None, :]


def _valid(query_tokens: Tokens, key_tokens: Tokens) -> Mask:
    query, key = _pairs(query_tokens > 0, key_tokens > 0)
    return query & key


def _same_segment(query_ids: Tokens, key_ids: Tokens) -> Mask:
    query, key = _pairs(query_ids, key_ids)
    return query == key


def encoder_mask(tokens: Tokens, segment_ids: Tokens | None = None) -> Mask:
    """Returns the mask of bidirectional self-attention."""
    mask = _valid(tokens, tokens)
    return mask if segment_ids is None else mask & _same_segment(segment_ids, segment_ids)


def decoder_mask(
    target_tokens: Tokens, segment_ids: Tokens | None = None, causal_attention: Tokens | None = None
) -> Mask:
    """Returns the mask of causal self-attention.

    Args:
      target_tokens: 0 marks padding. Targets rather than inputs, whose first token is 0 too.
      segment_ids: of packed rows.
      causal_attention: 1 marks the positions of a prefix that see each other in both directions.
    """
    positions = jnp.arange(target_tokens.shape[-1])
    causal = positions[:, None] >= positions[None, :]
    if causal_attention is not None:
        query, key = _pairs(causal_attention > 0, causal_attention > 0)
        causal = causal | (query & key)
    mask = _valid(target_tokens, target_tokens) & causal
    return mask if segment_ids is None else mask & _same_segment(segment_ids, segment_ids)


def cross_mask(
    target_tokens: Tokens,
    encoder_tokens: Tokens,
    decoder_segment_ids: Tokens | None = None,
    encoder_segment_ids: Tokens | None = None,
) -> Mask:
    """Returns the mask of the decoder's attention to the encoder's output; segment ids come for both or neither."""
    mask = _valid(target_tokens, encoder_tokens)
    if decoder_segment_ids is None or encoder_segment_ids is None:
        return mask
    return mask & _same_segment(decoder_segment_ids, encoder_segment_ids)


def step_mask(position: Int[Array, " batch"], length: int) -> Bool[Array, "batch 1 1 key"]:
    """Returns the mask of one decoding step at `position`, which sees the cache up to and with itself."""
    return (jnp.arange(length) <= position[:, None])[:, None, None, :]
