"""The lines printed when a run ends: what it reached, where that lies, what was reused, what to try next."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5core import errors, publishing
from t5core.config import edges
from t5core.metrics import json_numbers
from t5core.report import figures
from t5core.report.gather import LOSS, RunRecord, gather, join
from t5core.report.summary import leading_metrics, training_in_words

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
        _evaluation(content),
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
    text = f"{failure['where']}: {failure['why']}"
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def _loss(content: Mapping[str, Any]) -> list[str]:
    ends = content["loss"]["before"], content["loss"]["after"]
    if not all(ends):
        return []
    before, after = (json_numbers.decode(end["value"]) for end in ends)
    remarks = [figures.change(before, after), f"step {ends[0]['step']:,} to {ends[1]['step']:,}"]
    shown = f"{figures.number(before)} -> {figures.number(after)}"
    return [f"  training loss per target token   {shown}   ({', '.join(filter(None, remarks))})"]


def _evaluation(content: Mapping[str, Any]) -> list[str]:
    if not content["metrics"]:
        return []
    lines = [f"  validation at step {content['evaluations'][-1]['step']:,} (loss per target token)"]
    width = max(len(task) for task in content["metrics"])
    for task, values in content["metrics"].items():
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
    lines = [f"  report       {summary.report}", f"  summary      {summary.uri}"]
    if content["checkpoint"]:
        digest = figures.short(content["checkpoint"]["digest"])
        lines.insert(0, f"  checkpoint   {content['checkpoint']['uri']}   (state {digest})")
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
        rows.append(("train", _cost(segments), training_in_words(content)))
    if evaluations:
        steps = ", ".join(f"{evaluation['step']:,}" for evaluation in evaluations)
        rows.append(("evaluate", _cost(evaluations), f"at step {steps}"))
    widths = (max((len(row[0]) for row in rows), default=0), max((len(row[1]) for row in rows), default=0))
    return ["  stages", *(line for row in rows for line in _row(*row, widths=widths))] if rows else []


def _cost(parts: Sequence[Mapping[str, Any]]) -> str:
    fresh = [part["seconds"] for part in parts if not part["reused"]]
    return figures.duration(sum(fresh)) if fresh else "reused"


def _command(record: RunRecord, *overrides: str) -> str:
    config = shlex.quote(join(record.uri, "config.yaml"))
    extra = f" --overrides {shlex.quote(json.dumps(overrides))}" if overrides else ""
    workflow = "finetune" if record.config.get("run", {}).get("init_from") else "pretrain"
    return f"{_program('pyflyte')} run workflows/{workflow}.py --config {config}{extra}"


def _program(name: str) -> str:
    """Returns how a shell finds `name`: bare when it is on the PATH, by its folder when it lies beside this Python."""
    beside = pathlib.Path(sys.executable).with_name(name)
    return name if shutil.which(name) or not beside.exists() else os.path.relpath(beside)


def _ideas(record: RunRecord, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields reasons and commands worth running; a variant of a setting needs the configuration to start from."""
    run, train = record.config.get("run", {}), record.config.get("train", {})
    beside = f"run.name={record.name}-2"
    if content["status"] == "failed":
        where = f"go on from step {content['final_step']:,}" if content["checkpoint"] else "start again"
        yield f"{where} when the cause is mended", _command(record)
    elif content["status"] == "stopped" and "learning_rate" in train:
        rate = train["learning_rate"]["base_learning_rate"] / 2
        lower = f"train.learning_rate.base_learning_rate={rate:g}"
        yield "try half the learning rate, beside this run", _command(record, beside, lower)
    elif "total_steps" in train and run.get("seed") is not None:
        yield "train on from here", _command(record, f"train.total_steps={2 * train['total_steps']}")
        yield "see how much the seed matters", _command(record, beside, f"run.seed={run['seed'] + 1}")
    if record.series:
        yield "watch the curves", f"{_program('tensorboard')} --logdir {shlex.quote(join(record.uri, 'metrics'))}"


def _next(record: RunRecord, content: Mapping[str, Any]) -> list[str]:
    lines = [line for why, command in _ideas(record, content) for line in (f"    {why}:", f"      {command}")]
    return ["  next", *lines] if lines else []
