"""The metrics of a task on its decoded validation examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from t5core import errors
from t5core.config.data_schema import DataConfig
from t5core.data import store, worker
from t5core.data.work import task_named
from t5core.evaluation import metric_functions

_EXAMPLES_FILE = "validation.jsonl"


def score(data: DataConfig, task: str, uri: str, predictions: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of `task` on the first `len(predictions)` examples of its dataset at `uri`.

    Targets are the raw texts of the examples, not what is left of them after tokenising. The metrics that the
    configuration names are computed here; those that a SeqIO task brings, in the worker.

    Raises:
      ConfigError: a metric is unknown, or two give a value of the same name.
      IntegrityError: the dataset has fewer examples than there are predictions.
    """
    config, rows = task_named(data, task), examples(uri, count=len(predictions))
    values: dict[str, float] = {}
    if config.is_seqio:
        assert data.module is not None, "the configuration checks that"
        target = "t5core.evaluation.seqio_metrics:compute_metrics"
        values.update(worker.call(target, task, data.module, rows, list(predictions)))
    if config.metrics:
        targets = [_target(row, task=task) for row in rows]
        named = metric_functions.compute(config.metrics, targets=targets, predictions=predictions)
        metric_functions.merge(values, named, metric=", ".join(config.metrics))
    return values


def examples(uri: str, *, count: int) -> list[dict[str, Any]]:
    """Returns what was kept of the first `count` validation examples beside their tokens.

    Raises:
      IntegrityError: there are fewer.
    """
    rows = [json.loads(line) for line in store.read_text(uri, _EXAMPLES_FILE).split("\n") if line]
    if len(rows) < count:
        raise errors.IntegrityError(
            f"{uri}/{_EXAMPLES_FILE} holds {len(rows)} examples, but there are {count} predictions; "
            "delete the dataset and run again"
        )
    return rows[:count]


def _target(row: dict[str, Any], *, task: str) -> str:
    if "targets_pretokenized" not in row:
        raise errors.ConfigError(
            f"task {task!r} keeps no targets_pretokenized for its metrics; let its preprocessors copy the raw texts"
        )
    return row["targets_pretokenized"]
