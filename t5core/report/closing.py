"""The lines printed when a run ends: what it reached, where that lies, what was reused, what to try next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5core import errors, publishing, storage
from t5core.config import edges
from t5core.metrics import json_numbers
from t5core.report import figures, ideas
from t5core.report.gather import LOSS, RunRecord, gather, in_order
from t5core.report.summary import leading_metrics, training_in_words, what_helps_a_run

WIDTH = 96


def closing_lines(summary: edges.Summary) -> list[str]:
    """Returns what to print at the end of the run that `summary` names, in lines of 96 columns.

    Commands and paths are never broken, so that they can be copied; they may run over.

    Raises:
      RunDirectoryError: there is no summary at `summary.uri`.
    """
    record = gather(summary.uri.rsplit("/", 1)[0])
    content = record.summary
    if content is None:
        raise errors.RunDirectoryError(f"there is no summary at {summary.uri}; write it before the closing lines")
    blocks = (
        _headline(content),
        _failure(content),
        _loss(content),
        _evaluation(record, content),
        _publication(record),
        _places(summary, content),
        _stages(content),
        _next(record, content),
    )
    lines = ["\n".join(block) for block in blocks if block]
    return "\n\n".join(lines).split("\n")


def _row(first: str, second: str, text: str = "", *, widths: tuple[int, int]) -> Iterator[str]:
    """Yields two cells and a text that goes on under itself."""
    head = f"    {first:<{widths[0]}}  {second:<{widths[1]}}  "
    wrapped = textwrap.wrap(text, max(24, WIDTH - len(head)), break_long_words=False, break_on_hyphens=False) or [""]
    yield (head + wrapped[0]).rstrip()
    yield from (" " * len(head) + line for line in wrapped[1:])


def _headline(content: Mapping[str, Any]) -> list[str]:
    of = f" of {content['total_steps']:,}" if content["total_steps"] else ""
    reason = f": {content['stop_reason']}" if content["stop_reason"] else ""
    line = f"run {content['run_name']} {content['status']} at step {content['final_step']:,}{of}{reason}"
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _failure(content: Mapping[str, Any]) -> list[str]:
    failure = content["failure"]
    if not failure:
        return []
    texts = (f"{failure['where']}: {failure['why']}", what_helps_a_run(content))
    return [
        line
        for text in texts
        for line in textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    ]


def _loss(content: Mapping[str, Any]) -> list[str]:
    ends = content["loss"]["before"], content["loss"]["after"]
    if not all(ends):
        return []
    before, after = (json_numbers.decode(end["value"]) for end in ends)
    remarks = [figures.change(before, after), f"step {ends[0]['step']:,} to {ends[1]['step']:,}"]
    shown = f"{figures.number(before)} -> {figures.number(after)}"
    return [f"  training loss per target token   {shown}   ({', '.join(filter(None, remarks))})"]


def _evaluation(record: RunRecord, content: Mapping[str, Any]) -> list[str]:
    if not content["metrics"]:
        return []
    lines = [f"  validation at step {content['evaluations'][-1]['step']:,} (loss per target token)"]
    width = max(len(task) for task in content["metrics"])
    for task in in_order(content["metrics"], record.tasks):
        values = content["metrics"][task]
        shown = {name: figures.number(json_numbers.decode(values[name])) for name in leading_metrics(values)}
        pieces = (f"{'loss' if name == LOSS else name} {value}" for name, value in shown.items())
        lines += _glued(f"    {task:<{width}}   ", pieces)
    return lines


def _publication(record: RunRecord) -> list[str]:
    if record.publication is None:
        return []
    head = f"  {record.publication.outcome:<13}"
    text = publishing.in_words(record.publication)
    return textwrap.wrap(
        head + text, WIDTH, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


def _glued(head: str, pieces: Iterator[str]) -> list[str]:
    """Returns `head` and the pieces after it, broken between pieces only."""
    lines = [head]
    for piece in pieces:
        if len(lines[-1]) + len(piece) > WIDTH and lines[-1].strip():
            lines.append(" " * len(head))
        lines[-1] += f"{piece}   "
    return [line.rstrip() for line in lines]


def _places(summary: edges.Summary, content: Mapping[str, Any]) -> list[str]:
    lines = [f"  report       {storage.near(summary.report)}", f"  summary      {storage.near(summary.uri)}"]
    if content["checkpoint"]:
        digest = figures.short(content["checkpoint"]["digest"])
        lines.insert(0, f"  checkpoint   {storage.near(content['checkpoint']['uri'])}   (state {digest})")
    return lines


def _stages(content: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            f"{stage['stage']} {stage['name']}".rstrip(),
            "reused" if stage["reused"] else figures.duration(stage["seconds"]),
            stage["reason"],
        )
        for stage in content["stages"]
    ]
    segments, evaluations = content["segments"], content["evaluations"]
    if segments:
        rows.append(("train", _cost(segments), _past(segments) + training_in_words(content)))
    if evaluations:
        steps = ", ".join(f"{evaluation['step']:,}" for evaluation in evaluations)
        rows.append(("evaluate", _cost(evaluations), f"{_past(evaluations)}at step {steps}"))
    widths = (max((len(row[0]) for row in rows), default=0), max((len(row[1]) for row in rows), default=0))
    return ["  stages", *(line for row in rows for line in _row(*row, widths=widths))] if rows else []


def _cost(parts: Sequence[Mapping[str, Any]]) -> str:
    fresh = [part["seconds"] for part in parts if not part["reused"]]
    return figures.duration(sum(fresh)) if fresh else "reused"


def _past(parts: Sequence[Mapping[str, Any]]) -> str:
    """Returns what the parts took when they were made, where all of them are reused."""
    seconds = sum(part["seconds"] for part in parts)
    return f"took {figures.duration(seconds)}; " if seconds and all(part["reused"] for part in parts) else ""


def _next(record: RunRecord, content: Mapping[str, Any]) -> list[str]:
    lines = [line for why, command in ideas.ideas(record, content) for line in (f"    {why}:", f"      {command}")]
    return ["  next", *lines] if lines else []
