"""What an evaluation of checkpoints leaves: metrics by step as JSON, CSV and HTML, and summary.json."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from t5core import counting, records, storage
from t5core.checkpoints.record import package_versions
from t5core.config import yaml_text
from t5core.config.edges import Evaluation
from t5core.config.evaluate_edges import EvaluatedCheckpoint, EvaluationPlan, EvaluationSummary
from t5core.metrics import json_numbers
from t5core.report import charts, rendering, tables
from t5core.report.summary import Failure, what_helps
from t5core.report.tables import Table
from t5core.rundir import RunDirectory, StageRecord

PLAN = "plan.json"


def write(plan: EvaluationPlan, results: Sequence[EvaluatedCheckpoint]) -> tuple[EvaluationSummary, str]:
    """Writes table.json, table.csv, report.html and summary.json; returns the summary and the report's text."""
    directory = RunDirectory(plan.uri)
    summary = EvaluationSummary(
        name=plan.config.run.name,
        status="completed",
        checkpoints=len(results),
        reused=sum(result.evaluation.reused for result in results),
        uri=directory.summary_uri,
        table=f"{plan.uri}/table.json",
        csv=f"{plan.uri}/table.csv",
        report=directory.report_uri,
    )
    rows = sorted(results, key=lambda result: result.evaluation.step)
    storage.write_json(summary.table, json_numbers.encode([_row(result) for result in rows]))
    storage.write_text(summary.csv, as_csv([result.evaluation for result in rows]))
    return summary, _finish(plan, rows, summary.model_dump(), failure=None)


def write_failed(uri: str, failure: Failure) -> bool:
    """Writes summary.json and report.html of the evaluation in the folder `uri`; False: there is none of that."""
    plan = records.read(f"{uri}/{PLAN}", EvaluationPlan)
    if plan is None:
        return False
    account = {"name": plan.config.run.name, "status": "failed", "uri": RunDirectory(uri).summary_uri}
    _finish(plan, [], account, failure=failure)
    return True


def _finish(
    plan: EvaluationPlan, rows: Sequence[EvaluatedCheckpoint], account: dict[str, Any], *, failure: Failure | None
) -> str:
    directory = RunDirectory(plan.uri)
    stages = directory.stages()
    content = {
        **account,
        "failure": dataclasses.asdict(failure) if failure else None,
        "trained": plan.trained,
        "vocabulary": plan.vocabulary.model_dump(),
        "datasets": [stage.model_dump() for stage in stages],
        "evaluations": [_row(result) for result in rows],
        "versions": package_versions(),
    }
    page = _render(plan, rows, stages, content)
    storage.write_text(directory.report_uri, page)
    storage.write_json(directory.summary_uri, json_numbers.encode(content))
    return page


def _row(result: EvaluatedCheckpoint) -> dict[str, Any]:
    evaluation = result.evaluation
    return {
        "step": evaluation.step,
        "checkpoint": evaluation.checkpoint.uri,
        "digest": evaluation.checkpoint.digest,
        "metrics": evaluation.metrics,
        "reused": evaluation.reused,
        "reason": result.reason,
        "seconds": evaluation.seconds,
        "record": evaluation.uri,
    }


def as_csv(evaluations: Sequence[Evaluation]) -> str:
    """Returns a line for each checkpoint and a column `task/metric` for each metric."""
    columns = dict.fromkeys(
        f"{task}/{name}" for e in evaluations for task, metrics in e.metrics.items() for name in metrics
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "digest", *columns])
    for evaluation in evaluations:
        values = {f"{task}/{name}": v for task, metrics in evaluation.metrics.items() for name, v in metrics.items()}
        writer.writerow([evaluation.step, evaluation.checkpoint.digest, *(values.get(name, "") for name in columns)])
    return text.getvalue()


def closing_lines(
    plan: EvaluationPlan, summary: EvaluationSummary, results: Sequence[EvaluatedCheckpoint]
) -> list[str]:
    """Returns what to print at the end: the leading metrics by step, and where all of them lie."""
    found = sorted((result.evaluation for result in results), key=lambda evaluation: evaluation.step)
    fresh = summary.checkpoints - summary.reused
    lines = ["", f"evaluation {summary.name}: {fresh} measured, {summary.reused} reused", ""]
    for table in tables.evaluation_tables(found, _tasks(plan), rest=False):
        lines += [f"  {table.caption}", *_aligned(table), ""]
    return [
        *lines,
        f"  table        {storage.near(summary.csv)}",
        f"  report       {storage.near(summary.report)}",
        f"  summary      {storage.near(summary.uri)}",
    ]


def _aligned(table: Table) -> list[str]:
    cells = [table.columns, *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    return ["    " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]


def _render(
    plan: EvaluationPlan, rows: Sequence[EvaluatedCheckpoint], stages: list[StageRecord], account: dict[str, Any]
) -> str:
    found = [result.evaluation for result in rows]
    context = {
        "account": account,
        "lead": f"{counting.count(len(rows), 'checkpoint')} of {plan.trained}",
        "help": what_helps(account["failure"], kept="what was measured is reused") if account["failure"] else "",
        "place": plan.uri,
        "charts": charts.of_evaluations(found, _tasks(plan)),
        "leading": tables.evaluation_tables(found, _tasks(plan), rest=False),
        "rest": tables.evaluation_tables(found, _tasks(plan), rest=True),
        "checkpoints": _checkpoints(rows),
        "datasets": _datasets(stages),
        "settings": yaml_text.dump(plan.config.model_dump(mode="json")),
    }
    return rendering.render("evaluation.html", context)


def _tasks(plan: EvaluationPlan) -> list[str]:
    return [task.name for task in plan.run.config.data.tasks]


def _checkpoints(rows: Sequence[EvaluatedCheckpoint]) -> Table:
    cells = tuple(
        (
            tables.number(result.evaluation.step),
            tables.code(result.evaluation.checkpoint.digest),
            tables.cost(result.evaluation.seconds, reused=result.evaluation.reused),
            tables.text(result.reason),
            tables.text(result.evaluation.uri),
        )
        for result in rows
    )
    return Table(caption="Checkpoints", columns=("step", "state", "measured in", "why", "record"), rows=cells)


def _datasets(stages: Sequence[StageRecord]) -> Table:
    cells = tuple(
        (
            tables.text(stage.name),
            tables.cost(stage.seconds, reused=stage.reused),
            tables.text(stage.reason),
            tables.code(stage.fingerprint),
            tables.text(stage.uri),
        )
        for stage in stages
    )
    return Table(caption="Datasets", columns=("task", "made in", "why", "fingerprint", "place"), rows=cells)
