"""What both decoders share: the state that a model is shown, and caches that serve several decodes of each row.

Dims: `batch` rows are decoded `decodes` times each; `flat` = batch x decodes, with the decodes of a row side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

Cache: TypeAlias = Any  # any pytree of arrays


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingState:
    """Where a decoder stands, as `tokens_to_logits` is shown it.

    Attributes:
      cur_index: position of `cur_token` in `sequences`: a scalar in beam search, one per decode in sampling, where
        prefilled prompts may differ in length.
      sequences: the tokens so far, behind a BOS slot; 0 where nothing is decoded yet.
      cur_token: the token that the next one is to follow.
      cache: what `tokens_to_logits` returned last.
    """

    cur_index: Int[Array, ""] | Int[Array, " flat"]
    sequences: Int[Array, "flat width"]
    cur_token: Int[Array, "flat 1"]
    cache: Cache


TokensToLogits: TypeAlias = Callable[[DecodingState], tuple[Float[Array, "flat vocab"], Cache]]


def is_known(value: Any) -> bool:
    """Tells whether `value` can be looked at now, rather than being traced by a transformation."""
    return not isinstance(value, Tracer)


def settled(value: Any) -> Any:
    """Returns `value`, as a number or numpy array if it is a known JAX array, whose comparisons JAX would trace."""
    if not isinstance(value, jax.Array) or not is_known(value):
        return value
    return value.item() if value.ndim == 0 else np.asarray(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """Which leaves of a cache hold a slice for each batch row, and at which axis.

    T5X picks the leaves by name. Here a leaf has rows when it has `batch` entries at the axis; scalars and whatever
    else has none (a position counter, a relative position bias) are shared by the rows and left alone. This is read
    once off the cache as it is handed in, since a shared leaf could be as long as batch x decodes by chance.
    """

    axis: int
    has_rows: Any  # a tree of bools like the cache

    @classmethod
    def of(cls, cache: Cache, *, batch_size: int, axis: int) -> CacheLayout:
        """Returns the layout of `cache`, whose rows stand at `axis`: 1 when layers are stacked in front of them."""

        def has_rows(leaf: Array) -> bool:
            return jnp.ndim(leaf) > axis and jnp.shape(leaf)[axis] == batch_size

        return cls(axis=axis, has_rows=jax.tree.map(has_rows, cache))

    def repeat(self, cache: Cache, *, decodes: int) -> Cache:
        """Returns `cache` with each row repeated `decodes` times, the copies side by side."""
        if decodes == 1:
            return cache

        def repeated(has_rows: bool, leaf: Array) -> Array:
            return jnp.repeat(leaf, decodes, axis=self.axis) if has_rows else leaf

        return jax.tree.map(repeated, self.has_rows, cache)

    def gather(self, cache: Cache, *, parents: Int[Array, "batch decodes"]) -> Cache:
        """Returns `cache` with decode `d` of row `b` taken from decode `parents[b, d]` of the same row.

        The take is batched over the rows, so that a cache sharded by row is reordered without communication.
        """
        batch_size, decodes = parents.shape
        if decodes == 1:
            return cache

        def gathered(has_rows: bool, leaf: Array) -> Array:
            if not has_rows:
                return leaf
            before, after = leaf.shape[: self.axis], leaf.shape[self.axis + 1 :]
            rows = leaf.reshape(*before, batch_size, decodes, *after)
            take = jax.vmap(
                lambda row, chosen: jnp.take(row, chosen, axis=self.axis, mode="clip"),
                in_axes=(self.axis, 0),
                out_axes=self.axis,
            )
            return take(rows, parents).reshape(leaf.shape)

        return jax.tree.map(gathered, self.has_rows, cache)
