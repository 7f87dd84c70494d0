"""`report.html`: one self-contained page that shows how a run went and where each of its figures comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5core import publishing, storage
from t5core.metrics import json_numbers
from t5core.report import charts, figures, lineage, predictions, rendering, summary, tables
from t5core.report.gather import Predictions, RunRecord, gather, in_order
from t5core.rundir import RunDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Showcase:
    """What was decoded for a task: its newest examples, and how the first of them read at each step before."""

    task: str
    newest: Predictions
    history: tuple[tuple[int, str], ...]


def write_report(run_uri: str) -> str:
    """Writes `report.html` of the run at `run_uri` and returns its text.

    Raises:
      RunDirectoryError: there is no such run, or it cannot be written.
      IntegrityError: a record of the run cannot be read.
    """
    record = gather(run_uri)
    text = render(record)
    storage.write_text(RunDirectory(record.uri).report_uri, text)
    return text


def render(record: RunRecord) -> str:
    """Returns the page of `record`, the same text for the same record."""
    return rendering.render("page.html", _context(record))


def _context(record: RunRecord) -> dict[str, Any]:
    """Returns everything that the template names."""
    account = {
        **{"status": "unfinished", "stop_reason": "", "failure": None, "versions": {}},
        **summary.account(record, record.checkpoint),
        **(record.summary or {}),
    }
    final_step = account["final_step"]
    newest = summary.last_values(record.evaluations_to(final_step))
    values = {task: newest[task] for task in in_order(newest, record.tasks)}
    context = {
        "place": record.uri,
        "record": record,
        "account": account,
        "training": summary.training_in_words(account),
        "training_time": _training_time(account["segments"]),
        "help": summary.what_helps_a_run(account),
        "headline": _headline(account["loss"]),
        "values": {
            task: {name: metrics[name] for name in summary.leading_metrics(metrics)} for task, metrics in values.items()
        },
        "charts": charts.of_run(record),
        "evaluations": tables.evaluations_of(record, final_step),
        "evaluations_rest": tables.evaluations_rest(record, final_step),
        "publication": publishing.in_words(record.publication) if record.publication else None,
        "showcases": _showcases(record.predictions),
        "lineage": lineage.lineage_of(record, values),
        "stages": tables.stages_of(record),
        "segments": tables.segments_of(record, final_step),
        "mixtures": [
            (tables.shares_of(dataset.manifest), tables.packing_of(dataset.manifest))
            for dataset in record.datasets
            if dataset.manifest and dataset.manifest.tasks
        ],
        "preflight": predictions.preflight_of(record),
        "memory": predictions.memory_of(record),
        "splits": [table for stage in ("materialise", "assemble") if (table := tables.splits_of(record, stage)).rows],
        "lost_datasets": [dataset.stage for dataset in record.datasets if dataset.manifest is None],
        "versions": tables.versions_of(account["versions"]),
    }
    return {**context, "sections": _sections(context)}


def _sections(context: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the sections that have something to show, by id, in their order."""
    shown = {
        "curves": ("Curves", context["charts"]),
        "evaluations": ("Evaluations", context["evaluations"]),
        "examples": ("Examples", context["showcases"]),
        "lineage": ("Lineage", context["lineage"]),
        "stages": ("Stages and segments" if context["segments"].rows else "Stages", True),
        "preflight": ("Preflight", context["preflight"].rows),
        "data": ("Data", context["splits"] or context["lost_datasets"]),
        "settings": ("Settings", True),
    }
    return {key: name for key, (name, content) in shown.items() if content}


def _training_time(segments: Sequence[Mapping[str, Any]]) -> str:
    """Returns how long training took, of reused segments when there are no others; '' when nothing was trained."""
    fresh = [part["seconds"] for part in segments if not part["reused"]]
    seconds = sum(fresh or [part["seconds"] for part in segments])
    if not seconds:
        return ""
    return figures.duration(seconds) if fresh else f"took {figures.duration(seconds)}"


def _headline(loss: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the training loss before and after with its steps, None when none was recorded."""
    ends = loss["before"], loss["after"]
    if not all(ends):
        return None
    before, after = (json_numbers.decode(end["value"]) for end in ends)
    steps = {"first": ends[0]["step"], "last": ends[1]["step"]}
    return {"before": before, "after": after, "change": figures.change(before, after), **steps}


def _showcases(predictions: tuple[Predictions, ...]) -> tuple[Showcase, ...]:
    showcases = []
    for task in dict.fromkeys(decoded.task for decoded in predictions):
        by_step = sorted((decoded for decoded in predictions if decoded.task == task), key=lambda decoded: decoded.step)
        firsts = [(decoded.step, decoded.examples[0]) for decoded in by_step if decoded.examples]
        same = [(step, first) for step, first in firsts if first.get("inputs") == firsts[-1][1].get("inputs")]
        history = tuple((step, first.get("prediction", "")) for step, first in same)
        showcases.append(Showcase(task=task, newest=by_step[-1], history=history if len(history) > 1 else ()))
    return tuple(showcases)
