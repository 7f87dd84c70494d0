"""The decoder-only model: causal language model or prefix LM; features in, loss, scores and predictions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5core import errors
from t5core.models.base import BaseTransformerModel, Batch, Params
from t5core.models.networks import DecoderOnly


def _shift_left(
    sequences: Int[Array, "batch decodes length"], by: Int[Array, " batch"]
) -> Int[Array, "batch decodes length"]:
    """Returns each row's sequences without their first `by` tokens, filled up with 0."""
    length = sequences.shape[-1]
    source = jnp.arange(length) + by[:, None, None]
    shifted = jnp.take_along_axis(sequences, jnp.minimum(source, length - 1), axis=-1)
    return jnp.where(source < length, shifted, 0)


class DecoderOnlyModel(BaseTransformerModel):
    """A language model over `decoder_target_tokens`, whose loss may leave out a prefix (the inputs of a task).

    Args:
      module: the network.
      inputs_bidirectional_attention: whether positions of the prefix see each other in both directions, by
        `decoder_causal_attention`, which every batch must then have; else all attention is causal.
      arguments: of the base class.

    Source: `t5x/models.py@cc342d4: DecoderOnlyModel`.
    """

    module: DecoderOnly

    def __init__(self, module: DecoderOnly, *, inputs_bidirectional_attention: bool = False, **arguments: Any) -> None:
        super().__init__(module, **arguments)
        self._bidirectional = inputs_bidirectional_attention

    @property
    def FEATURE_CONVERTER_CLS(self) -> type:
        """`seqio.DecoderFeatureConverter`; imports SeqIO."""
        import seqio

        return seqio.DecoderFeatureConverter

    def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, tuple[int, ...]]) -> Params:
        """See the base class; needs `decoder_input_tokens`."""
        tokens = jnp.ones(input_shapes["decoder_input_tokens"], jnp.int32)
        return self.module.init(rng, tokens, tokens)["params"]

    def _causal_attention(self, batch: Batch, use: str) -> Int[Array, "batch length"]:
        if "decoder_causal_attention" not in batch:
            raise errors.ConfigError(
                f"the batch has no decoder_causal_attention, which {use} needs to tell the inputs; "
                "give the task the features 'inputs' and 'targets'"
            )
        return batch["decoder_causal_attention"]

    def _logits(self, params: Params, batch: Batch, dropout_rng: Array | None) -> Float[Array, "batch length vocab"]:
        causal_attention = None
        if self._bidirectional:
            causal_attention = self._causal_attention(batch, "inputs_bidirectional_attention")
        return self.module.apply(
            {"params": params},
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            decoder_causal_attention=causal_attention,
            deterministic=dropout_rng is None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )  # pyright: ignore[reportReturnType]

    def _token_features(self, batch: Batch) -> dict[str, tuple[Int[Array, "batch length"], bool]]:
        if "decoder_segment_ids" in batch:
            return {"decoder": (batch["decoder_segment_ids"], True)}
        return {"decoder_target_tokens": (batch["decoder_target_tokens"], False)}

    def predict_batch_with_aux(
        self,
        params: Params,
        batch: Batch,
        *,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
    ) -> tuple[Int[Array, "batch *decodes length"], dict[str, Array]]:
        """See the base class; the prompt is what `decoder_causal_attention` marks, and is not in the output.

        The prompt goes through the network in one pass. A decode function that takes `initial_index` starts behind it;
        one that does not (beam search) is led through it token by token, without changing what that pass stored.
        Difference from T5X: which has no prefix LM for the latter.
        """
        if "decoder_segment_ids" in batch:
            raise errors.ConfigError("the batch is packed (decoder_segment_ids); decode unpacked examples")
        num_decodes = self._default_decoder_params.num_decodes if num_decodes is None else num_decodes
        in_prompt = jnp.asarray(self._causal_attention(batch, "decoding"), jnp.int32)
        prompt = jnp.asarray(batch["decoder_input_tokens"], jnp.int32) * in_prompt
        # The inputs of a prompt are the 0 that starts a row and the prompt's tokens; the last of them is at this index.
        prompt_lengths = jnp.sum(in_prompt, axis=1) - 1
        length = prompt.shape[1]
        _, filled = self.module.apply(
            {"params": params},
            prompt,
            in_prompt,
            bidirectional=self._bidirectional,
            method="prefill",
            mutable=["cache"],
        )

        def tokens_to_logits(state: Any) -> tuple[Array, Any]:
            logits, updated = self.module.apply(
                {"params": params, "cache": state.cache},
                state.cur_token,
                state.cur_index,
                jnp.repeat(prompt_lengths, num_decodes),
                length=length,
                method="step",
                mutable=["cache"],
            )
            return logits[:, 0], updated["cache"]

        arguments = dict(decoder_params or {})
        if self._decode_fn_takes("initial_index"):
            arguments["initial_index"] = prompt_lengths
        decodes, scores = self._decode(
            tokens_to_logits,
            prompt=prompt,
            cache=filled["cache"],
            rng=rng,
            row_ids=batch.get("row_ids"),
            decoder_params=arguments,
            num_decodes=num_decodes,
        )
        return self._chosen(_shift_left(decodes, prompt_lengths), scores, return_all_decodes)
