"""What the preflight expected of a run beside what it came to."""

from __future__ import annotations

from collections.abc import Iterator

from t5core.preflight.record import DataFigures, Preflight
from t5core.report import figures, tables
from t5core.report.gather import RunRecord
from t5core.report.tables import Cell, Table

Row = tuple[Cell, Cell, Cell]
_UNKNOWN = tables.number(None)


def preflight_of(record: RunRecord) -> Table:
    """Returns the table of the preflight's figures, expected and found; without rows where there was none.

    Before anything is found there is no column for it.
    """
    found = record.preflight
    rows = () if found is None else (*_model(found, record), *_data(found))
    if any(row[2] != _UNKNOWN for row in rows):
        return Table(caption="Expected and found", columns=("what", "expected", "found"), rows=rows)
    return Table(caption="Expected", columns=("what", "expected"), rows=tuple(row[:2] for row in rows))


def memory_of(record: RunRecord) -> str:
    """Returns in a sentence how much memory a step was expected to take; '' where nothing was expected."""
    model = record.preflight.model if record.preflight else None
    if model is None:
        return ""
    low, high = (figures.size(amount) for amount in (model.step_bytes_low, model.step_bytes_high))
    return f"A step was expected to take {low} to {high} of memory beside the state; what it took is not recorded."


def _model(found: Preflight, record: RunRecord) -> Iterator[Row]:
    if found.model is None:
        return
    yield tables.text("parameters"), tables.number(found.model.parameters), tables.number(record.parameters)
    yield tables.text("bytes of a checkpoint"), _size(found.model.checkpoint_bytes), _size(record.checkpoint_bytes)


def _data(found: Preflight) -> Iterator[Row]:
    before, after = found.estimated, found.exact
    known = after or before
    if known is None:
        return
    for what in ("examples", "rows"):
        yield tables.text(what), _number(before, what), _number(after, what)
    yield tables.text("epochs"), _epochs(found, before), _epochs(found, after)
    for name in known.tokens:
        yield tables.text(f"tokens among {name}"), _filled(before, name), _filled(after, name)
    cut = dict.fromkeys(
        (task, side) for data in (before, after) if data for task in data.truncated for side in data.truncated[task]
    )
    for task, side in cut:
        yield tables.text(f"truncated {side} of {task}"), _cut(before, task, side), _cut(after, task, side)


def _filled(data: DataFigures | None, name: str) -> Cell:
    return _share(data.efficiency.get(name) if data else None)


def _cut(data: DataFigures | None, task: str, side: str) -> Cell:
    return _share(data.truncated.get(task, {}).get(side, 0.0) if data else None)


def _epochs(found: Preflight, data: DataFigures | None) -> Cell:
    return tables.number(found.total_steps * found.batch_size / data.rows if data and data.rows else None)


def _number(data: DataFigures | None, what: str) -> Cell:
    return tables.number(None if data is None else getattr(data, what))


def _size(amount: int | None) -> Cell:
    return (
        tables.number(None)
        if amount is None
        else Cell(text=figures.size(amount), kind="number", full=f"{amount:,} bytes")
    )


def _share(share: float | None) -> Cell:
    return _UNKNOWN if share is None else Cell(text=f"{100 * share:.1f} %", kind="number", full=repr(share))
