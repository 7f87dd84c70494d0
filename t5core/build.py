"""From settings to the objects that train: the one place where a configuration becomes a trainer."""

from __future__ import annotations

import functools
from typing import Any

import jax

from t5core.config.edges import RunInputs
from t5core.config.schema import PretrainConfig
from t5core.config.train_schema import OptimizerConfig
from t5core.data.converters import FeatureConverter, converter_for
from t5core.data.vocabulary import load_vocabulary
from t5core.evaluation import decoded
from t5core.metrics.weights import WeightMetricsComputer
from t5core.models.build import build_model
from t5core.optim.base import Optimizer
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule, learning_rate_warnings
from t5core.partitioning import Partitioner
from t5core.trainer import Trainer, boxed_params


def trainer_of(inputs: RunInputs) -> Trainer:
    """Returns the trainer of a run: the same object, with its compiled steps, throughout a process."""
    return _trainer(inputs.model_dump_json())


@functools.lru_cache(maxsize=2)
def _trainer(inputs_json: str) -> Trainer:
    inputs = RunInputs.model_validate_json(inputs_json)
    config = inputs.run.config
    use_compilation_cache(config)
    vocabulary = load_vocabulary(inputs.vocabulary)
    model = build_model(
        config.model,
        config.train.loss,
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        decode_fn=decoded.decode_fn(config.evaluate.decode),
        default_decoder_params=decoded.decoder_params(config.evaluate.decode),
        inputs_bidirectional_attention=config.model.inputs_bidirectional_attention,
    )
    return Trainer(
        model=model,
        optimizer=_optimizer(config.train.optimizer, boxed_params(model)),
        partitioner=Partitioner(),
        learning_rate_fn=learning_rate_schedule(config.train.learning_rate),
        seed=inputs.run.seed,
        num_microbatches=config.train.num_microbatches,
        weight_metrics_computer=WeightMetricsComputer() if config.train.weight_metrics else None,
    )


def converter_of(inputs: RunInputs) -> FeatureConverter:
    """Returns what turns stored rows into the model's features."""
    config = inputs.run.config
    return converter_for(config.model.architecture().family, config.data.feature_lengths)


def check(config: PretrainConfig) -> tuple[str, ...]:
    """Builds what depends on names and numbers alone, so that a wrong one is an error before anything is computed.

    Returns warnings: what works, but hardly as meant.

    Raises:
      ConfigError: an optimiser, an argument or a learning-rate factor that does not exist or cannot work.
    """
    model = build_model(config.model, config.train.loss)
    _optimizer(config.train.optimizer, boxed_params(model))
    learning_rate_schedule(config.train.learning_rate)
    partitioner = Partitioner()
    partitioner.check_batch_size(config.train.batch_size, num_microbatches=config.train.num_microbatches)
    partitioner.check_batch_size(config.evaluate.batch_size)
    return learning_rate_warnings(config.train.learning_rate, config.train.total_steps)


def _optimizer(config: OptimizerConfig, param_axes: Any) -> Optimizer:
    return build_optimizer(
        config, param_axes, groups=config.groups, frozen=config.frozen, clip_global_norm=config.clip_global_norm
    )


def use_compilation_cache(config: PretrainConfig) -> None:
    """Keeps compiled programs under the run's root, so that the next segment starts at once with the same bits."""
    jax.config.update("jax_compilation_cache_dir", f"{config.run.root}/compilation-cache")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
