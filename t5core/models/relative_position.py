"""T5's relative position bias: a learned number per head and bucket of distance.

All layers of a stack share it, or, in umT5, each layer has its own.

Source: arXiv:1910.10683 section 2.1; arXiv:2304.09151; `t5x/examples/t5/layers.py@cc342d4: RelativePositionBiases`.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import initializers
from jaxtyping import Array, Float, Int

from t5core.models.layers import NetworkConfig, parameter


def distance_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance 0..max_distance on one side.

    Half of the buckets hold one distance each, the others grow logarithmically; what lies beyond shares the last.
    """
    num_exact = num_buckets // 2
    table = np.arange(max_distance + 1)
    for distance in range(num_exact, max_distance + 1):
        fraction = math.log(distance / num_exact) / math.log(max_distance / num_exact)
        # A hair above the exact value, so that a boundary such as log(4)/log(16) falls on its own side.
        table[distance] = min(num_exact + int(fraction * (num_buckets - num_exact) + 1e-6), num_buckets - 1)
    return table


def _toeplitz(
    by_distance: Float[Array, "heads distances"], num_queries: int, num_keys: int
) -> Float[Array, "heads query key"]:
    """Returns entry [h, q, k] = by_distance[h, k - q + num_queries - 1].

    By padding and reshaping: the gradient is then a sum over rows instead of a scatter of query*key numbers.
    """
    heads, distances = by_distance.shape
    # Rows one longer than they are read: each row of the reshaped array starts one place earlier in its copy.
    rows = jnp.tile(jnp.pad(by_distance, ((0, 0), (0, 1)))[:, None], (1, num_queries, 1))
    skewed = rows.reshape(heads, -1)[:, : num_queries * distances].reshape(heads, num_queries, distances)
    return skewed[:, :, num_queries - 1 :]


class RelativePositionBias(nn.Module):
    """The bias that self-attention adds to its scores, in float32."""

    config: NetworkConfig
    bidirectional: bool

    def setup(self) -> None:
        """Declares submodules and parameters."""
        architecture = self.config.architecture
        shape = (architecture.num_heads, architecture.relative_attention_num_buckets)
        init = initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.rel_embedding = parameter(self, "rel_embedding", init, shape, ("heads", "relpos_buckets"))

    def _buckets(self, distance: Int[Array, "*dims"]) -> Int[Array, "*dims"]:
        """Returns the bucket of each distance (key position minus query position)."""
        architecture = self.config.architecture
        num_buckets, max_distance = (
            architecture.relative_attention_num_buckets,
            architecture.relative_attention_max_distance,
        )
        if not self.bidirectional:
            return jnp.asarray(distance_buckets(num_buckets, max_distance))[jnp.clip(-distance, 0, max_distance)]
        side = jnp.asarray(distance_buckets(num_buckets // 2, max_distance))
        return side[jnp.minimum(jnp.abs(distance), max_distance)] + (distance > 0) * (num_buckets // 2)

    def __call__(self, num_queries: int, num_keys: int) -> Float[Array, "1 heads query key"]:
        """Returns the bias between the first positions."""
        buckets = self._buckets(jnp.arange(1 - num_queries, num_keys))
        return _toeplitz(jnp.take(self.rel_embedding, buckets, axis=1), num_queries, num_keys)[None]

    def rows(self, position: Int[Array, " batch"], num_keys: int) -> Float[Array, "batch heads 1 key"]:
        """Returns the bias of the queries at `position` to the first keys."""
        buckets = self._buckets(jnp.arange(num_keys) - position[:, None])
        return jnp.take(self.rel_embedding, buckets, axis=1).swapaxes(0, 1)[:, :, None]
