"""A model, batches and a trainer small enough for a unit test."""

from __future__ import annotations

import contextlib

import numpy as np

from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LearningRateConfig, LossConfig, OptimizerConfig
from t5core.models.build import build_model
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.partitioning import Partitioner
from t5core.trainer import Trainer

VOCAB = 128
BATCH = 4
SIZES = {
    "vocab_size": VOCAB,
    "emb_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "mlp_dim": 16,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}


def trainer(
    *,
    seed: int = 0,
    num_microbatches: int = 1,
    loss: LossConfig | None = None,
    decode_fn=None,
    decoder_params=None,
    weight_metrics_computer=None,
    learning_rate: LearningRateConfig | None = None,
    **model,
) -> Trainer:
    """Builds a trainer of a tiny T5 1.1; keywords replace settings of the model."""
    config = ModelConfig(**{**SIZES, "dropout_rate": 0.1, **model})
    return Trainer(
        model=build_model(config, loss or LossConfig(), decode_fn=decode_fn, default_decoder_params=decoder_params),
        optimizer=build_optimizer(OptimizerConfig()),
        partitioner=Partitioner(),
        learning_rate_fn=learning_rate_schedule(
            learning_rate or LearningRateConfig(base_learning_rate=0.1, warmup_steps=4)
        ),
        seed=seed,
        num_microbatches=num_microbatches,
        weight_metrics_computer=weight_metrics_computer,
    )


def batch(step: int, *, rows: int = BATCH, length: int = 6) -> dict[str, np.ndarray]:
    """Returns the batch of a step: rows of unequal length, the last one short."""
    random = np.random.default_rng(step)
    inputs = random.integers(3, VOCAB, (rows, length)).astype(np.int32)
    targets = random.integers(3, VOCAB, (rows, length)).astype(np.int32)
    for row in range(rows):
        targets[row, length - row % (length - 1) :] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }


@contextlib.contextmanager
def batches(start: int, stop: int):
    """Opens the batches of some steps."""
    yield iter([(step, batch(step)) for step in range(start, stop)])
