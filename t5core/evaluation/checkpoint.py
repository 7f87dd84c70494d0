"""Evaluation of one checkpoint of a run: teacher-forced on every task and the mixture, decoded where there are metrics.

Every process of a run calls this with the same arguments, feeds its rows to its devices and gets the same result; the
first one writes the files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from t5core import agreement, build, storage
from t5core.checkpoints import parameters
from t5core.config.data_schema import MIXTURE
from t5core.config.edges import CheckpointRef, RunInputs
from t5core.data import manifest
from t5core.data.stored import StoredSplit
from t5core.data.vocabulary import load_vocabulary
from t5core.datasets import JoinedSplits
from t5core.evaluation import decoded, task_metrics
from t5core.evaluation.training_eval import TrainEvaluator
from t5core.metrics.writer import MetricWriter
from t5core.rundir import RunDirectory

_SPLIT = "validation"


def evaluate(inputs: RunInputs, checkpoint: CheckpointRef) -> dict[str, dict[str, float]]:
    """Returns the metrics of the mixture and of every task that has a validation split, by name.

    What was measured is written: metrics, with the throughput that depends on the machine, and predictions.
    """
    params = parameters.read(checkpoint, build.trainer_of(inputs).abstract_state.params)
    return measure(inputs, params, step=checkpoint.step)


def measure(inputs: RunInputs, params: dict[str, Any], *, step: int | None = None) -> dict[str, dict[str, float]]:
    """Returns the metrics of `params` by name, as `evaluate`, which writes them for a `step`; None writes nothing."""
    splits = _splits(inputs)
    metrics: dict[str, dict[str, float]] = {}
    for name, figures in _evaluator(inputs, splits).evaluate(params).items():
        _write(inputs, "training_eval", name, step, figures)
        metrics[name] = {key: value for key, value in figures.items() if not key.startswith("timing/")}
    for task in inputs.run.config.data.tasks:
        scored = task.name in splits and (task.metrics or task.is_seqio)
        scores = _decoded(inputs, params, splits[task.name], task.name, step) if scored else {}
        if scores:
            _write(inputs, "inference_eval", task.name, step, scores)
            # A task may call its own metric by a name that is taken; the reader must know which is meant.
            taken = metrics[task.name]
            metrics[task.name] = taken | {f"decoded_{n}" if n in taken else n: value for n, value in scores.items()}
    return metrics


def _splits(inputs: RunInputs) -> dict[str, StoredSplit]:
    """Returns the validation split of each task that has one."""
    config, splits = inputs.run.config, {}
    batch_size = config.evaluate.batch_size
    for task, dataset in zip(config.data.tasks, inputs.tasks, strict=True):
        assert task.name == dataset.name, "datasets come in the order of the tasks"
        found = manifest.load(dataset.uri)
        if found is not None and _SPLIT in found.splits:
            splits[task.name] = StoredSplit(
                uri=dataset.uri,
                split=_SPLIT,
                batch_size=batch_size,
                converter=build.converter_of(inputs),
                rows=build.trainer_of(inputs).partitioner.process_rows(batch_size),
            )
    return splits


def _evaluator(inputs: RunInputs, splits: Mapping[str, StoredSplit]) -> TrainEvaluator:
    mixed = tuple(splits[name] for name in inputs.run.config.data.mixed if name in splits)
    datasets: dict[str, Iterable[Any]] = {**splits, **({MIXTURE: JoinedSplits(mixed)} if mixed else {})}
    trainer = build.trainer_of(inputs)
    rows = trainer.partitioner.process_rows(inputs.run.config.evaluate.batch_size)
    return TrainEvaluator(datasets, trainer=trainer, rows=rows, eval_steps=None, keep_in_memory=False)


def _decoded(
    inputs: RunInputs, params: dict[str, Any], split: StoredSplit, task: str, step: int | None
) -> dict[str, float]:
    """Returns the task's own metrics on its decoded validation examples, and how many of them met the length limit."""
    config = inputs.run.config
    predicted = decoded.predict(
        build.trainer_of(inputs),
        params,
        name=task,
        split=dataclasses.replace(split, max_rows=config.evaluate.decode.max_examples),
        vocabulary=load_vocabulary(inputs.vocabulary),
    )

    def scores() -> dict[str, float]:
        if step is not None:
            _write_predictions(inputs, task, split.uri, step, predicted.texts)
        return task_metrics.score(config.data, task, split.uri, predicted.texts)

    # Metric functions are the user's own: they run once, and every process goes on with the same numbers.
    return {**agreement.numbers_of_primary(scores), "length_limit_fraction": predicted.length_limit_fraction}


def _write_predictions(inputs: RunInputs, task: str, uri: str, step: int, texts: list[str]) -> None:
    lines = []
    for example, prediction in zip(task_metrics.examples(uri, count=len(texts)), texts, strict=True):
        shown = {
            "inputs": example.get("inputs_pretokenized", ""),
            "target": example.get("targets_pretokenized", ""),
            "prediction": prediction,
        }
        lines.append(json.dumps(shown, ensure_ascii=False))
    storage.write_text(RunDirectory(inputs.run.uri).predictions_uri(task, step), "\n".join(lines) + "\n")


def _write(inputs: RunInputs, kind: str, name: str, step: int | None, metrics: Mapping[str, float]) -> None:
    if step is None or not agreement.is_primary():
        return
    with MetricWriter(RunDirectory(inputs.run.uri).metrics_uri(kind, name), resume_step=step - 1) as writer:
        writer.write(step, metrics)
