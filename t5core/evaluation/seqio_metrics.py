"""The metrics that a SeqIO task brings itself; runs in the worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import seqio

from t5core import errors, fingerprints, storage
from t5core.data import seqio_registered
from t5core.data.seqio_registered import registered_task
from t5core.evaluation import metric_functions


@functools.cache
def describe_metrics(names: tuple[str, ...], module: str) -> str:
    """Returns 16 hex digits that name what the metric functions and the postprocess functions of tasks do.

    The answer stays the same as long as this process lives, and so do the functions that it has imported.

    Args:
      names: of registered tasks.
      module: registers them.

    Raises:
      ConfigError: `module` cannot be imported, or there is no such task.
    """
    tasks = [registered_task(name, module=module) for name in names]
    functions = [[*task.metric_fns, getattr(task, "_postprocess_fn", None)] for task in tasks]
    told = seqio_registered.LIBRARIES
    code = [fingerprints.functions_fingerprint(list(filter(None, found)), told=told) for found in functions]
    return storage.fingerprint([code, fingerprints.library_versions(*told)])


def compute_metrics(
    name: str, module: str, rows: Sequence[dict[str, Any]], predictions: Sequence[str]
) -> dict[str, float]:
    """Returns the scalars that the metric functions of the task `name` give for decoded predictions.

    Targets and predictions go through the task's postprocess function first, as in SeqIO's evaluator. Values that are
    not scalars, such as texts and histograms, are left out.

    Args:
      name: of the registered task.
      module: registers it.
      rows: the validation examples without their tokens, the raw texts above all; texts come to the task as bytes.
      predictions: one text for each row.

    Raises:
      ConfigError: a metric function needs scores instead of predictions, or two give a value of the same name.
    """
    task = registered_task(name, module=module)
    if len(task.metric_fns) > len(task.predict_metric_fns):
        raise errors.ConfigError(
            f"SeqIO task {name!r} has a metric function of scores or auxiliary values; only (targets, predictions) "
            "can be evaluated"
        )
    if not task.predict_metric_fns:
        return {}
    if any("targets_pretokenized" not in row for row in rows):
        raise errors.ConfigError(
            f"SeqIO task {name!r} keeps no targets_pretokenized for its metrics; "
            "let its preprocessors copy the raw texts"
        )
    examples = [{key: _as_seqio(value) for key, value in row.items()} for row in rows]
    targets = [
        task.postprocess_fn(row["targets_pretokenized"], example=example, is_target=True)
        for row, example in zip(rows, examples, strict=True)
    ]
    outputs = [
        task.postprocess_fn(prediction, example=example, is_target=False)
        for prediction, example in zip(predictions, examples, strict=True)
    ]
    values: dict[str, float] = {}
    for function in task.predict_metric_fns:
        found = function(targets, outputs)
        metric_functions.merge(values, _scalars(found), metric=getattr(function, "__name__", str(function)))
    return values


def _as_seqio(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8")
    return [_as_seqio(element) for element in value] if isinstance(value, list) else value


def _scalars(found: Any) -> dict[str, float]:
    values = {key: value.value if isinstance(value, seqio.metrics.Scalar) else value for key, value in found.items()}
    return {key: float(value) for key, value in values.items() if not isinstance(value, seqio.metrics.MetricValue)}
