"""Metrics of weights, gradients and updates by parameter, under T5X's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5core import trees

_BY_PARAMETER = (
    "weight_rms",
    "weight_gradient_rms",
    "weight_update_rms",
    "weight_update_divided_by_weight_rms",
    "weight_max",
)
_NORM = "weight_gradient_norm"


class WeightMetricsComputer:
    """Computes, for each update, metrics that cost a pass over all parameters and tell where training goes wrong.

    Source: t5x/trainer.py@cc342d4 `WeightMetricsComputer`. Difference from T5X: weights that are 0 count nothing in
    `weight_update_divided_by_weight_rms`, which they make infinite there.
    """

    def compute_metrics(
        self, gradients: Mapping[str, Any], old_params: Mapping[str, Any], new_params: Mapping[str, Any]
    ) -> dict[str, Float[Array, ""]]:
        """Returns `<metric>/<path of the parameter>` for each of T5X's metrics, and the norm of the whole gradient.

        The root mean squares and the largest absolute value are over a parameter's elements: of the weights after the
        update, of the gradient before any clipping, and of the update, itself and divided by the weights before it.

        Args:
          gradients: of the loss.
          old_params: before the update.
          new_params: after it.
        """
        # Behind the barrier nothing of this is fused into the update, whose bits must not depend on being watched.
        gradients, old, new = jax.lax.optimization_barrier((gradients, old_params, new_params))
        update = jax.tree.map(jnp.subtract, new, old)
        ratio = jax.tree.map(lambda change, weight: jnp.where(weight == 0, 0, change / weight), update, old)
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(gradients)]
        return {
            **_by_parameter("weight_rms", new, _rms),
            **_by_parameter("weight_gradient_rms", gradients, _rms),
            _NORM: jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32))),
            **_by_parameter("weight_update_rms", update, _rms),
            **_by_parameter("weight_update_divided_by_weight_rms", ratio, _rms),
            **_by_parameter("weight_max", new, lambda leaf: jnp.max(jnp.abs(leaf))),
        }


def averaged(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the weight metrics among the metrics of some steps, averaged over them as in T5X; {} without any."""
    names = [name for name in steps[0] if name == _NORM or name.startswith(tuple(f"{n}/" for n in _BY_PARAMETER))]
    return {name: sum(float(step[name]) for step in steps) / len(steps) for name in names}


def _rms(leaf: Array) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(jnp.square(leaf.astype(jnp.float32))))


def _by_parameter(name: str, tree: Mapping[str, Any], measure: Callable[[Array], Array]) -> dict[str, Float[Array, ""]]:
    return {f"{name}/{path}": measure(leaf).astype(jnp.float32) for path, leaf in trees.flatten(tree).items()}
