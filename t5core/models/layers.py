"""The layers without attention: dense, RMS norm, feed-forward and the token embedding.

Parameters are float32 and carry T5X's logical axis names; activations have `NetworkConfig.dtype`.
Source: `t5x/examples/t5/layers.py@cc342d4`; T5 1.1, arXiv:2002.05202 for the gated feed-forward.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import initializers, spmd
from jaxtyping import Array, Float, Int

from t5core.config.presets import Architecture
from t5core.models.dropout import Keep, dropped

NORM_EPSILON = 1e-6
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "linear": lambda x: x}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What the modules need to know: the dimensions, and how to compute.

    `scan_layers` compiles one layer and loops over it; the parameters stay one subtree per layer.
    `remat_policy` "minimal" recomputes everything but matrix products with weights in the backward pass, "full" all.
    """

    architecture: Architecture
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    scan_layers: bool = False
    remat_policy: str = "none"


def parameter(
    module: nn.Module, name: str, init: initializers.Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
) -> Array:
    """Returns the float32 parameter `name` of `module`, created by `init` with the names of its axes."""
    return cast(Array, module.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32))


class Dense(nn.Module):
    """A product with a [inputs, features] kernel, without bias."""

    features: int
    axes: tuple[str, str]
    kernel_init: initializers.Initializer = initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        """Returns the product, in the layer's dtype."""
        kernel = parameter(self, "kernel", self.kernel_init, (inputs.shape[-1], self.features), self.axes)
        return jnp.dot(inputs.astype(self.dtype), kernel.astype(self.dtype))


class RMSNorm(nn.Module):
    """Division by the root mean square, computed in float32, and a learned scale; no mean, no bias."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        """Returns the scaled inputs, in the layer's dtype."""
        scale = parameter(self, "scale", initializers.ones, (inputs.shape[-1],), ("embed",))
        wide = inputs.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + NORM_EPSILON)
        return normed.astype(self.dtype) * scale.astype(self.dtype)


class FeedForward(nn.Module):
    """The feed-forward block: `wi` (or gated `wi_0`, `wi_1`, ...), dropout, `wo`."""

    config: NetworkConfig

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "batch length embed"], keep: Keep | None = None
    ) -> Float[Array, "batch length embed"]:
        """Returns the block's output; without dropout masks there is no dropout."""
        architecture, dtype = self.config.architecture, self.config.dtype
        names = architecture.mlp_activations
        branches = [
            ACTIVATIONS[activation](
                Dense(
                    architecture.mlp_dim, ("embed", "mlp"), dtype=dtype, name="wi" if len(names) == 1 else f"wi_{index}"
                )(inputs)
            )
            for index, activation in enumerate(names)
        ]
        hidden = functools.reduce(operator.mul, branches)
        hidden = dropped(hidden, keep, "mlp_hidden", rate=self.config.dropout_rate)
        hidden = spmd.with_logical_constraint(hidden, ("batch", "length", "mlp"))
        return Dense(inputs.shape[-1], ("mlp", "embed"), dtype=dtype, name="wo")(hidden)


class TokenEmbedder(nn.Module):
    """The token embedding, which is also the output projection when the logits are tied to it."""

    config: NetworkConfig

    def setup(self) -> None:
        """Declares submodules and parameters."""
        architecture = self.config.architecture
        shape = (architecture.vocab_size, architecture.emb_dim)
        self.embedding = parameter(self, "embedding", initializers.normal(1.0), shape, ("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """Returns the tokens' rows; an id beyond the vocabulary gives NaN, so that it cannot go unseen.

        Difference from T5X: a gather instead of a product with one-hot rows, with the same values.
        """
        return jnp.take(self.embedding, tokens.astype(jnp.int32), axis=0, mode="fill").astype(self.config.dtype)

    def attend(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Returns float32 logits by products with the embedding, scaled by 1/sqrt(embed) as T5 1.0 does."""
        logits = jnp.einsum("ble,ve->blv", hidden.astype(jnp.float32), self.embedding)
        return logits / jnp.sqrt(jnp.float32(hidden.shape[-1]))
