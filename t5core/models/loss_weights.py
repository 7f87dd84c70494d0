"""What each token's loss counts, and what the sum is divided by.

Source: `t5x/losses.py@cc342d4: get_loss_normalizing_factor_and_weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Batch = Mapping[str, Array]
Weights = Float[Array, "batch length"]
NormalizingFactor = float | Literal["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"] | None


def loss_weights(batch: Batch) -> Weights:
    """Returns the batch's `decoder_loss_weights`, or 1 for each target that is not padding where it has none.

    Difference from T5X: without weights and with no or a constant normalising factor, it counts padding too.
    """
    weights = batch.get("decoder_loss_weights")
    if weights is None:
        weights = batch["decoder_target_tokens"] > 0
    return jnp.asarray(weights, jnp.float32)


def _weight_of_own_sequence(weights: Weights, segment_ids: Int[Array, "batch length"]) -> Weights:
    """Returns, for each position, the sum of the weights in its run of equal segment ids."""
    starts = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    run = jnp.cumsum(starts, axis=1)
    rows = jnp.arange(weights.shape[0])[:, None]
    return jnp.zeros_like(weights).at[rows, run].add(weights)[rows, run]


def objective_weights(batch: Batch, factor: NormalizingFactor) -> Weights:
    """Returns the weights of the objective: with AVERAGE_PER_SEQUENCE those of a sequence (a packed segment) sum to 1.

    A sequence without any weight keeps none.
    """
    weights = loss_weights(batch)
    if factor != "AVERAGE_PER_SEQUENCE":
        return weights
    segment_ids = batch.get("decoder_segment_ids")
    if segment_ids is None:
        totals = jnp.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape)
    else:
        totals = _weight_of_own_sequence(weights, segment_ids)
    return jnp.where(totals > 0, weights / jnp.where(totals > 0, totals, 1.0), 0.0)


def loss_normalizer(batch: Batch, factor: NormalizingFactor) -> Float[Array, ""]:
    """Returns what the summed loss of a whole batch is divided by; 1 where there is nothing to divide by.

    Computed once for a batch and given to each of its micro-batches, it makes their gradients add up to the batch's.
    Difference from T5X: a batch without any weight has loss 0 instead of NaN.
    """
    if factor is None:
        return jnp.float32(1.0)
    if factor == "NUM_TOTAL_TARGET_TOKENS":
        return jnp.float32(batch["decoder_target_tokens"].size)
    if isinstance(factor, str):
        total = objective_weights(batch, factor).sum()
        return jnp.where(total > 0, total, 1.0)
    return jnp.float32(factor)
