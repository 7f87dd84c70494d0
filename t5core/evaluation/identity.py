"""What decides the metrics of a checkpoint: the same of all this, and they need not be measured again."""

from __future__ import annotations

import functools

from t5core import fingerprints, storage
from t5core.config.data_schema import DataConfig
from t5core.config.edges import RunInputs
from t5core.data import worker
from t5core.evaluation import metric_functions

_DECIDING_MODULES = (
    "t5core.data.converters",
    "t5core.data.reader",
    "t5core.data.stored",
    "t5core.evaluation.checkpoint",
    "t5core.evaluation.decoded",
    "t5core.evaluation.metric_functions",
    "t5core.evaluation.seqio_metrics",
    "t5core.evaluation.task_metrics",
    "t5core.evaluation.teacher_forced",
    "t5core.evaluation.training_eval",
    "t5core.metrics.summarise",
    "t5core.models.attention",
    "t5core.models.attention_masks",
    "t5core.models.base",
    "t5core.models.beam_search",
    "t5core.models.blocks",
    "t5core.models.build",
    "t5core.models.decode_state",
    "t5core.models.decoder_only",
    "t5core.models.decoding",
    "t5core.models.encoder_decoder",
    "t5core.models.layers",
    "t5core.models.loss_weights",
    "t5core.models.losses",
    "t5core.models.networks",
    "t5core.models.relative_position",
    "t5core.models.sampling",
    "t5core.models.scanning",
    "t5core.models.transformer",
)
_DECIDING_LIBRARIES = ("jax", "jaxlib", "flax")


def parts(inputs: RunInputs) -> dict[str, str]:
    """Returns everything beside the checkpoint that decides its metrics, by what it is."""
    config = inputs.run.config
    tasks = {task.name: [task.metrics, task.max_validation_examples] for task in config.data.tasks}
    settings = [config.evaluate.model_dump(mode="json"), tasks, config.data.mixed, config.data.feature_lengths]
    model = [config.model.model_dump(mode="json", exclude={"dropout_rate"}), config.train.loss.model_dump(mode="json")]
    return {
        "data": storage.fingerprint([dataset.fingerprint for dataset in inputs.tasks]),
        "vocabulary": inputs.vocabulary.fingerprint,
        "model": storage.fingerprint(model),
        "settings": storage.fingerprint(settings),
        "metrics": _metrics_code(config.data),
        "code": _own_code(),
        "libraries": fingerprints.library_versions(*_DECIDING_LIBRARIES),
    }


@functools.cache
def _own_code() -> str:
    return fingerprints.code_fingerprint(*_DECIDING_MODULES)


def _metrics_code(data: DataConfig) -> str:
    """Returns what the metric functions of the user's own do, named in the configuration or brought by SeqIO tasks."""
    names = sorted({name for task in data.tasks for name in task.metrics if "." in name})
    registered = sorted(task.name for task in data.tasks if task.is_seqio)
    described = []
    if names:
        functions = [metric_functions.metric_function(name) for name in names]
        modules = {name.rpartition(".")[0] for name in names}
        described.append(fingerprints.functions_fingerprint(functions, modules=modules))
    if registered:
        assert data.module is not None, "the configuration checks that"
        target = "t5core.evaluation.seqio_metrics:describe_metrics"
        described.append(worker.call(target, tuple(registered), data.module))
    return storage.fingerprint(described) if described else ""
