"""What the preflight expected of a run beside what it came to."""

from __future__ import annotations

from collections.abc import Iterator

from t5core.preflight import lines
from t5core.preflight.record import DataFigures, Preflight
from t5core.report import figures, tables
from t5core.report.gather import RunRecord
from t5core.report.tables import Cell, Table

Row = tuple[Cell, Cell, Cell]


def preflight_of(record: RunRecord) -> Table:
    """Returns the table of the preflight's figures, expected and found; without rows where there was none."""
    found = record.preflight
    rows = () if found is None else (*_model(found, record.checkpoint_bytes), *_data(found))
    return Table(caption="Expected and found", columns=("what", "expected", "found"), rows=rows)


def _model(found: Preflight, checkpoint_bytes: int | None) -> Iterator[Row]:
    if found.model is None:
        return
    yield tables.text("parameters"), tables.number(found.model.parameters), tables.number(None)
    yield tables.text("bytes of a checkpoint"), _size(found.model.checkpoint_bytes), _size(checkpoint_bytes)
    low, high = (figures.size(amount) for amount in (found.model.step_bytes_low, found.model.step_bytes_high))
    yield tables.text("memory of a step beside the state"), tables.text(f"{low} to {high}"), tables.number(None)


def _data(found: Preflight) -> Iterator[Row]:
    before, after = found.estimated, found.exact
    for what in ("examples", "rows"):
        yield tables.text(what), _number(before, what), _number(after, what)
    yield tables.text("epochs"), _epochs(found, before), _epochs(found, after)
    known = after or before
    for name in known.tokens if known else ():
        yield tables.text(f"tokens among {name}"), _share(before, name), _share(after, name)
    yield tables.text("truncated"), _truncated(before), _truncated(after)


def _epochs(found: Preflight, data: DataFigures | None) -> Cell:
    return tables.number(found.total_steps * found.batch_size / data.rows if data and data.rows else None)


def _truncated(data: DataFigures | None) -> Cell:
    return tables.text(lines.truncation(data.truncated) if data else "–")


def _number(data: DataFigures | None, what: str) -> Cell:
    return tables.number(None if data is None else getattr(data, what))


def _size(amount: int | None) -> Cell:
    return (
        tables.number(None)
        if amount is None
        else Cell(text=figures.size(amount), kind="number", full=f"{amount:,} bytes")
    )


def _share(data: DataFigures | None, name: str) -> Cell:
    share = data.efficiency.get(name) if data else None
    return tables.number(None) if share is None else Cell(text=f"{100 * share:.1f} %", kind="number", full=repr(share))
