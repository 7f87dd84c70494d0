"""Dropout whose masks are shared by all positions of a row, as T5's are.

All masks of a stack of layers come from one draw. Every draw is a program of its own to the compiler: one for each of
the dozens of dropouts of a network doubles the time to compile a small one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# The masks by site: True where an entry is kept.
Keep = Mapping[str, Bool[Array, "..."]]


def draw_masks(key: Array, *, rate: float, batch: int, sites: Mapping[str, tuple[int, ...]]) -> Keep:
    """Returns a mask of shape [batch, *site] for each site, in which each entry is False with probability `rate`."""
    sizes = [math.prod(site) for site in sites.values()]
    kept = jax.random.bernoulli(key, 1.0 - rate, (batch, sum(sizes)))
    parts = jnp.split(kept, np.cumsum(sizes)[:-1], axis=-1)
    return {name: part.reshape(batch, *site) for (name, site), part in zip(sites.items(), parts, strict=True)}


def dropped(x: Float[Array, "*dims"], keep: Keep | None, site: str, *, rate: float) -> Float[Array, "*dims"]:
    """Returns `x` with 0 where the site's mask does not keep it, the rest scaled up; without masks `x` itself."""
    if keep is None:
        return x
    return jnp.where(keep[site], x / (1.0 - rate), jnp.zeros((), x.dtype))
