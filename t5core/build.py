"""From settings to the objects that train: the one place where a configuration becomes a trainer."""

from __future__ import annotations

import functools
from typing import Any

import jax

from t5core import storage
from t5core.config.edges import RunInputs
from t5core.config.infer_schema import InferConfig
from t5core.config.schema import PretrainConfig
from t5core.config.train_schema import OptimizerConfig
from t5core.data.converters import FeatureConverter, converter_for
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary
from t5core.evaluation import decoded
from t5core.metrics.weights import WeightMetricsComputer
from t5core.models.build import build_model
from t5core.optim.base import Optimizer
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.partitioning import Partitioner
from t5core.state import TrainState
from t5core.trainer import Trainer, boxed_params


def trainer_of(inputs: RunInputs) -> Trainer:
    """Returns the trainer of a run: the same object, with its compiled steps, throughout a process."""
    return _trainer(_placeless(inputs))


def _placeless(inputs: RunInputs) -> str:
    """Returns `inputs` as JSON without the place of the run, which plays no part in what is compiled."""
    run = inputs.run.model_copy(update={"uri": ""})
    return inputs.model_copy(update={"run": run}).model_dump_json()


@functools.lru_cache(maxsize=2)
def _trainer(inputs_json: str) -> Trainer:
    inputs = RunInputs.model_validate_json(inputs_json)
    use_compilation_cache(inputs.run.config)
    return make_trainer(inputs.run.config, seed=inputs.run.seed, vocabulary=load_vocabulary(inputs.vocabulary))


def make_trainer(
    config: PretrainConfig,
    *,
    seed: int,
    vocabulary: SentencePieceVocabulary | ByteVocabulary | None = None,
    partitioner: Partitioner | None = None,
) -> Trainer:
    """Returns a trainer as `config` describes it.

    Args:
      config: of the run.
      seed: of the run.
      vocabulary: of inputs and targets; a trainer without one cannot decode.
      partitioner: None takes all devices.
    """
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
        partitioner=partitioner or Partitioner(),
        learning_rate_fn=learning_rate_schedule(config.train.learning_rate),
        seed=seed,
        num_microbatches=config.train.num_microbatches,
        weight_metrics_computer=WeightMetricsComputer() if config.train.weight_metrics else None,
    )


def converter_of(inputs: RunInputs) -> FeatureConverter:
    """Returns what turns stored rows into the model's features."""
    config = inputs.run.config
    return converter_for(config.model.architecture().family, config.data.feature_lengths)


def abstract_state(config: PretrainConfig) -> TrainState:
    """Returns the shapes and dtypes of the state that a run trains; nothing is computed."""
    return make_trainer(config, seed=0).abstract_state


def check(config: PretrainConfig) -> None:
    """Builds what depends on names and numbers alone, so that a wrong one is an error before anything is computed.

    Raises:
      ConfigError: an optimiser, an argument or a learning-rate factor that does not exist or cannot work.
    """
    model = build_model(config.model, config.train.loss)
    _optimizer(config.train.optimizer, boxed_params(model))
    learning_rate_schedule(config.train.learning_rate)
    partitioner = Partitioner()
    partitioner.check_batch_size(config.train.batch_size, num_microbatches=config.train.num_microbatches)
    partitioner.check_batch_size(config.evaluate.batch_size)


def _optimizer(config: OptimizerConfig, param_axes: Any) -> Optimizer:
    return build_optimizer(
        config, param_axes, groups=config.groups, frozen=config.frozen, clip_global_norm=config.clip_global_norm
    )


def use_compilation_cache(config: PretrainConfig | InferConfig) -> None:
    """Keeps compiled programs where the next segment finds them, which starts at once then, with the same bits."""
    place = config.cluster.compilation_cache or f"{config.run.root}/compilation-cache"
    jax.config.update("jax_compilation_cache_dir", str(storage.path(place)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
