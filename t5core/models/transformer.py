"""The stacks: the encoder from embedded tokens to its output, the decoder from tokens to logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax.linen import spmd
from jaxtyping import Array, Float, Int

from t5core.models import attention_masks
from t5core.models.attention import KeyValue
from t5core.models.blocks import (
    Bias,
    CrossContext,
    DecoderContext,
    DecoderLayer,
    EncoderLayer,
    Hidden,
    Mask,
    SelfContext,
    Step,
    dropout_sites,
)
from t5core.models.dropout import Keep, draw_masks, dropped
from t5core.models.layers import Dense, NetworkConfig, RMSNorm, TokenEmbedder
from t5core.models.relative_position import RelativePositionBias
from t5core.models.scanning import run_layers


class Stack(nn.Module):
    """What encoder and decoder have in common: a position bias that layers share, dropout, and how layers run."""

    config: NetworkConfig
    bidirectional: ClassVar[bool]

    def setup(self) -> None:
        """Declares submodules and parameters."""
        if self.config.architecture.relative_position_bias == "shared":
            self.relpos_bias = RelativePositionBias(self.config, bidirectional=self.bidirectional)

    def shared_bias(self, length: int, step: Step | None = None) -> Bias | None:
        """Returns the bias between `length` positions, or of a step to them; None where each layer has its own."""
        if self.config.architecture.relative_position_bias != "shared":
            return None
        return self.relpos_bias(length, length) if step is None else self.relpos_bias.rows(step.position, length)

    def draws(
        self, hidden: Hidden, *, num_layers: int, encoded: Hidden | None, deterministic: bool
    ) -> tuple[Keep | None, Keep | None]:
        """Returns the dropout masks of the stack's ends ("input", "output") and of its layers; None without dropout."""
        rate = self.config.dropout_rate
        if deterministic or rate == 0.0:
            return None, None
        batch, length, embed = hidden.shape
        ends = {"input": (1, embed), "output": (1, embed)}
        encoded_length = None if encoded is None else encoded.shape[1]
        in_layer = dropout_sites(self.config, length=length, encoded_length=encoded_length)
        sites = ends | {name: (num_layers, *site) for name, site in in_layer.items()}
        drawn = draw_masks(self.make_rng("dropout"), rate=rate, batch=batch, sites=sites)
        return {name: drawn[name] for name in ends}, {name: drawn[name] for name in in_layer}

    def run(
        self,
        layers: Sequence[nn.Module],
        detached: nn.Module,
        hidden: Hidden,
        context: Any,
        keep: Keep | None,
    ) -> Hidden:
        """Returns `hidden` after all layers, each applied as a function of its parameters.

        As functions they can be scanned and recomputed. `detached` is such a layer without parameters of its own; to
        create the parameters the bound `layers` run.
        """
        if self.is_initializing():
            for layer in layers:
                hidden = layer(hidden, context)
            return hidden

        def apply_layer(params: Any, hidden: Hidden, context: Any, keep: Keep | None) -> Hidden:
            return detached.apply({"params": params}, hidden, context, keep)  # pyright: ignore[reportReturnType]

        params = nn.meta.unbox(self.variables["params"])
        return run_layers(
            apply_layer,
            [params[f"layers_{index}"] for index in range(len(layers))],
            hidden,
            context,
            keep=keep,
            scan=self.config.scan_layers,
            remat_policy=self.config.remat_policy,
        )


class Encoder(Stack):
    """The stack of encoder layers over embedded tokens, with its norm at the end."""

    bidirectional = True

    def setup(self) -> None:
        """Declares submodules and parameters."""
        super().setup()
        self.layers = [EncoderLayer(self.config) for _ in range(self.config.architecture.num_encoder_layers)]
        self.encoder_norm = RMSNorm(self.config.dtype)

    def __call__(self, embedded: Hidden, mask: Mask, *, deterministic: bool) -> Hidden:
        """Returns the encoder's output."""
        rate, length = self.config.dropout_rate, embedded.shape[1]
        ends, keep = self.draws(embedded, num_layers=len(self.layers), encoded=None, deterministic=deterministic)
        context = SelfContext(mask=mask, bias=self.shared_bias(length))
        hidden = dropped(embedded, ends, "input", rate=rate)
        hidden = self.run(self.layers, EncoderLayer(self.config, parent=None), hidden, context, keep)
        return dropped(self.encoder_norm(hidden), ends, "output", rate=rate)


class Decoder(Stack):
    """The stack of decoder layers, from tokens to float32 logits.

    The embedder is the encoder's (`shared_embedder`), or, in a decoder-only model, the decoder's own.
    """

    shared_embedder: TokenEmbedder | None = None
    bidirectional = False

    def setup(self) -> None:
        """Declares submodules and parameters."""
        super().setup()
        architecture = self.config.architecture
        self.layers = [self._layer() for _ in range(architecture.num_decoder_layers)]
        self.decoder_norm = RMSNorm(self.config.dtype)
        if self.shared_embedder is None:
            self.token_embedder = TokenEmbedder(self.config)
        if not architecture.logits_via_embedding:
            # Logits stay float32 whatever the dtype of the activations, for a stable softmax.
            self.logits_dense = Dense(architecture.vocab_size, ("embed", "vocab"), dtype=jnp.float32)

    def _layer(self, **module: Any) -> DecoderLayer:
        return DecoderLayer(self.config, attends_to_encoder=self.shared_embedder is not None, **module)

    def _embedder(self) -> TokenEmbedder:
        return self.token_embedder if self.shared_embedder is None else self.shared_embedder

    def cross_sources(self, encoded: Float[Array, "batch key embed"]) -> tuple[KeyValue, ...]:
        """Returns each layer's keys and values of the encoder's output, computed once for all decoding steps."""
        return tuple(layer.cross_source(encoded) for layer in self.layers)

    def __call__(
        self, tokens: Int[Array, "batch length"], mask: Mask, cross: CrossContext | None = None, *, deterministic: bool
    ) -> Float[Array, "batch length vocab"]:
        """Returns the logits of whole rows."""
        rate, length = self.config.dropout_rate, tokens.shape[1]
        embedded = self._embedder()(tokens)
        encoded = None if cross is None else cross.encoded
        ends, keep = self.draws(embedded, num_layers=len(self.layers), encoded=encoded, deterministic=deterministic)
        context = DecoderContext(own=SelfContext(mask=mask, bias=self.shared_bias(length)), cross=cross)
        hidden = dropped(embedded, ends, "input", rate=rate)
        hidden = self.run(self.layers, self._layer(parent=None), hidden, context, keep)
        return self._logits(dropped(self.decoder_norm(hidden), ends, "output", rate=rate))

    def prefill(self, tokens: Int[Array, "batch length"], mask: Mask) -> None:
        """Puts the keys and values of whole rows into the "cache" collection."""
        length = tokens.shape[1]
        own = SelfContext(mask=mask, bias=self.shared_bias(length), fills_cache=True)
        hidden = self._embedder()(tokens)
        for layer in self.layers:
            hidden = layer(hidden, DecoderContext(own=own))

    def step(
        self,
        token: Int[Array, "batch 1"],
        step: Step,
        *,
        length: int,
        cross: CrossContext | None = None,
        cross_sources: tuple[KeyValue, ...] | None = None,
    ) -> Float[Array, "batch 1 vocab"]:
        """Returns the logits after one more token per row, from the cache of `length` positions, which it extends.

        Layers are never scanned here: a loop would copy the whole cache in and out at each step.
        """
        own = SelfContext(
            mask=attention_masks.step_mask(step.position, length),
            bias=self.shared_bias(length, step),
            step=step,
        )
        context = DecoderContext(own=own, cross=cross)
        hidden = self._embedder()(token)
        for layer, source in zip(self.layers, cross_sources or (None,) * len(self.layers), strict=True):
            hidden = layer(hidden, context, cross_source=source)
        return self._logits(self.decoder_norm(hidden))

    def _logits(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        if self.config.architecture.logits_via_embedding:
            return self._embedder().attend(hidden)
        return spmd.with_logical_constraint(self.logits_dense(hidden), ("batch", "length", "vocab"))
