"""The names of the learning-rate factors and the settings that each one reads; needs no JAX."""

from __future__ import annotations

from t5core import errors
from t5core.config.train_schema import LearningRateConfig

FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)

_READ_BY: dict[str, tuple[str, ...]] = {
    "base_learning_rate": ("constant", "linear_decay"),
    "warmup_steps": ("linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay", "cosine_decay"),
    "decay_factor": ("linear_decay", "decay_every"),
    "steps_per_decay": ("decay_every",),
    "steps_per_cycle": ("cosine_decay",),
    "step_offset": tuple(name for name in FACTORS if name != "constant"),
}


def learning_rate_factors(config: LearningRateConfig) -> tuple[str, ...]:
    """Returns the factors of `config` from left to right.

    Raises:
      ConfigError: an unknown factor (with the nearest name), or a setting that none of the factors reads. Difference
        from T5X: it refuses a factor at the first step, and never a setting.
    """
    names = tuple(name.strip() for name in config.factors.split("*"))
    for name in names:
        if name not in FACTORS:
            raise errors.ConfigError(errors.unknown_name("learning-rate factor", name, FACTORS))
    for setting, readers in _READ_BY.items():
        value = getattr(config, setting)
        is_default = value == LearningRateConfig.model_fields[setting].default
        if not is_default and not set(readers).intersection(names):
            raise errors.ConfigError(
                f"{setting}={value} has no effect with factors {config.factors!r}; "
                f"remove it or add one of: {', '.join(readers)}"
            )
    if "decay_every" in names and config.decay_factor > 1:
        raise errors.ConfigError(
            f"decay_factor={config.decay_factor} makes decay_every grow without bound; give at most 1"
        )
    return names
