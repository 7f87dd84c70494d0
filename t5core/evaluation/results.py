"""Results of inference evaluation as files: T5X's names for metrics, and a line for each example."""

from __future__ import annotations

import itertools
import json
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5core import storage
from t5core.metrics.writer import MetricWriter


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that are single numbers, whatever type holds them."""
    values = {name: getattr(value, "value", value) for name, value in metrics.items()}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    }


def write_metrics(log_dir: str, step: int, by_task: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a line of `<log_dir>/<task>/metrics.jsonl` and TensorBoard scalars for each task, as `eval/<metric>`."""
    for task, metrics in by_task.items():
        with MetricWriter(f"{log_dir}/{task}", resume_step=step - 1) as writer:
            writer.write(step, {f"eval/{name}": value for name, value in scalars(metrics).items()})


class PredictionsLogger:
    """A logger of `seqio.Evaluator` that writes `<output_dir>/<task>-<step>.jsonl`, a line for each example.

    A line has what T5X writes: "input" (everything that the task kept of the example but its tokens), "target", and of
    "prediction", "output", "score" and "aux_..." what the metric functions asked for.
    """

    def __init__(self, output_dir: str) -> None:
        self._output_dir = output_dir

    def __call__(
        self,
        *,
        task_name: str,
        step: int | None,
        metrics: Mapping[str, Any],
        dataset: Any,
        inferences: Mapping[str, Sequence[Any]] | None,
        targets: Sequence[Any] | None,
    ) -> None:
        """Writes the file of one task; the metrics are written elsewhere."""
        del metrics
        columns = _columns(inferences or {})
        lines = []
        for index, (example, target) in enumerate(itertools.zip_longest(dataset.as_numpy_iterator(), targets or ())):
            kept = {name: value for name, value in example.items() if not _is_tokens(value)}
            line = {"input": kept, "target": target, **{name: values[index] for name, values in columns.items()}}
            lines.append(json.dumps(line, default=_plain, ensure_ascii=False))
        storage.write_text(f"{self._output_dir}/{task_name}-{step or 0:06d}.jsonl", "".join(f"{x}\n" for x in lines))


def _columns(inferences: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Returns what was inferred by name; auxiliary values by their own name after `aux_`."""
    columns = {name: values for name, values in inferences.items() if name != "aux_value"}
    return {**columns, **{f"aux_{name}": values for name, values in inferences.get("aux_value", {}).items()}}


def _is_tokens(value: Any) -> bool:
    return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer) and value.ndim > 0


def _plain(value: Any) -> Any:
    """Returns what JSON can hold for a value that it does not know."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
