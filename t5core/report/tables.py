"""The tables of a report: each figure as it was recorded, formatted for people, with the exact value kept beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from t5core import counting
from t5core.config import edges
from t5core.data.manifest import Manifest
from t5core.report import figures
from t5core.report.gather import RunRecord, in_order
from t5core.report.summary import leading_metrics

Kind = Literal["text", "number", "code"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell shows; `full` is the exact value where `text` is rounded or cut, '' where it is not."""

    text: str
    kind: Kind = "text"
    full: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its caption; a column is right-aligned where its cells are numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def text(value: str) -> Cell:
    """Returns a cell of plain text."""
    return Cell(text=value)


def code(value: str) -> Cell:
    """Returns a cell with a digest cut short, or with a dash for none."""
    return Cell(text=figures.short(value) or "–", kind="code", full=value)


def number(value: float | None) -> Cell:
    """Returns a cell with a number; None shows a dash."""
    if value is None:
        return Cell(text="–", kind="number")
    return Cell(text=figures.number(value), kind="number", full=repr(value))


def seconds(value: float) -> Cell:
    """Returns a cell with a duration."""
    return Cell(text=figures.duration(value), kind="number", full=f"{value!r} s")


def cost(value: float, *, reused: bool) -> Cell:
    """Returns a cell with what something took, or that it was there."""
    return Cell(text="reused", kind="number") if reused else seconds(value)


def evaluations_of(record: RunRecord, final_step: int) -> tuple[Table, ...]:
    """Returns a table for each task: its leading metrics by step."""
    return evaluation_tables(record.evaluations_to(final_step), record.tasks, rest=False)


def evaluations_rest(record: RunRecord, final_step: int) -> tuple[Table, ...]:
    """Returns a table for each task of the metrics that `evaluations_of` leaves out; none where it leaves out none."""
    return evaluation_tables(record.evaluations_to(final_step), record.tasks, rest=True)


def evaluation_tables(
    evaluations: Sequence[edges.Evaluation], tasks: Iterable[str], *, rest: bool
) -> tuple[Table, ...]:
    """Returns a table for each task, a row for each step: its leading metrics, or the `rest` of them.

    `tasks` are in the order of the configuration.
    """
    tables = []
    for task in in_order((task for evaluation in evaluations for task in evaluation.metrics), tasks):
        rows = [(evaluation.step, evaluation.metrics[task]) for evaluation in evaluations if task in evaluation.metrics]
        names = list(dict.fromkeys(name for _, metrics in rows for name in metrics))
        leading = leading_metrics(names)
        shown = [name for name in names if name not in leading] if rest else leading
        if shown:
            steps = [number(step) for step, _ in rows]
            columns = [_column([metrics.get(name) for _, metrics in rows]) for name in shown]
            cells = tuple(zip(steps, *columns, strict=True))
            tables.append(Table(caption=task, columns=("step", *map(figures.heading, shown)), rows=cells))
    return tuple(tables)


def _column(values: list[float | None]) -> list[Cell]:
    texts = iter(figures.column([value for value in values if value is not None]))
    return [
        number(None) if value is None else Cell(text=next(texts), kind="number", full=repr(value)) for value in values
    ]


def stages_of(record: RunRecord) -> Table:
    """Returns the table of the stages before training: what was computed, what was reused, and why."""
    rows = tuple(
        (
            text(stage.stage),
            text(stage.name),
            text("reused" if stage.reused else "computed"),
            text(stage.reason),
            seconds(stage.seconds),
            code(stage.fingerprint),
        )
        for stage in record.stages
    )
    return Table(caption="Stages", columns=("stage", "of", "outcome", "why", "time", "fingerprint"), rows=rows)


def segments_of(record: RunRecord, final_step: int) -> Table:
    """Returns the table of the segments that led to `final_step`."""
    rows = tuple(
        (
            Cell(text=f"{segment.start:,} to {segment.end:,}", kind="number"),
            text("reused" if segment.reused else "trained"),
            number(segment.trained_steps),
            _cost(segment),
            Cell(text=_rate(segment), kind="number"),
            code(segment.parent.digest),
            code(segment.checkpoint.digest),
        )
        for segment in record.segments_to(final_step)
    )
    columns = ("steps", "outcome", "trained steps", "time", "steps per second", "from state", "to state")
    return Table(caption="Segments", columns=columns, rows=rows)


def _cost(segment: edges.SegmentRecord) -> Cell:
    cell = seconds(segment.seconds)
    return dataclasses.replace(cell, text=f"took {cell.text}") if segment.reused and segment.seconds else cell


def _rate(segment: edges.SegmentRecord) -> str:
    return figures.number(segment.trained_steps / segment.seconds) if segment.seconds and segment.trained_steps else "–"


def shares_of(manifest: Manifest) -> Table:
    """Returns the table of what each task gave to a mixture."""
    features = _features(share.tokens for share in manifest.tasks.values())
    rows = tuple(
        (
            text(task),
            number(share.requested_rate),
            number(share.realised_rate),
            number(share.source.rows),
            number(share.reads),
            number(share.epochs),
            *(number(share.tokens.get(feature)) for feature in features),
        )
        for task, share in manifest.tasks.items()
    )
    tokens = (f"tokens of {name}" for name in features)
    columns = ("task", "rate asked", "rate got", "rows", "reads", "reads per row", *tokens)
    return Table(caption="What each task gave to the mixture", columns=columns, rows=rows)


def _features(tokens: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """Returns the features that hold tokens, in the order of their first appearance."""
    names = dict.fromkeys(name for by_feature in tokens for name in by_feature)
    return tuple(name for name in names if not name.endswith("_segment_ids"))


def packing_of(manifest: Manifest) -> str:
    """Returns in words how well a mixture's examples filled their rows, '' for one that is not packed."""
    packing = manifest.packing
    if packing is None:
        return ""
    shares = ", ".join(f"{100 * share:.1f} % of {name}" for name, share in packing.efficiency.items())
    examples, rows = counting.count(packing.examples, "example"), counting.count(packing.rows, "row")
    return f"{examples} packed into {rows}: {shares} are tokens, the rest is padding."


def splits_of(record: RunRecord, stage: str) -> Table:
    """Returns the table of every split of the datasets that `stage` made, as far as their manifests are there."""
    manifests = [dataset.manifest for dataset in record.datasets if dataset.stage.stage == stage and dataset.manifest]
    return splits_in(manifests, caption="Tasks, tokenised" if stage == "materialise" else "Mixture")


def splits_in(manifests: Sequence[Manifest], *, caption: str) -> Table:
    """Returns the table of every split that `manifests` describe."""
    found = [(manifest.name, *split) for manifest in manifests for split in manifest.splits.items()]
    features = _features(split.tokens for _, _, split in found)
    rows = tuple(
        (
            text(dataset),
            text(name),
            number(split.rows),
            number(len(split.pass_rows) or 1),
            *(number(split.tokens.get(feature)) for feature in features),
            text(_counts(split.truncated)),
            text(_counts(split.dropped)),
            Cell(text=f"{100 * split.unknown_rate:.2g} %", kind="number", full=f"{split.unknown_tokens:,} tokens"),
        )
        for dataset, name, split in found
    )
    tokens = (f"tokens of {name}" for name in features)
    columns = ("dataset", "split", "rows", "passes", *tokens, "truncated", "dropped", "unknown")
    return Table(caption=caption, columns=columns, rows=rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {amount:,}" for name, amount in counts.items() if amount) or "none"


def versions_of(versions: Mapping[str, str]) -> Table:
    """Returns the table of package versions."""
    rows = tuple((text(name), Cell(text=version, kind="code")) for name, version in versions.items())
    return Table(caption="Versions", columns=("package", "version"), rows=rows)
