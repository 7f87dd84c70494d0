"""Evaluation of one checkpoint of a run: teacher-forced on every task, decoded on those that have metrics."""

from __future__ import annotations

import json
from typing import Any

from t5core import build, errors, storage
from t5core.checkpoints import index, pins
from t5core.checkpoints.store import CheckpointStore
from t5core.config.edges import CheckpointRef, DatasetRef, RunInputs
from t5core.data.vocabulary import load_vocabulary
from t5core.evaluation import task_metrics, teacher_forced
from t5core.metrics.writer import MetricWriter
from t5core.rundir import RunDirectory


def evaluate(inputs: RunInputs, checkpoint: CheckpointRef) -> dict[str, dict[str, float]]:
    """Returns the metrics of every task that has a validation split, by task; writes metrics and predictions."""
    params = _restored_params(inputs, checkpoint)
    metrics: dict[str, dict[str, float]] = {}
    for task, dataset in zip(inputs.run.config.data.tasks, inputs.tasks, strict=True):
        assert task.name == dataset.name, "datasets come in the order of the tasks"
        if not _has_validation(dataset):
            continue
        figures = teacher_forced.evaluate(
            build.trainer_of(inputs),
            params,
            name=task.name,
            uri=dataset.uri,
            converter=build.converter_of(inputs),
            batch_size=inputs.run.config.evaluate.batch_size,
        )
        _write(inputs, "training_eval", task.name, checkpoint.step, figures)
        scores = _decoded(inputs, params, dataset, checkpoint.step) if task.metrics or task.is_seqio else {}
        if scores:
            _write(inputs, "inference_eval", task.name, checkpoint.step, scores)
        # A task may call its own metric by a name that is taken; the action or the reader must know which is meant.
        own = {f"decoded_{name}" if name in figures else name: value for name, value in scores.items()}
        metrics[task.name] = figures | own
    return metrics


def _restored_params(inputs: RunInputs, checkpoint: CheckpointRef) -> dict[str, Any]:
    directory = RunDirectory(inputs.run.uri)
    uri, step = index.locate(checkpoint.uri)
    with pins.reading(uri, step), CheckpointStore(directory.checkpoints_uri) as store:
        restored = store.restore_params(build.trainer_of(inputs).abstract_state.params, step=step)
    if restored.record.digest != checkpoint.digest:
        raise errors.CheckpointError(
            f"{checkpoint.uri} has digest {restored.record.digest[:12]}, and {checkpoint.digest[:12]} was to be "
            f"evaluated; run again"
        )
    return restored.state["params"]


def _has_validation(dataset: DatasetRef) -> bool:
    from t5core.data import manifest

    found = manifest.load(dataset.uri)
    return found is not None and teacher_forced.SPLIT in found.splits


def _decoded(inputs: RunInputs, params: dict[str, Any], dataset: DatasetRef, step: int) -> dict[str, float]:
    """Returns the task's own metrics on its decoded validation examples, and how many of them met the length limit."""
    predicted = build.predictor_of(inputs).predict(
        params,
        name=dataset.name,
        uri=dataset.uri,
        converter=build.converter_of(inputs),
        vocabulary=load_vocabulary(inputs.vocabulary),
        batch_size=inputs.run.config.evaluate.batch_size,
    )
    scores = task_metrics.score(inputs.run.config.data, dataset.name, dataset.uri, predicted.texts)
    _write_predictions(inputs, dataset, step, predicted.texts)
    return {**scores, "length_limit_fraction": predicted.length_limit_fraction}


def _write_predictions(inputs: RunInputs, dataset: DatasetRef, step: int, texts: list[str]) -> None:
    lines = []
    for example, prediction in zip(task_metrics.examples(dataset.uri, count=len(texts)), texts, strict=True):
        shown = {
            "inputs": example.get("inputs_pretokenized", ""),
            "target": example.get("targets_pretokenized", ""),
            "prediction": prediction,
        }
        lines.append(json.dumps(shown, ensure_ascii=False))
    storage.write_text(RunDirectory(inputs.run.uri).predictions_uri(dataset.name, step), "\n".join(lines) + "\n")


def _write(inputs: RunInputs, kind: str, task: str, step: int, metrics: dict[str, float]) -> None:
    folder = RunDirectory(inputs.run.uri).metrics_uri(kind, task)
    with MetricWriter(folder, resume_step=step - 1) as writer:
        writer.write(step, metrics)
