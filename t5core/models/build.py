"""From the model's settings to a model."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from t5core import errors
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.base import BaseTransformerModel, DecoderParams, HasEos
from t5core.models.decoder_only import DecoderOnlyModel
from t5core.models.decoding import beam_search, temperature_sample
from t5core.models.encoder_decoder import EncoderDecoderModel
from t5core.models.layers import NetworkConfig
from t5core.models.networks import DecoderOnly, EncoderDecoder


def build_model(
    config: ModelConfig,
    loss: LossConfig,
    *,
    input_vocabulary: HasEos | None = None,
    output_vocabulary: HasEos | None = None,
    decode_fn: Callable[..., tuple[Array, Array]] | None = None,
    default_decoder_params: DecoderParams | None = None,
    inputs_bidirectional_attention: bool = False,
) -> BaseTransformerModel:
    """Returns the model of the config's family.

    Args:
      config: which network, and how it computes.
      loss: the training loss.
      input_vocabulary: of the inputs.
      output_vocabulary: of the targets; its `eos_id` ends a prediction.
      decode_fn: None takes T5X's: beam search for an encoder-decoder, temperature sampling for a decoder alone.
      default_decoder_params: number of decodes where a call names none; None: one.
      inputs_bidirectional_attention: makes a decoder-only model a prefix LM.

    Raises:
      ConfigError: an encoder-decoder was asked for bidirectional attention over its decoder's inputs.
    """
    network = NetworkConfig(
        architecture=config.architecture(),
        dropout_rate=config.dropout_rate,
        dtype=jnp.dtype(config.dtype),
        scan_layers=config.scan_layers,
        remat_policy=config.remat_policy,
    )
    if network.architecture.family == "decoder_only":
        return DecoderOnlyModel(
            DecoderOnly(network),
            inputs_bidirectional_attention=inputs_bidirectional_attention,
            loss=loss,
            decode_fn=decode_fn or temperature_sample,
            input_vocabulary=input_vocabulary,
            output_vocabulary=output_vocabulary,
            default_decoder_params=default_decoder_params,
        )
    if inputs_bidirectional_attention:
        raise errors.ConfigError(
            "inputs_bidirectional_attention=True has no effect on an encoder-decoder; set model.family: decoder_only"
        )
    return EncoderDecoderModel(
        EncoderDecoder(network),
        loss=loss,
        decode_fn=decode_fn or beam_search,
        input_vocabulary=input_vocabulary,
        output_vocabulary=output_vocabulary,
        default_decoder_params=default_decoder_params,
    )
