"""Adafactor as T5X has it.

Source: arXiv:1804.04235; t5x/adafactor.py@cc342d4. Legend, as in the paper: t the update (from 1), b2 the decay of the
second moment, g the gradient, R and C its row and column statistics, V the whole one, U the update before scaling.

Differences from T5X: steps before `step_offset` count as step 0 (there: NaN), and options that cannot take effect are
refused. Parameter scaling by pattern is a matter of `MultiOptimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
import pydantic
from jax.typing import ArrayLike
from jaxtyping import Array
from pydantic import Field, PositiveFloat, PositiveInt

from t5core import trees
from t5core.axis_rules import logical_axes
from t5core.config.base import StrictModel
from t5core.optim.base import OptState, Params, clip_by_global_norm
from t5core.optim.factored import STANDARD_FACTOR_RULES, Factoring, FactorRules, factoring

Slots = dict[str, Array]

_SLOTS = ("v_row", "v_col", "v", "m")


class AdafactorConfig(StrictModel):
    """Adafactor's options, with T5X's names and defaults. None switches an option off."""

    factored: bool = Field(default=True, description="keep row and column statistics instead of the second moment")
    multiply_by_parameter_scale: bool = Field(default=True, description="make the rate relative to a parameter's size")
    beta1: float | None = Field(default=None, ge=0.0, lt=1.0, description="of the momentum, which costs memory")
    decay_rate: PositiveFloat = Field(default=0.8, description="b2 = 1 - t^-decay_rate")
    step_offset: int = Field(default=0, ge=0, description="step at which the statistics start afresh")
    clipping_threshold: PositiveFloat | None = Field(default=1.0, description="root mean square of U at most")
    weight_decay_rate: float | None = Field(default=None, gt=0.0, lt=1.0, description="per step, not times the rate")
    min_dim_size_to_factor: PositiveInt = 128
    epsilon1: float = Field(default=1e-30, ge=0.0, description="added to squared gradients")
    epsilon2: float = Field(default=1e-3, ge=0.0, description="smallest parameter scale")
    dtype_momentum: Literal["float32", "bfloat16"] = "float32"
    weight_decay_rate_lr_exponent: PositiveFloat | None = Field(
        default=None, description="the decay is rate^exponent, times weight_decay_rate where that is set"
    )
    global_norm_clip_threshold: PositiveFloat | None = Field(default=None, description="norm of all gradients at most")
    max_parameter_scale: PositiveFloat | None = None
    skip_nan_updates: bool = Field(default=False, description="leave every value alone whose update is NaN")

    @pydantic.model_validator(mode="after")
    def _no_contradictions(self) -> AdafactorConfig:
        without_effect = [
            ("min_dim_size_to_factor", not self.factored, "factored is false"),
            ("epsilon2", not self.multiply_by_parameter_scale, "multiply_by_parameter_scale is false"),
            ("max_parameter_scale", not self.multiply_by_parameter_scale, "multiply_by_parameter_scale is false"),
            ("dtype_momentum", self.beta1 is None, "beta1 is not set"),
        ]
        for name, is_idle, why in without_effect:
            value = getattr(self, name)
            if is_idle and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value!r} has no effect because {why}; remove one of the two")
        if self.max_parameter_scale is not None and self.max_parameter_scale < self.epsilon2:
            raise ValueError(
                f"max_parameter_scale={self.max_parameter_scale} is below the smallest scale, "
                f"epsilon2={self.epsilon2}; raise it"
            )
        return self


class Adafactor:
    """Adafactor with factored second moments.

    Args:
      config: the options; None takes T5X's defaults.
      param_axes: boxed parameters or their logical axes; None leaves only parameters of rank 2 at most factorable.
      factor_rules: the part that each logical axis plays.
    """

    state_per_parameter = True

    def __init__(
        self,
        config: AdafactorConfig | None = None,
        *,
        param_axes: Mapping[str, Any] | None = None,
        factor_rules: FactorRules = STANDARD_FACTOR_RULES,
    ) -> None:
        self.config = AdafactorConfig() if config is None else config
        self._axes = {} if param_axes is None else logical_axes(param_axes)
        self._factor_rules = factor_rules

    def init(self, params: Params) -> OptState:
        """Returns {"param_states": {... {"v_row", "v_col", "v", "m"}}}; a slot that is not in use is float32 [1]."""
        flat = trees.flatten(params)
        slots = {f"{path}/{name}": leaf for path, param in flat.items() for name, leaf in self._slots(path, param)}
        return {"param_states": trees.unflatten(slots)}

    def _slots(self, path: str, param: Array) -> list[tuple[str, Array]]:
        plan = self._factoring(path, param.shape)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_SLOTS, (1,))
        if plan.is_factored:
            shapes |= {"v_row": plan.row_shape(param.shape), "v_col": plan.column_shape(param.shape)}
        else:
            shapes["v"] = param.shape
        momentum_dtype = jnp.float32
        if self.config.beta1 is not None:
            shapes["m"] = param.shape
            momentum_dtype = jnp.dtype(self.config.dtype_momentum)
        return [(name, jnp.zeros(shapes[name], momentum_dtype if name == "m" else jnp.float32)) for name in _SLOTS]

    def _factoring(self, path: str, shape: tuple[int, ...]) -> Factoring:
        if not self.config.factored:
            return Factoring(averaging=tuple(range(len(shape))))
        return factoring(
            path,
            shape,
            self._axes.get(path),
            self._factor_rules,
            min_dim_size_to_factor=self.config.min_dim_size_to_factor,
        )

    def apply_gradient(
        self, grads: Params, params: Params, opt_state: OptState, *, step: ArrayLike, learning_rate: ArrayLike
    ) -> tuple[Params, OptState]:
        """Returns the parameters and the state after one update (see `Optimizer`)."""
        if self.config.global_norm_clip_threshold is not None:
            grads = clip_by_global_norm(grads, self.config.global_norm_clip_threshold)
        flat_grads = trees.flatten(grads)
        flat_states = trees.flatten(opt_state["param_states"])
        new_params, new_states = {}, {}
        for path, param in trees.flatten(params).items():
            slots = {name: flat_states[f"{path}/{name}"] for name in _SLOTS}
            plan = self._factoring(path, param.shape)
            grad = flat_grads[path].astype(jnp.float32)
            new_param, new_slots = self._update(param, grad, slots, plan, step=step, learning_rate=learning_rate)
            new_params[path] = new_param.astype(param.dtype)
            new_states |= {f"{path}/{name}": leaf for name, leaf in new_slots.items()}
        state = {"param_states": trees.unflatten(new_states)}
        return trees.unflatten(new_params), state

    def _update(
        self,
        param: Array,
        grad: Array,
        slots: Slots,
        plan: Factoring,
        *,
        step: ArrayLike,
        learning_rate: ArrayLike,
    ) -> tuple[Array, Slots]:
        config = self.config
        t = jnp.maximum(jnp.asarray(step) - config.step_offset, 0).astype(jnp.float32) + 1.0
        update, new_slots = _precondition(grad, slots, plan, b2=1.0 - t**-config.decay_rate, epsilon=config.epsilon1)
        if config.clipping_threshold is not None:
            update /= jnp.maximum(1.0, _root_mean_square(update, plan) / config.clipping_threshold)
        update *= learning_rate * self._scale(param, plan)
        if config.beta1 is not None:
            update = config.beta1 * slots["m"].astype(jnp.float32) + (1.0 - config.beta1) * update
            new_slots["m"] = update.astype(slots["m"].dtype)
        new_param = jnp.asarray((1.0 - self._weight_decay(learning_rate)) * param - update)
        if config.skip_nan_updates:
            new_param = _unless_nan(new_param, param)
            new_slots = {name: _unless_nan(new, slots[name]) for name, new in new_slots.items()}
        return new_param, new_slots

    def _scale(self, param: Array, plan: Factoring) -> Array | float:
        """Returns what the rate is relative to: the parameter's root mean square, within bounds."""
        if not self.config.multiply_by_parameter_scale:
            return 1.0
        scale = jnp.maximum(_root_mean_square(param.astype(jnp.float32), plan), self.config.epsilon2)
        return scale if self.config.max_parameter_scale is None else jnp.minimum(scale, self.config.max_parameter_scale)

    def _weight_decay(self, learning_rate: ArrayLike) -> ArrayLike:
        rate, exponent = self.config.weight_decay_rate, self.config.weight_decay_rate_lr_exponent
        if exponent is not None:
            return (1.0 if rate is None else rate) * jnp.asarray(learning_rate) ** exponent
        return 0.0 if rate is None else rate


def _root_mean_square(x: Array, plan: Factoring) -> Array:
    """Returns one value for each batched parameter, with the dimensions kept."""
    return jnp.sqrt(jnp.mean(x * x, axis=plan.averaging, keepdims=True))


def _unless_nan(new: Array, old: Array) -> Array:
    return jnp.where(jnp.isnan(new), old, new)


def _precondition(grad: Array, slots: Slots, plan: Factoring, *, b2: Array, epsilon: float) -> tuple[Array, Slots]:
    """Returns U = g / sqrt(V) and the slots after this gradient."""
    squared = grad * grad + epsilon
    if not plan.is_factored:
        v = b2 * slots["v"] + (1.0 - b2) * squared
        return grad * v**-0.5, {**slots, "v": v}
    v_row = b2 * slots["v_row"] + (1.0 - b2) * jnp.mean(squared, axis=plan.columns)
    v_col = b2 * slots["v_col"] + (1.0 - b2) * jnp.mean(squared, axis=plan.rows)
    # V = R C / mean(R); taking the roots one by one keeps the products within float32.
    row_factor = (v_row / jnp.mean(v_row, axis=plan.rows_in_row_shape, keepdims=True)) ** -0.5
    column_factor = v_col**-0.5
    update = grad * jnp.expand_dims(row_factor, plan.columns) * jnp.expand_dims(column_factor, plan.rows)
    return update, {**slots, "v_row": v_row, "v_col": v_col}
