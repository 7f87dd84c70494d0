"""What the model of a run takes, from shapes alone: no parameter is drawn and nothing is compiled."""

from __future__ import annotations

import jax
import numpy as np

from t5core import build
from t5core.config.schema import PretrainConfig
from t5core.data.converters import converter_for
from t5core.partitioning import Partitioner
from t5core.preflight import live
from t5core.preflight.record import ModelFigures

# Measured on checkpoints from 0.15 to 45 MB: zstd takes a little off float32 values, and each array costs its metadata.
_COMPRESSION, _BYTES_PER_ARRAY = 0.922, 1050


def model_figures(config: PretrainConfig, *, rows: int) -> ModelFigures:
    """Returns what the model takes on a device that works on `rows` rows of a batch.

    Raises:
      ConfigError: model and optimiser do not go together.
    """
    trainer = build.make_trainer(config, seed=0, partitioner=Partitioner(devices=jax.devices()[:1]))
    state = jax.tree.leaves(trainer.abstract_state)
    row = zero_batch(config, rows=1)
    batch = {name: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for name, x in row.items()}
    step = trainer.trace_train_step(batch).jaxpr.jaxpr
    stored = sorted((live.stored_low(step), live.stored_high(step)))
    batch_bytes = sum(_bytes(leaf) for leaf in batch.values())
    state_bytes = sum(map(_bytes, state))
    return ModelFigures(
        parameters=sum(leaf.size for leaf in jax.tree.leaves(trainer.abstract_state.params)),
        state_bytes=state_bytes,
        step_bytes_low=batch_bytes + stored[0],
        step_bytes_high=batch_bytes + stored[1],
        checkpoint_bytes=round(_COMPRESSION * state_bytes + _BYTES_PER_ARRAY * len(state)),
    )


def zero_batch(config: PretrainConfig, *, rows: int) -> dict[str, np.ndarray]:
    """Returns a batch as the run reads it, of padding alone."""
    architecture = config.model.architecture()
    converter = converter_for(architecture.family, config.data.feature_lengths)
    stored = converter.stored_features(packed=config.data.pack, vocab_size=architecture.vocab_size)
    return converter.to_model({name: np.zeros((rows, spec.length), spec.dtype) for name, spec in stored.items()})


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return leaf.size * leaf.dtype.itemsize
