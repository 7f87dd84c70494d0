"""Running a stack of equal layers: unrolled or scanned, with or without recomputation in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5core import errors
from t5core.models.dropout import Keep

Hidden = Float[Array, "batch length embed"]
# (parameters of one layer, hidden, what all layers share, the layer's dropout masks or None) -> hidden
ApplyLayer = Callable[[Any, Hidden, Any, Keep | None], Hidden]


def rematerialised(apply_layer: ApplyLayer, policy: str, *, scanned: bool) -> ApplyLayer:
    """Returns `apply_layer` with the recomputation that `policy` asks for; the values are the same.

    Raises:
      ConfigError: there is no such policy.
    """
    if policy == "none":
        return apply_layer
    saved = {
        "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    if policy not in saved:
        raise errors.ConfigError(errors.unknown_name("model.remat_policy", policy, ("none", *saved)))
    # A loop keeps the compiler from merging the recomputation with the forward pass; unrolled layers need the barrier.
    return jax.checkpoint(apply_layer, policy=saved[policy], prevent_cse=not scanned)


def run_layers(
    apply_layer: ApplyLayer,
    layer_params: Sequence[Any],
    hidden: Hidden,
    context: Any,
    *,
    keep: Keep | None,
    scan: bool,
    remat_policy: str,
) -> Hidden:
    """Returns `hidden` after all layers.

    With `scan` the parameters are stacked here, inside the computation: one layer is compiled instead of all, at the
    price of a second copy of the parameters. Either way gives the same numbers, up to rounding.

    Args:
      apply_layer: one layer as a function of its parameters.
      layer_params: by layer.
      hidden: into the first layer.
      context: handed to each layer.
      keep: dropout masks, with the layers as second dim; None: no dropout.
      scan: whether to loop instead of to unroll.
      remat_policy: see `rematerialised`.
    """
    apply_layer = rematerialised(apply_layer, remat_policy, scanned=scan)
    if not scan:
        for index, params in enumerate(layer_params):
            layer_masks = jax.tree.map(lambda mask, i=index: mask[:, i], keep)
            hidden = apply_layer(params, hidden, context, layer_masks)
        return hidden

    def scan_body(hidden: Hidden, layer: tuple[Any, Keep | None]) -> tuple[Hidden, None]:
        params, layer_masks = layer
        return apply_layer(params, hidden, context, layer_masks), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layer_params)
    layers_first = jax.tree.map(lambda mask: jnp.moveaxis(mask, 1, 0), keep)
    return jax.lax.scan(scan_body, hidden, (stacked, layers_first))[0]
