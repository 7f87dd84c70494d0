"""Rows with all their fields: from any row on, and a bad one told with its place instead of ending the file."""

import datetime
import decimal
import json

import pyarrow
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.config.infer_edges import RowPosition
from t5core.data import files, plain_rows
from t5core.data.records import RowReader, UnusableRow

ROWS = [{"a": f"text {i}", "b": "x" * (i % 5) + "ü"} for i in range(9)]


def write(folder, kind):
    """Writes ROWS as a file of `kind`."""
    file = folder / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file, row_group_size=4)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "txt":
        file.write_text("".join(row["a"] + "\n" for row in ROWS))
    else:
        separator = "," if kind == "csv" else "\t"
        file.write_text("".join(separator.join(cells) + "\n" for cells in [["a", "b"], *map(dict.values, ROWS)]))
    return str(file)


def read(*names, begin=None):
    """Returns (place, fields or the reason) of each row."""
    reader = RowReader(names)
    found = []
    for raw in reader.raw(begin or RowPosition()):
        try:
            found.append((raw.place, reader.fields(raw)))
        except UnusableRow as reason:
            found.append((raw.place, str(reason)))
    return found


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv", "parquet", "txt"])
def test_every_row_can_be_the_first_of_a_pass(tmp_path, kind):
    name = write(tmp_path, kind)
    reader = RowReader([name, name])
    whole = read(name, name)
    begins = [raw.begin for raw in reader.raw(RowPosition(), values=False)]
    assert len(begins) == len(whole) == 18
    for number, begin in enumerate(begins):
        assert read(name, name, begin=begin) == whole[number:]
    expected = [{"text": row["a"]} for row in ROWS] if kind == "txt" else ROWS
    assert [fields for _, fields in whole] == expected * 2


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv", "parquet", "txt"])
def test_the_rows_are_those_that_training_reads(tmp_path, kind):
    name = write(tmp_path, kind)
    columns = ("text",) if kind == "txt" else ("a", "b")
    assert read(name) == [(row.place, row.columns) for row in plain_rows.read(files.Piece(name), columns=columns)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "a.jsonl",
            b'{"a": 1}\n\n{"a": \n[1]\n{"a": "\xff"}\n{"a": "\\ud800"}\n{"a": [2, null]}',
            [
                {"a": 1},
                "a blank line",
                "not JSON (Expecting value at position 7)",
                "holds a list, not an object of fields",
                "byte 0xff at position 8 is not UTF-8",
                "holds half a surrogate pair",
                {"a": [2, None]},
            ],
        ),
        (
            "a.txt",
            b"\xef\xbb\xbfone\r\n \n\xc3\nfour\xe2\x80\xa8s",
            ["one", "a blank line", "byte 0xc3", "four\u2028s"],
        ),
        (
            "a.tsv",
            b'a\tb\r\n1\t"2\r\n\r\n1\n1\t2\t3\n\xff\t2\n3\t4',
            [
                {"a": "1", "b": '"2'},
                "a blank line",
                "1 fields, but the head names 2",
                "3 fields, but the head names 2",
                "byte 0xff at position 1 is not UTF-8",
                {"a": "3", "b": "4"},
            ],
        ),
        (
            "a.csv",
            b'\xef\xbb\xbfa,b\n"x\r\ny",2\n\nx"y,1,2\n\xff,2\n"x"y,2\n3,4\n5,"6\n7,8\n',
            [
                {"a": "x\ny", "b": "2"},
                "a blank line",
                "3 fields, but the head names 2",
                "bytes that are not UTF-8",
                "',' expected after '\"'",
                {"a": "3", "b": "4"},
                "unexpected end of data; is a quotation mark left open there?",
            ],
        ),
    ],
)
def test_a_bad_row_is_told_and_the_next_one_read(tmp_path, name, content, expected):
    file = tmp_path / name
    file.write_bytes(content)
    found = [fields for _, fields in read(str(file))]
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        if isinstance(row, dict) and isinstance(wanted, str):
            assert row == {"text": wanted}
        elif isinstance(wanted, str):
            assert row.startswith(wanted)
        else:
            assert row == wanted


def test_a_row_of_several_lines_stands_where_it_begins(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('a\n"1\n2"\n3\n')
    assert [place for place, _ in read(str(file))] == [f"{file}:2", f"{file}:4"]


def test_parquet_values_come_as_json_can_hold_them(tmp_path):
    row = {
        "when": datetime.datetime(2020, 2, 29, 12),
        "cost": decimal.Decimal("1.50"),
        "raw": b"\x00\xff",
        "list": [1, None],
        "deep": {"x": datetime.date(2020, 1, 1)},
        "none": None,
    }
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    [(_, fields)] = read(str(tmp_path / "a.parquet"))
    assert fields == {
        "when": "2020-02-29T12:00:00",
        "cost": "1.50",
        "raw": "AP8=",
        "list": [1, None],
        "deep": {"x": "2020-01-01"},
        "none": None,
    }


def test_a_text_of_parquet_that_is_not_utf8_spoils_its_row_alone(tmp_path):
    bad = pyarrow.array([b"good", b"\xff", b"fine"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"a": bad}), tmp_path / "a.parquet")
    assert [fields for _, fields in read(str(tmp_path / "a.parquet"))] == [
        {"a": "good"}, "bytes that are not UTF-8", {"a": "fine"},
    ]  # fmt: skip


def test_a_head_that_names_nothing_ends_the_reading(tmp_path):
    twice = tmp_path / "twice.tsv"
    twice.write_text("a\ta\n1\t2\n")
    with pytest.raises(errors.DataError, match=r"twice\.tsv:1: the column 'a' stands twice"):
        RowReader([str(twice)]).columns(0)
    blank = tmp_path / "blank.csv"
    blank.write_text("\n1,2\n")
    with pytest.raises(errors.DataError, match=r"blank\.csv:1: a blank line; mend the line, which names the columns"):
        RowReader([str(blank)]).columns(0)


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_text("no")
    with pytest.raises(errors.DataError, match=r"a\.parquet is not a Parquet file, or damaged"):
        read(str(file))
