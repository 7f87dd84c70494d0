"""Learning-rate schedules in T5X's factors.

Legend: s the steps since `step_offset`, W the warm-up steps.
Source: t5x/utils.py@cc342d4 `create_learning_rate_scheduler`.

Differences from T5X: the rate is finite at every step. W = 0 means no warm-up (there: NaN at step 0 with linear_warmup
and linear_decay, infinite with rsqrt_decay, always 0 with rsqrt_normalized_decay), and cosine_decay stays at its end
after its cycle (there: back to the full rate at the start of each cycle).
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from t5core.config.train_schema import LearningRateConfig
from t5core.optim.factors import learning_rate_factors

Factor = Callable[[LearningRateConfig, Array], ArrayLike]

# Steps that `learning_rate_warnings` looks at; a longer run is sampled.
_STEPS_EXAMINED = 100_000


def _constant(config: LearningRateConfig, s: Array) -> ArrayLike:
    del s
    return config.base_learning_rate


def _linear_warmup(config: LearningRateConfig, s: Array) -> ArrayLike:
    return jnp.minimum(1.0, s / config.warmup_steps) if config.warmup_steps else 1.0


def _linear_decay(config: LearningRateConfig, s: Array) -> ArrayLike:
    fall = 1.0 + config.decay_factor * (config.warmup_steps - s)
    return config.base_learning_rate * jnp.minimum(_linear_warmup(config, s), fall)


def _rsqrt_decay(config: LearningRateConfig, s: Array) -> ArrayLike:
    return 1.0 / jnp.sqrt(jnp.maximum(s, max(config.warmup_steps, 1)))


def _rsqrt_normalized_decay(config: LearningRateConfig, s: Array) -> ArrayLike:
    return max(config.warmup_steps, 1) ** 0.5 * _rsqrt_decay(config, s)


def _decay_every(config: LearningRateConfig, s: Array) -> ArrayLike:
    return config.decay_factor ** (s // config.steps_per_decay)


def _cosine_decay(config: LearningRateConfig, s: Array) -> ArrayLike:
    progress = jnp.clip((s - config.warmup_steps) / config.steps_per_cycle, 0.0, 1.0)
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


_FORMULAS: dict[str, Factor] = {
    "constant": _constant,
    "linear_warmup": _linear_warmup,
    "linear_decay": _linear_decay,
    "rsqrt_decay": _rsqrt_decay,
    "rsqrt_normalized_decay": _rsqrt_normalized_decay,
    "decay_every": _decay_every,
    "cosine_decay": _cosine_decay,
}


def learning_rate_schedule(config: LearningRateConfig) -> Callable[[ArrayLike], Array]:
    """Returns the function step (before the update, from 0) -> rate; it may be jitted and takes arrays of steps too.

    Raises:
      ConfigError: an unknown factor, or a setting that none of the factors reads.
    """
    formulas = [_FORMULAS[name] for name in learning_rate_factors(config)]

    def learning_rate(step: ArrayLike) -> Array:
        s = jnp.maximum(jnp.asarray(step) - config.step_offset, 0)
        rate = jnp.ones(s.shape, jnp.float32)
        for formula in formulas:
            rate = rate * formula(config, s)
        return jnp.maximum(rate, config.min_learning_rate).astype(jnp.float32)

    return learning_rate


def learning_rate_warnings(config: LearningRateConfig, total_steps: int) -> tuple[str, ...]:
    """Returns one line for each stretch of a run in which nothing is learnt because the rate is at its minimum.

    A single step at the start, as every warm-up has, is not worth a line.
    """
    steps = np.unique(np.linspace(0, total_steps - 1, min(total_steps, _STEPS_EXAMINED)).astype(np.int32))
    rates = np.asarray(learning_rate_schedule(config)(steps))
    floor = np.float32(config.min_learning_rate)
    above = steps[rates > floor]
    if not above.size:
        return (f"the learning rate stays at its minimum of {floor:g} for all {total_steps} steps",)
    lines = []
    if above[0] > 1:
        lines.append(f"the learning rate stays at its minimum of {floor:g} for the first {above[0]} steps")
    if above[-1] < total_steps - 1:
        end = above[-1] + 1
        lines.append(f"the learning rate is at its minimum of {floor:g} from step {end} to the end, {total_steps}")
    return tuple(lines)
