"""The two T5 networks, tokens to logits: encoder-decoder and decoder-only.

Each has a pass over whole rows (`__call__`) and a pass over one position (`step`) that continues from a cache.
Token 0 is padding, and the first input of a row.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from t5core.models import attention_masks
from t5core.models.attention import KeyValue, empty_cache
from t5core.models.blocks import CrossContext, Step
from t5core.models.layers import NetworkConfig, TokenEmbedder
from t5core.models.transformer import Decoder, Encoder

Tokens = Int[Array, "batch length"]
Logits = Float[Array, "batch length vocab"]
Position = Int[Array, ""] | Int[Array, " rows"]


def initial_cache(config: NetworkConfig, *, batch: int, length: int) -> dict[str, Any]:
    """Returns the "cache" collection of a decoder before its first step; every leaf has the batch first."""
    return {
        "decoder": {
            f"layers_{index}": {"self_attention": empty_cache(config, batch=batch, length=length)}
            for index in range(config.architecture.num_decoder_layers)
        }
    }


def _step(token: Tokens, position: Position, prompt_lengths: Int[Array, " batch"] | None = None) -> Step:
    """Returns the step at `position` (a scalar, or one number per row); positions inside a prompt are not stored."""
    position = jnp.broadcast_to(jnp.asarray(position, jnp.int32), token.shape[:1])
    writable = jnp.ones_like(position, bool) if prompt_lengths is None else position >= prompt_lengths
    return Step(position=position, writable=writable)


class EncoderDecoder(nn.Module):
    """T5: an encoder, and a decoder that attends to its output; both share the token embedding."""

    config: NetworkConfig

    def setup(self) -> None:
        """Declares submodules and parameters."""
        self.token_embedder = TokenEmbedder(self.config)
        self.encoder = Encoder(self.config)
        self.decoder = Decoder(self.config, self.token_embedder)

    def encode(
        self, encoder_input_tokens: Tokens, *, segment_ids: Tokens | None = None, deterministic: bool = True
    ) -> Float[Array, "batch length embed"]:
        """Returns the encoder's output."""
        mask = attention_masks.encoder_mask(encoder_input_tokens, segment_ids)
        return self.encoder(self.token_embedder(encoder_input_tokens), mask, deterministic=deterministic)

    def __call__(
        self,
        encoder_input_tokens: Tokens,
        decoder_input_tokens: Tokens,
        decoder_target_tokens: Tokens,
        *,
        encoder_segment_ids: Tokens | None = None,
        decoder_segment_ids: Tokens | None = None,
        deterministic: bool = True,
    ) -> Logits:
        """Returns the logits of every target; the targets only tell which positions are padding."""
        encoded = self.encode(encoder_input_tokens, segment_ids=encoder_segment_ids, deterministic=deterministic)
        cross_mask = attention_masks.cross_mask(
            decoder_target_tokens, encoder_input_tokens, decoder_segment_ids, encoder_segment_ids
        )
        return self.decoder(
            decoder_input_tokens,
            attention_masks.decoder_mask(decoder_target_tokens, decoder_segment_ids),
            CrossContext(mask=cross_mask, encoded=encoded),
            deterministic=deterministic,
        )

    def cross_sources(self, encoded: Float[Array, "batch length embed"]) -> tuple[KeyValue, ...]:
        """Returns the keys and values that each decoder layer takes from the encoder's output."""
        return self.decoder.cross_sources(encoded)

    def step(
        self,
        token: Int[Array, "rows 1"],
        position: Position,
        sources: tuple[KeyValue, ...],
        encoder_input_tokens: Tokens,
        *,
        length: int,
    ) -> Float[Array, "rows 1 vocab"]:
        """Returns the logits of the next token; rows may be several per example, one after another."""
        mask = (encoder_input_tokens > 0)[:, None, None, :]
        return self.decoder.step(
            token, _step(token, position), length=length, cross=CrossContext(mask=mask), cross_sources=sources
        )


class DecoderOnly(nn.Module):
    """The decoder alone, as a causal language model or with a prefix that is seen in both directions."""

    config: NetworkConfig

    def setup(self) -> None:
        """Declares submodules and parameters."""
        self.decoder = Decoder(self.config)

    def __call__(
        self,
        decoder_input_tokens: Tokens,
        decoder_target_tokens: Tokens,
        *,
        decoder_segment_ids: Tokens | None = None,
        decoder_causal_attention: Tokens | None = None,
        deterministic: bool = True,
    ) -> Logits:
        """Returns the logits of every target; the targets only tell which positions are padding."""
        mask = attention_masks.decoder_mask(decoder_target_tokens, decoder_segment_ids, decoder_causal_attention)
        return self.decoder(decoder_input_tokens, mask, deterministic=deterministic)

    def prefill(self, prompt: Tokens, in_prompt: Tokens, *, bidirectional: bool) -> None:
        """Fills the cache with prompts, in one pass.

        Args:
          prompt: input tokens, 0 first and 0 behind the prompt.
          in_prompt: 1 for every input of the prompt, the 0 that starts it included.
          bidirectional: whether prompt positions see each other in both directions.
        """
        self.decoder.prefill(
            prompt, attention_masks.decoder_mask(in_prompt, None, in_prompt if bidirectional else None)
        )

    def step(
        self,
        token: Int[Array, "rows 1"],
        position: Position,
        prompt_lengths: Int[Array, " rows"],
        *,
        length: int,
    ) -> Float[Array, "rows 1 vocab"]:
        """Returns the logits of the next token; what the cache holds of the first `prompt_lengths` inputs stays."""
        return self.decoder.step(token, _step(token, position, prompt_lengths), length=length)
