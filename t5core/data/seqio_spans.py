"""Span noise in TensorFlow: which tokens are hidden, and what stands in their place."""

from __future__ import annotations

from typing import Any

import seqio
import tensorflow as tf

from t5core.data.vocabulary import own_sentinels

# TensorFlow's stubs know too little of tensors, which have no operators there.
Tensor = Any


def number_of_sentinels(vocabulary: seqio.Vocabulary) -> int:
    """Returns how many sentinels there are, also where the model file brings them."""
    if vocabulary.extra_ids or not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.extra_ids
    model = vocabulary.tokenizer
    return own_sentinels(model.IdToPiece(number) for number in reversed(range(model.GetPieceSize())))


def span_mask(size: Tensor, *, noise: Tensor, spans: Tensor, seed: Tensor) -> Tensor:
    """Returns bool[size], True where a token is hidden: spans of random lengths, the first token being kept.

    Args:
      size: tokens of the text.
      noise: how many of them are hidden.
      spans: in how many spans they lie.
      seed: int64[2].
    """
    draws = tf.random.stateless_uniform([size], seed, alg="philox")
    hidden = _random_parts(noise, spans, draws=draws[:noise])
    kept = _random_parts(size - noise, spans, draws=draws[noise:])
    lengths = tf.reshape(tf.stack([kept, hidden], axis=1), [-1])
    flags = tf.range(2 * tf.maximum(spans, 1)) % 2 == 1
    return tf.repeat(flags, lengths)


def _random_parts(total: Tensor, parts: Tensor, *, draws: Tensor) -> Tensor:
    """Returns int32[parts] (one part at least) that sum to `total`, any such with 1 or more each as likely as another.

    The cuts go where the largest of `draws`, float32[total], are; the last one is left out.
    """
    cuts = 1 + tf.sort(tf.math.top_k(draws[: total - 1], tf.maximum(parts - 1, 0)).indices)
    return tf.concat([cuts, [total]], 0) - tf.concat([[0], cuts], 0)


def with_sentinels(tokens: Tensor, replaced: Tensor, first_sentinel: int) -> Tensor:
    """Returns `tokens` with each run where `replaced` holds made into one sentinel, counted down from the first."""
    starts = replaced & tf.logical_not(tf.concat([[False], replaced[:-1]], 0))
    sentinels = first_sentinel + 1 - tf.cumsum(tf.cast(starts, tokens.dtype))
    return tf.boolean_mask(tf.where(starts, sentinels, tokens), starts | ~replaced)
