"""Multi-head attention, and the cache of keys and values that decoding step by step needs.

T5 does not scale the scores: the factor 1/sqrt(head_dim) is in the initial query kernel.
Source: `t5x/examples/t5/layers.py@cc342d4: MultiHeadDotProductAttention`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen import initializers, spmd
from jaxtyping import Array, Bool, Float, Int

from t5core.models.dropout import Keep, dropped
from t5core.models.layers import Dense, NetworkConfig

MASKED = -1e10

_kernel_init = initializers.variance_scaling(1.0, "fan_in", "normal")


@struct.dataclass
class KeyValue:
    """What attention looks at, with heads before positions, the layout that both matrix products take."""

    key: Float[Array, "batch heads key head_dim"]
    value: Float[Array, "batch heads key head_dim"]


def empty_cache(config: NetworkConfig, *, batch: int, length: int) -> dict[str, Array]:
    """Returns one attention's share of flax's "cache" collection, for rows of `length` positions."""
    shape = (batch, config.architecture.num_heads, length, config.architecture.head_dim)
    return {name: jnp.zeros(shape, config.dtype) for name in ("cached_key", "cached_value")}


class Attention(nn.Module):
    """Queries, keys and values from 2-D kernels, scores with a bias, softmax in float32, output projection."""

    config: NetworkConfig

    def setup(self) -> None:
        """Declares submodules and parameters."""
        architecture = self.config.architecture
        scale = math.sqrt(architecture.head_dim)

        def query_init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **_: Any) -> Array:
            return _kernel_init(key, shape, dtype) / scale

        projection = functools.partial(
            Dense, architecture.num_heads * architecture.head_dim, ("embed", "joined_kv"), dtype=self.config.dtype
        )
        self.query = projection(kernel_init=query_init)
        self.key = projection(kernel_init=_kernel_init)
        self.value = projection(kernel_init=_kernel_init)
        self.out = Dense(
            architecture.emb_dim, ("joined_kv", "embed"), kernel_init=_kernel_init, dtype=self.config.dtype
        )

    def _heads_first(self, x: Float[Array, "batch length joined"]) -> Float[Array, "batch heads length head_dim"]:
        architecture = self.config.architecture
        x = spmd.with_logical_constraint(x, ("batch", "length", "joined_kv"))
        return x.reshape(*x.shape[:2], architecture.num_heads, architecture.head_dim).swapaxes(1, 2)

    def keys_values(self, inputs: Float[Array, "batch key embed"]) -> KeyValue:
        """Returns the keys and values of `inputs`."""
        return KeyValue(key=self._heads_first(self.key(inputs)), value=self._heads_first(self.value(inputs)))

    def fill_cache(self, source: KeyValue) -> None:
        """Stores the keys and values of whole rows."""
        self.put_variable("cache", "cached_key", source.key)
        self.put_variable("cache", "cached_value", source.value)

    def extend_cache(
        self, source: KeyValue, position: Int[Array, " batch"], writable: Bool[Array, " batch"]
    ) -> KeyValue:
        """Returns all that is cached once `source`, of one position per row, is stored at `position`.

        Rows that are not `writable`, and positions beyond the end, keep what they have.
        """
        cached = KeyValue(
            key=self.get_variable("cache", "cached_key"), value=self.get_variable("cache", "cached_value")
        )
        here = (jnp.arange(cached.key.shape[2]) == position[:, None]) & writable[:, None]
        extended = jax.tree.map(lambda old, new: jnp.where(here[:, None, :, None], new, old), cached, source)
        self.fill_cache(extended)
        return extended

    def __call__(
        self,
        inputs: Float[Array, "rows query embed"],
        source: KeyValue,
        *,
        mask: Bool[Array, "batch 1 query key"],
        bias: Float[Array, "batch heads query key"] | None = None,
        keep: Keep | None = None,
        site: str = "weights",
    ) -> Float[Array, "rows query embed"]:
        """Returns what each position of `inputs` gathers from `source` through the mask.

        `source` may have fewer rows: then each of them serves as many consecutive rows of one query each (the decodes
        of one example), which so need no copies of its keys and values.
        """
        rows, length, _ = inputs.shape
        query = self._heads_first(self.query(inputs))
        group = rows // source.key.shape[0]
        if group > 1:
            query = query.reshape(-1, group, query.shape[1], query.shape[3]).swapaxes(1, 2)
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, source.key, preferred_element_type=jnp.float32)
        scores = jnp.where(mask, scores if bias is None else scores + bias, MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.config.dtype)
        weights = dropped(weights, keep, site, rate=self.config.dropout_rate)
        gathered = jnp.einsum("bhqk,bhkd->bhqd", weights, source.value)
        return self.out(gathered.swapaxes(1, 2).reshape(rows, length, -1))
