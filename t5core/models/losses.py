"""Cross entropy per token, with label smoothing and the z-loss.

Source: `t5x/losses.py@cc342d4`; z-loss: Mesh TensorFlow's, an extra z_loss * log(Z)^2 per token.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5core import errors

Logits = Float[Array, "batch length vocab"]
PerToken = Float[Array, "batch length"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """What each target costs: `cross_entropy`, and `z_loss` beside it; `correct` where it has the highest logit."""

    cross_entropy: PerToken
    z_loss: PerToken
    correct: Bool[Array, "batch length"]


def token_losses(
    logits: Logits, targets: Int[Array, "batch length"], *, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> TokenLosses:
    """Returns the unweighted losses of every position.

    Args:
      logits: float32.
      targets: token ids.
      label_smoothing: probability that the target gives to all other tokens together. The entropy of such a target is
        subtracted, so that a perfect prediction costs 0.
      z_loss: coefficient of log(Z)^2, Z being the softmax's normaliser; 0 switches it off.

    Raises:
      ConfigError: the shapes do not fit.
    """
    if logits.shape[:-1] != targets.shape:
        raise errors.ConfigError(
            f"logits {logits.shape} do not fit targets {targets.shape}; give logits for each token"
        )
    cross_entropy, squared_log_z = _cross_entropy(logits, targets, label_smoothing)
    return TokenLosses(
        cross_entropy=cross_entropy - _target_entropy(label_smoothing, logits.shape[-1]),
        z_loss=z_loss * squared_log_z,
        correct=_is_highest(logits, targets),
    )


def _off_value(label_smoothing: float, vocab_size: int) -> float:
    """Returns the probability that a smoothed target gives to each other token."""
    return label_smoothing / max(vocab_size - 1, 1)


def _target_entropy(label_smoothing: float, vocab_size: int) -> float:
    on, off = 1.0 - label_smoothing, _off_value(label_smoothing, vocab_size)
    return -(on * math.log(on) + (vocab_size - 1) * off * math.log(off + 1e-20))


def _is_target(logits: Logits, targets: Int[Array, "batch length"]) -> Bool[Array, "batch length vocab"]:
    return jnp.arange(logits.shape[-1]) == targets[..., None]


def _cross_entropy_and_squared_log_z(
    logits: Logits, targets: Int[Array, "batch length"], label_smoothing: float
) -> tuple[PerToken, PerToken]:
    """Returns -sum(soft target * log softmax) and log(Z)^2.

    Difference from T5X: soft targets are never built, since the sum needs only log(Z), the target's logit and the sum
    of all; and the backward pass keeps the logits alone and takes exp once more, instead of keeping that array too.
    """
    return _cross_entropy_forward(logits, targets, label_smoothing)[0]


def _cross_entropy_forward(
    logits: Logits, targets: Int[Array, "batch length"], label_smoothing: float
) -> tuple[tuple[PerToken, PerToken], tuple[Logits, Array, PerToken]]:
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # By comparison rather than by index: a vocabulary split over devices then needs no gather.
    target_logit = jnp.sum(jnp.where(_is_target(logits, targets), logits, 0.0), axis=-1)
    off = _off_value(label_smoothing, logits.shape[-1])
    cross_entropy = log_z - (1.0 - label_smoothing - off) * target_logit
    if off > 0.0:
        cross_entropy = cross_entropy - off * jnp.sum(logits, axis=-1)
    return (cross_entropy, jnp.square(log_z)), (logits, targets, log_z)


def _cross_entropy_backward(
    label_smoothing: float, residuals: tuple[Logits, Array, PerToken], cotangents: tuple[PerToken, PerToken]
) -> tuple[Logits, None]:
    logits, targets, log_z = residuals
    of_cross_entropy, of_squared_log_z = cotangents
    of_log_z = of_cross_entropy + 2.0 * log_z * of_squared_log_z
    off = _off_value(label_smoothing, logits.shape[-1])
    softmax = jnp.exp(logits - log_z[..., None])
    soft_targets = jnp.where(_is_target(logits, targets), 1.0 - label_smoothing, off)
    return of_log_z[..., None] * softmax - of_cross_entropy[..., None] * soft_targets, None


_cross_entropy = jax.custom_vjp(_cross_entropy_and_squared_log_z, nondiff_argnums=(2,))
_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _is_highest(logits: Logits, targets: Int[Array, "batch length"]) -> Bool[Array, "batch length"]:
    """Returns whether `targets` is the argmax, the first of equals: by two plain reductions, which vectorise."""
    vocab_size = logits.shape[-1]
    highest = logits == jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(highest, jnp.arange(vocab_size), vocab_size), axis=-1) == targets
