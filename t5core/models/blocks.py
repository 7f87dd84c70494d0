"""One layer of the encoder and one of the decoder: pre-norm residual blocks.

Submodules are named as in T5X, so that parameters have its paths.
Source: `t5x/examples/t5/network.py@cc342d4`, `t5x/examples/decoder_only/network.py@cc342d4`.
"""

from __future__ import annotations

from typing import ClassVar

from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5core.models.attention import Attention, KeyValue
from t5core.models.dropout import Keep, dropped
from t5core.models.layers import FeedForward, NetworkConfig, RMSNorm
from t5core.models.relative_position import RelativePositionBias

Hidden = Float[Array, "batch length embed"]
Mask = Bool[Array, "batch 1 query key"]
Bias = Float[Array, "batch heads query key"]


@struct.dataclass
class Step:
    """The position of each row that is decoded now, and whether it may be stored in the cache."""

    position: Int[Array, " batch"]
    writable: Bool[Array, " batch"]


@struct.dataclass
class SelfContext:
    """What self-attention of every layer shares.

    Attributes:
      mask: which keys each query sees.
      bias: added to the scores; None where each layer has its own.
      step: set while decoding one position at a time.
      fills_cache: whether keys and values are kept for decoding.
    """

    mask: Mask
    bias: Bias | None
    step: Step | None = None
    fills_cache: bool = struct.field(pytree_node=False, default=False)


@struct.dataclass
class CrossContext:
    """What the decoder sees of the encoder; `encoded` is its output, None where each layer is given what it needs."""

    mask: Mask
    encoded: Float[Array, "batch key embed"] | None = None


@struct.dataclass
class DecoderContext:
    """What every decoder layer shares; `cross` is None in a decoder-only model."""

    own: SelfContext
    cross: CrossContext | None = None


def dropout_sites(
    config: NetworkConfig, *, length: int, encoded_length: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes, without batch, of the dropout masks of one layer; the queries share each of them.

    Args:
      config: of the network.
      length: positions that self-attention sees.
      encoded_length: positions that attention to the encoder sees; None: there is none.
    """
    architecture = config.architecture
    output = (1, architecture.emb_dim)
    sites = {
        "self_weights": (architecture.num_heads, 1, length),
        "self_output": output,
        "mlp_hidden": (1, architecture.mlp_dim),
        "mlp_output": output,
    }
    if encoded_length is not None:
        sites |= {"cross_weights": (architecture.num_heads, 1, encoded_length), "cross_output": output}
    return sites


class Layer(nn.Module):
    """What both kinds of layers have in common: a position bias of their own, where they do not share one."""

    config: NetworkConfig
    bidirectional: ClassVar[bool]

    def setup(self) -> None:
        """Declares submodules and parameters."""
        if self.config.architecture.relative_position_bias == "per_layer":
            self.relpos_bias = RelativePositionBias(self.config, bidirectional=self.bidirectional)

    def position_bias(self, hidden: Hidden, context: SelfContext) -> Bias:
        """Returns the bias that the layers share, or this layer's own."""
        if context.bias is not None:
            return context.bias
        if context.step is not None:
            return self.relpos_bias.rows(context.step.position, context.mask.shape[-1])
        return self.relpos_bias(hidden.shape[1], hidden.shape[1])


class EncoderLayer(Layer):
    """Bidirectional self-attention and a feed-forward block."""

    bidirectional = True

    def setup(self) -> None:
        """Declares submodules and parameters."""
        super().setup()
        self.pre_attention_layer_norm = RMSNorm(self.config.dtype)
        self.attention = Attention(self.config)
        self.pre_mlp_layer_norm = RMSNorm(self.config.dtype)
        self.mlp = FeedForward(self.config)

    def __call__(self, hidden: Hidden, context: SelfContext, keep: Keep | None = None) -> Hidden:
        """Returns the layer's output; without dropout masks there is no dropout."""
        rate = self.config.dropout_rate
        x = self.pre_attention_layer_norm(hidden)
        source = self.attention.keys_values(x)
        bias = self.position_bias(hidden, context)
        x = self.attention(x, source, mask=context.mask, bias=bias, keep=keep, site="self_weights")
        hidden = hidden + dropped(x, keep, "self_output", rate=rate)
        x = self.mlp(self.pre_mlp_layer_norm(hidden), keep)
        return hidden + dropped(x, keep, "mlp_output", rate=rate)


class DecoderLayer(Layer):
    """Causal self-attention, attention to the encoder where there is one, and a feed-forward block."""

    attends_to_encoder: bool
    bidirectional = False

    def setup(self) -> None:
        """Declares submodules and parameters."""
        super().setup()
        self.pre_self_attention_layer_norm = RMSNorm(self.config.dtype)
        self.self_attention = Attention(self.config)
        if self.attends_to_encoder:
            self.pre_cross_attention_layer_norm = RMSNorm(self.config.dtype)
            self.encoder_decoder_attention = Attention(self.config)
        self.pre_mlp_layer_norm = RMSNorm(self.config.dtype)
        self.mlp = FeedForward(self.config)

    def cross_source(self, encoded: Float[Array, "batch key embed"]) -> KeyValue:
        """Returns the keys and values that this layer takes from the encoder's output."""
        return self.encoder_decoder_attention.keys_values(encoded)

    def _self_attention(self, hidden: Hidden, context: SelfContext, keep: Keep | None) -> Hidden:
        x = self.pre_self_attention_layer_norm(hidden)
        source = self.self_attention.keys_values(x)
        if context.step is not None:
            source = self.self_attention.extend_cache(source, context.step.position, context.step.writable)
        if context.fills_cache:
            self.self_attention.fill_cache(source)
        bias = self.position_bias(hidden, context)
        return self.self_attention(x, source, mask=context.mask, bias=bias, keep=keep, site="self_weights")

    def _cross_attention(
        self, hidden: Hidden, context: CrossContext, source: KeyValue | None, keep: Keep | None
    ) -> Hidden:
        x = self.pre_cross_attention_layer_norm(hidden)
        if source is None:
            assert context.encoded is not None, "either the encoder's output or the layer's source of it is given"
            source = self.cross_source(context.encoded)
        return self.encoder_decoder_attention(x, source, mask=context.mask, keep=keep, site="cross_weights")

    def __call__(
        self,
        hidden: Hidden,
        context: DecoderContext,
        keep: Keep | None = None,
        cross_source: KeyValue | None = None,
    ) -> Hidden:
        """Returns the layer's output.

        Args:
          hidden: the layer's input.
          context: what all layers share.
          keep: dropout masks; None: no dropout.
          cross_source: this layer's keys and values of the encoder's output; None computes them from it.
        """
        rate = self.config.dropout_rate
        x = self._self_attention(hidden, context.own, keep)
        hidden = hidden + dropped(x, keep, "self_output", rate=rate)
        if context.cross is not None:
            x = self._cross_attention(hidden, context.cross, cross_source, keep)
            hidden = hidden + dropped(x, keep, "cross_output", rate=rate)
        x = self.mlp(self.pre_mlp_layer_norm(hidden), keep)
        return hidden + dropped(x, keep, "mlp_output", rate=rate)
