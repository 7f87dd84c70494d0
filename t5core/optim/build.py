"""An optimiser from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pydantic

from t5core import errors
from t5core.axis_rules import logical_axes
from t5core.config.base import describe
from t5core.config.train_schema import OptimizerConfig
from t5core.optim.adafactor import Adafactor, AdafactorConfig
from t5core.optim.base import Optimizer
from t5core.optim.multi import MultiOptimizer, ParameterGroup
from t5core.optim.optax_wrapper import Argument, optax_optimizer


class GroupConfig(Protocol):
    """A group of parameters with an optimiser of its own: a pattern of paths, and what `OptimizerConfig` says."""

    @property
    def pattern(self) -> str: ...  # noqa: D102 - described above
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def arguments(self) -> Mapping[str, Argument]: ...  # noqa: D102


def build_optimizer(
    config: OptimizerConfig,
    param_axes: Mapping[str, Any] | None = None,
    *,
    groups: Sequence[GroupConfig] = (),
    frozen: Sequence[str] = (),
    clip_global_norm: float | None = None,
) -> Optimizer:
    """Returns the optimiser that `config` names.

    Args:
      config: name and arguments; without effect, and hence refused, where `groups` are given.
      param_axes: boxed parameters or their logical axes, which Adafactor needs for parameters above rank 2; where they
        are given, patterns are checked against them at once.
      groups: optimisers by parameter pattern; what none of them matches is frozen.
      frozen: patterns of parameters that are not trained.
      clip_global_norm: largest norm of the whole gradient; None does not clip.

    Raises:
      ConfigError: an unknown name or argument (with the nearest one), values that cannot work, options that contradict
        each other, or patterns that do not fit the parameters.
    """
    if clip_global_norm is not None and clip_global_norm <= 0:
        raise errors.ConfigError(f"clip_global_norm={clip_global_norm} clips everything away; give a number above 0")
    if groups and (config.name, config.arguments) != (OptimizerConfig().name, {}):
        raise errors.ConfigError(
            f"optimizer {config.name!r} with arguments {config.arguments} has no effect beside groups; "
            f"make it a group, or remove the groups"
        )
    settings: list[tuple[str | None, str, Mapping[str, Argument]]] = [
        (group.pattern, group.name, group.arguments) for group in groups
    ] or [(None, config.name, config.arguments)]
    _refuse_two_clips(settings, clip_global_norm)
    parts = [
        ParameterGroup(pattern=pattern, optimizer=_named(name, arguments, param_axes))
        for pattern, name, arguments in settings
    ]
    if not groups and not frozen and clip_global_norm is None:
        return parts[0].optimizer
    optimizer = MultiOptimizer(parts, frozen=frozen, clip_global_norm=clip_global_norm)
    if param_axes is not None:
        optimizer.check(logical_axes(param_axes))
    return optimizer


def _refuse_two_clips(
    settings: Sequence[tuple[str | None, str, Mapping[str, Argument]]], clip_global_norm: float | None
) -> None:
    own = [arguments.get("global_norm_clip_threshold") for _, _, arguments in settings]
    threshold = next((value for value in own if value is not None), None)
    if clip_global_norm is not None and threshold is not None:
        raise errors.ConfigError(
            f"clip_global_norm={clip_global_norm} and global_norm_clip_threshold={threshold} both clip the gradient; "
            f"remove one"
        )


def _named(name: str, arguments: Mapping[str, Argument], param_axes: Mapping[str, Any] | None) -> Optimizer:
    if name != "adafactor":
        return optax_optimizer(name, arguments)
    try:
        config = AdafactorConfig(**arguments)  # pyright: ignore[reportArgumentType] - pydantic checks the values
    except pydantic.ValidationError as error:
        raise errors.ConfigError(f"optimizer 'adafactor': {describe(error, AdafactorConfig)}") from error
    return Adafactor(config, param_axes=param_axes)
