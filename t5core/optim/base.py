"""What an optimiser is."""

from __future__ import annotations

from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

Params = dict[str, Any]
OptState = dict[str, Any]


class Optimizer(Protocol):
    """Turns gradients into new parameters. Both functions are pure and may be jitted.

    Attributes:
      state_per_parameter: whether the state is {"param_states": one dict of arrays for each parameter, at its path}.
        Such states of several optimisers can be joined into one tree, so each looks only at those of its parameters.
    """

    @property
    def state_per_parameter(self) -> bool: ...  # noqa: D102 - described above

    def init(self, params: Params) -> OptState:
        """Returns the state before the first update: nested dicts of arrays."""
        ...

    def apply_gradient(
        self, grads: Params, params: Params, opt_state: OptState, *, step: ArrayLike, learning_rate: ArrayLike
    ) -> tuple[Params, OptState]:
        """Returns the parameters and the state after one update.

        Args:
          grads: the gradient of the loss, a tree like `params`.
          params: what is updated.
          opt_state: from `init` or the update before.
          step: updates done so far, over the whole life of the run.
          learning_rate: the rate of this update.
        """
        ...


def clip_by_global_norm(grads: Params, max_norm: float) -> Params:
    """Returns `grads` in float32, scaled down where their norm over all leaves exceeds `max_norm`.

    Source: arXiv:1211.5063.
    """
    exact = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
    clipped, _ = optax.clip_by_global_norm(max_norm).update(exact, optax.EmptyState())
    return cast(Params, clipped)
