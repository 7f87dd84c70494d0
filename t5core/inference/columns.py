"""The columns of the results in Parquet, as the lines of JSON turn out to need them.

A field whose values are all of one kind becomes a column of that kind, one of whole and broken numbers a column of
broken ones. Objects, lists and mixtures become JSON texts. A field that a row lacks is null there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5core.config.infer_edges import FieldKinds
from t5core.metrics import json_numbers

if TYPE_CHECKING:
    import pyarrow

_INT64 = range(-(1 << 63), 1 << 63)
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class Kinds:
    """Which kinds of values each field was seen with, in the order in which the fields turned up."""

    def __init__(self, seen: Iterable[FieldKinds] = ()) -> None:
        self._seen: dict[str, set[str]] = {}
        for field in seen:
            self._seen.setdefault(field.name, set()).update(field.kinds)

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes note of the fields of a row."""
        for name, value in row.items():
            kinds = self._seen.setdefault(name, set())
            if value is not None:
                kinds.add(_kind(value))

    def listed(self) -> list[FieldKinds]:
        """Returns what was seen."""
        return [FieldKinds(name=name, kinds=sorted(kinds)) for name, kinds in self._seen.items()]


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "not finite" if value in _NOT_FINITE else "str"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if value in _INT64 else "large int"
    return "float" if isinstance(value, float) else "json"


class Columns:
    """Turns rows into Arrow's tables of one schema."""

    def __init__(self, fields: Sequence[FieldKinds]) -> None:
        import pyarrow

        self._types = {field.name: _type(set(field.kinds)) for field in fields}
        arrow = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_()}
        self.schema = pyarrow.schema([(name, arrow.get(kind, pyarrow.string())) for name, kind in self._types.items()])

    def table(self, rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
        """Returns rows as they were read from lines of JSON."""
        import pyarrow

        values = {name: [_cell(row.get(name), kind) for row in rows] for name, kind in self._types.items()}
        return pyarrow.table(values, schema=self.schema)


def _type(kinds: set[str]) -> str:
    if kinds <= {"str", "not finite"}:
        return "str"
    if len(kinds) == 1 and kinds <= {"int", "bool"}:
        return kinds.pop()
    return "float" if kinds <= {"int", "float", "not finite"} else "json"


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "float":
        return float(json_numbers.decode(value))
    return json.dumps(value, ensure_ascii=False) if kind == "json" else value
