"""Columns of Parquet for whatever lines of JSON hold."""

import json
import math

import pytest

from t5core.config.infer_edges import FieldKinds
from t5core.inference.columns import Columns, Kinds


def column(*values):
    kinds = Kinds()
    for value in values:
        kinds.add({"a": value})
    table = Columns(kinds.listed()).table([{"a": value} for value in values])
    return str(table.schema.field("a").type), table["a"].to_pylist()


@pytest.mark.parametrize(
    ("values", "type_", "stored"),
    [
        ([1, None, -(2**63)], "int64", [1, None, -(2**63)]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([True, False], "bool", [True, False]),
        (["a", "NaN", None], "string", ["a", "NaN", None]),
        ([None, None], "string", [None, None]),
        ([2**63], "string", [str(2**63)]),
        ([True, 1], "string", ["true", "1"]),
        ([[1], {"ü": None}, "x"], "string", ["[1]", '{"ü": null}', '"x"']),
    ],
)
def test_a_column_takes_the_kind_of_its_values(values, type_, stored):
    assert column(*values) == (type_, stored)


def test_numbers_that_json_has_no_word_for_are_numbers():
    type_, stored = column(1.5, "Infinity", "-Infinity", "NaN")
    assert type_ == "double"
    assert stored[:3] == [1.5, math.inf, -math.inf]
    assert math.isnan(stored[3])


def test_kinds_of_shards_add_up_in_the_order_of_the_fields():
    one, other = Kinds(), Kinds()
    one.add({"row": 0, "b": None})
    other.add({"row": 1, "a": "x", "b": 2})
    joined = Kinds([*one.listed(), *other.listed()]).listed()
    assert [field.name for field in joined] == ["row", "b", "a"]
    assert joined[1] == FieldKinds(name="b", kinds=["int"])


def test_a_row_without_the_field_is_null_there():
    table = Columns([FieldKinds(name="a", kinds=["int"])]).table([{}, json.loads('{"a": 3}')])
    assert table["a"].to_pylist() == [None, 3]
