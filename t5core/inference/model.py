"""What runs the model of a job."""

from __future__ import annotations

import functools

from t5core.config.infer_schema import InferDecodingConfig
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LearningRateConfig, LossConfig, OptimizerConfig
from t5core.evaluation import decoded
from t5core.models.base import DecoderParams, HasEos
from t5core.models.build import build_model
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.partitioning import Partitioner
from t5core.trainer import Trainer


def trainer_for(model: ModelConfig, *, vocabulary: HasEos, decode: InferDecodingConfig) -> Trainer:
    """Returns what runs the steps of inference on all devices; it is never asked to train.

    All decodes of a row are returned, and scored by the model's own probabilities whatever they were drawn from.
    """
    decode_fn = decoded.decode_fn(decode)
    if decode.strategy != "beam":
        decode_fn = functools.partial(decode_fn, rescale_log_probs=False)
    num_decodes = decode.beam_size if decode.strategy == "beam" else decode.num_decodes
    return Trainer(
        model=build_model(
            model,
            LossConfig(),
            input_vocabulary=vocabulary,
            output_vocabulary=vocabulary,
            decode_fn=decode_fn,
            default_decoder_params=DecoderParams(num_decodes=num_decodes, return_all_decodes=True),
            inputs_bidirectional_attention=model.inputs_bidirectional_attention,
        ),
        optimizer=build_optimizer(OptimizerConfig()),
        partitioner=Partitioner(),
        learning_rate_fn=learning_rate_schedule(LearningRateConfig()),
        seed=0,
    )
