"""The encoder-decoder model: features in, loss, scores and predictions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5core import errors
from t5core.models.base import BaseTransformerModel, Batch, Params
from t5core.models.networks import EncoderDecoder, initial_cache


class EncoderDecoderModel(BaseTransformerModel):
    """T5: `encoder_input_tokens` in, `decoder_target_tokens` out.

    Source: `t5x/models.py@cc342d4: EncoderDecoderModel`.
    """

    module: EncoderDecoder

    @property
    def FEATURE_CONVERTER_CLS(self) -> type:
        """`seqio.EncDecFeatureConverter`; imports SeqIO."""
        import seqio

        return seqio.EncDecFeatureConverter

    def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, tuple[int, ...]]) -> Params:
        """See the base class; needs `encoder_input_tokens` and `decoder_input_tokens`."""
        encoder_tokens = jnp.ones(input_shapes["encoder_input_tokens"], jnp.int32)
        decoder_tokens = jnp.ones(input_shapes["decoder_input_tokens"], jnp.int32)
        return self.module.init(rng, encoder_tokens, decoder_tokens, decoder_tokens)["params"]

    def _logits(self, params: Params, batch: Batch, dropout_rng: Array | None) -> Float[Array, "batch length vocab"]:
        packed = [name for name in ("encoder_segment_ids", "decoder_segment_ids") if name in batch]
        if len(packed) == 1:
            raise errors.ConfigError(f"the batch has {packed[0]} alone; give both segment ids, or neither")
        return self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )  # pyright: ignore[reportReturnType]

    def _token_features(self, batch: Batch) -> dict[str, tuple[Int[Array, "batch length"], bool]]:
        if "decoder_segment_ids" in batch:
            return {"encoder": (batch["encoder_segment_ids"], True), "decoder": (batch["decoder_segment_ids"], True)}
        names = ("encoder_input_tokens", "decoder_target_tokens")
        return {name: (batch[name], False) for name in names}

    def predict_batch_with_aux(
        self,
        params: Params,
        batch: Batch,
        *,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        prompt_with_targets: bool = False,
    ) -> tuple[Int[Array, "batch *decodes length"], dict[str, Array]]:
        """See the base class; at most as many tokens as `decoder_input_tokens` has positions.

        The encoder runs once per example, and so do the keys and values that the decoder takes from it: all decodes of
        an example share them. With `prompt_with_targets` the output starts with the targets, without their EOS.
        """
        if "encoder_segment_ids" in batch:
            raise errors.ConfigError("the batch is packed (encoder_segment_ids); decode unpacked examples")
        num_decodes = self._default_decoder_params.num_decodes if num_decodes is None else num_decodes
        variables = {"params": params}
        encoder_tokens = batch["encoder_input_tokens"]
        encoded = self.module.apply(variables, encoder_tokens, method="encode")
        sources = self.module.apply(variables, encoded, method="cross_sources")
        decoder_tokens = jnp.asarray(batch["decoder_input_tokens"], jnp.int32)
        rows, length = decoder_tokens.shape

        def tokens_to_logits(state: Any) -> tuple[Array, Any]:
            logits, updated = self.module.apply(
                {"params": params, "cache": state.cache},
                state.cur_token,
                state.cur_index,
                sources,
                encoder_tokens,
                length=length,
                method="step",
                mutable=["cache"],
            )
            return logits[:, 0], updated["cache"]

        decodes, scores = self._decode(
            tokens_to_logits,
            prompt=self._prompt(decoder_tokens) if prompt_with_targets else jnp.zeros_like(decoder_tokens),
            cache=initial_cache(self.module.config, batch=rows, length=length),
            rng=rng,
            row_ids=batch.get("row_ids"),
            decoder_params=decoder_params,
            num_decodes=num_decodes,
        )
        return self._chosen(decodes, scores, return_all_decodes)

    def _prompt(self, decoder_input_tokens: Int[Array, "batch length"]) -> Int[Array, "batch length"]:
        return jnp.where(decoder_input_tokens == self.eos_id, 0, decoder_input_tokens)
