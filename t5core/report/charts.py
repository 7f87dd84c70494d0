"""Which curves are drawn: those of a run, and those of an evaluation of several checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from t5core.config import edges
from t5core.config.data_schema import MIXTURE
from t5core.report import figures
from t5core.report.gather import LOSS, RunRecord, Series, in_order
from t5core.report.plot import Chart, Line
from t5core.report.summary import leading_metrics

ACCURACY = "accuracy"
_TITLES = {
    LOSS: "Loss per target token",
    ACCURACY: "Accuracy of the next token",
    "learning_rate": "Learning rate",
    "learning_rate/current": "Learning rate",
    "timing/target_tokens_per_second": "Target tokens per second",
}


def of_run(record: RunRecord) -> tuple[Chart, ...]:
    """Returns the charts that the metrics of `record` can fill: loss, accuracy, rates, then each task's own metrics."""
    train = next(iter(record.series_of("train")), None)
    evaluated = {series.task: series for series in record.series_of("training_eval")}
    decoded = {series.task: series for series in record.series_of("inference_eval")}
    lines = _Lines(in_order({*evaluated, *decoded}, record.tasks))
    # The rate of the last step where that is recorded: the mean of a stretch, drawn at its end, would come late.
    known = train.metrics() if train else ()
    rate = "learning_rate/current" if "learning_rate/current" in known else "learning_rate"
    charts = [
        _chart(LOSS, [*lines.of_training(train, LOSS), *lines.of_tasks(evaluated, LOSS)]),
        _chart(ACCURACY, [*lines.of_training(train, ACCURACY), *lines.of_tasks(evaluated, ACCURACY)]),
        _chart(rate, lines.of_training(train, rate)),
        _chart("timing/target_tokens_per_second", lines.of_training(train, "timing/target_tokens_per_second")),
        *lines.of_each_task(decoded, {task: leading_metrics(series.metrics()) for task, series in decoded.items()}),
    ]
    marks = {
        "start": record.first_step,
        "boundaries": tuple(segment.end for segment in record.segments),
        "evaluations": tuple(evaluation.step for evaluation in record.evaluations),
    }
    return tuple(dataclasses.replace(chart, **marks) for chart in charts if chart.lines)


def of_evaluations(evaluations: Sequence[edges.Evaluation], tasks: Iterable[str]) -> tuple[Chart, ...]:
    """Returns the charts of the leading metrics of `evaluations`, which come in the order of steps.

    `tasks` are in the order of the configuration. There are no charts of a single step.
    """
    if len(evaluations) < 2:
        return ()
    rows: dict[str, list[dict[str, float]]] = {}
    for evaluation in evaluations:
        for task, metrics in evaluation.metrics.items():
            rows.setdefault(task, []).append({"step": evaluation.step, **metrics})
    series = {task: Series(stage="evaluation", task=task, rows=tuple(found)) for task, found in rows.items()}
    lines = _Lines(in_order(series, tasks))
    shared = (LOSS, ACCURACY)
    own = {task: [m for m in leading_metrics(one.metrics()) if m not in shared] for task, one in series.items()}
    charts = [_chart(metric, lines.of_tasks(series, metric)) for metric in shared]
    charts += lines.of_each_task(series, own)
    return tuple(dataclasses.replace(chart, start=evaluations[0].step) for chart in charts if chart.lines)


class _Lines:
    """Makes the curves of a page, where each task looks the same in all charts."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tasks

    def of_training(self, series: Series | None, metric: str) -> list[Line]:
        """Returns the curve of what training recorded, where it did."""
        points = series.points(metric) if series else ()
        return [Line(label="training", points=points, color=0, dots=len(points) == 1)] if points else []

    def of_tasks(self, series: Mapping[str, Series], metric: str) -> list[Line]:
        """Returns the curve of each task that has the metric, in the order of the tasks."""
        return [
            Line(label=f"{task}, validation", points=points, color=color, dots=True, is_whole=task == MIXTURE)
            for color, task in enumerate(self._tasks, start=1)
            if task in series and (points := series[task].points(metric))
        ]

    def of_each_task(self, series: Mapping[str, Series], metrics: Mapping[str, Sequence[str]]) -> list[Chart]:
        """Returns a chart for each task and each of its `metrics`."""
        return [
            _chart(metric, self.of_tasks({task: series[task]}, metric), task=task)
            for task in self._tasks
            for metric in metrics.get(task, ())
        ]


def _chart(metric: str, lines: Sequence[Line], *, task: str = "") -> Chart:
    bounds = figures.bounds(metric) if task else None
    return Chart(
        title=f"{task}: {figures.label(metric)}" if task else _TITLES[metric],
        lines=tuple(lines),
        bounds=bounds,
        unit=" %" if bounds == (0.0, 100.0) else "",
        from_zero=metric.startswith("timing/"),
    )
