"""Rows of plain files: .txt, .jsonl, .tsv, .csv and .parquet, on a disk or on gs://.

Lines end at a line feed and nowhere else: characters like U+2028 belong to the text. A file is read as a stream, so
memory does not grow with it, only with its longest line.

A row is malformed when it is not what its file is made of: a line that is no JSON object or lacks a column, one with
another number of fields than the header, a value that is neither text nor number. Where a row ends is known all the
same, and a tolerant reader goes on behind it. It is not known in a .csv file behind a quotation mark that was left
open: the rows up to the next mark seem to be one, so that what is left out could be any number of good ones. Such a
file is refused, and so is one whose header lacks a column, and a damaged Parquet file, which holds no malformed rows.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5core import errors
from t5core.data import files, utf8
from t5core.data.files import Piece

_BOM = b"\xef\xbb\xbf"
# csv refuses longer fields by default; a document may well be one.
LONGEST_FIELD = 1 << 30
_PARQUET_ROWS = 1024


class Row(NamedTuple):
    """The texts of a row by column, where it stands, and whether bytes that are not UTF-8 were replaced in it.

    `malformed` is the reason why it could not be read, '' when it could; its texts are '' then.
    """

    place: str
    columns: dict[str, str]
    mended: bool = False
    malformed: str = ""


class Tolerance(NamedTuple):
    """Which rows are marked instead of refused: those with bytes that are not UTF-8, and malformed ones."""

    invalid: bool = False
    malformed: bool = False


class _MalformedError(errors.DataError):
    """A row cannot be read, and the next one can; `reason` is what it is counted under."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = f"malformed ({reason})"


REFUSES_ALL = Tolerance()


def read(piece: Piece, *, columns: Sequence[str], tolerance: Tolerance = REFUSES_ALL) -> Iterator[Row]:
    """Yields the rows of `piece` with just these columns as texts; what is null or a blank line comes as ''.

    Args:
      piece: of a file; `Piece(file)` is the whole.
      columns: those to read.
      tolerance: what is marked instead of refused; bytes that are not UTF-8 give way to U+FFFD.

    Raises:
      DataError: a column is missing, or a row cannot be read; the message names file and line.
    """
    return _reader(piece.file)(piece, columns, tolerance)


def may_hold_malformed(file: str) -> bool:
    """Tells whether rows of such a file can be malformed: any line is a text, and Parquet checks what it takes."""
    return files.suffix(file) not in (".txt", ".parquet")


def _reader(file: str) -> Callable[[Piece, Sequence[str], Tolerance], Iterator[Row]]:
    readers = {".txt": _text, ".jsonl": _jsonl, ".tsv": _tsv, ".csv": _csv, ".parquet": _parquet}
    return readers[files.suffix(file)]


def _lines(piece: Piece, tolerance: Tolerance) -> Iterator[tuple[str, str]]:
    """Yields FILE:LINE and the line without its ending; a byte order mark is dropped."""
    with files.opened(piece.file) as handle:
        left = (handle.seek(0, os.SEEK_END) if piece.end is None else piece.end) - piece.begin
        handle.seek(piece.begin)
        for number, line in enumerate(handle, start=piece.first):
            if left <= 0:
                return
            left -= len(line)
            place = f"{piece.file}:{number}"
            content = line.removeprefix(_BOM) if number == 1 else line
            yield place, utf8.decoded(content, place=place, tolerant=tolerance.invalid).rstrip("\r\n")


def _row_of(place: str, values: Callable[[], Mapping[str, Any]], columns: Sequence[str], tolerance: Tolerance) -> Row:
    """Returns the row of what `values` gives, or one that is marked if it is malformed and that is tolerated."""
    try:
        return _row(place, values(), tolerant=tolerance.invalid)
    except _MalformedError as flaw:
        if not tolerance.malformed:
            raise
        return Row(place, dict.fromkeys(columns, ""), malformed=flaw.reason)


def _row(place: str, values: Mapping[str, Any], *, tolerant: bool) -> Row:
    """Returns a row of what a file holds, as texts."""
    mended, columns = False, {}
    for name, value in values.items():
        columns[name], replaced = utf8.whole(
            _as_text(value, name=name, place=place), name=name, place=place, tolerant=tolerant
        )
        mended |= replaced
    return Row(place, columns, mended)


def _text(piece: Piece, columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    _require(columns, ("text",), place=piece.file)
    for place, line in _lines(piece, tolerance):
        yield _row(place, {"text": line}, tolerant=tolerance.invalid)


def _jsonl(piece: Piece, columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    for place, line in _lines(piece, tolerance):
        if not line.strip():
            yield Row(place, dict.fromkeys(columns, ""))
            continue
        yield _row_of(place, functools.partial(_of_json, line, columns, place), columns, tolerance)


def _of_json(line: str, columns: Sequence[str], place: str) -> dict[str, Any]:
    content = _json_object(line, place=place)
    missing = _missing(columns, content)
    if missing is not None:
        raise _MalformedError(f"{place}: {missing}", "a column is missing")
    return {name: content[name] for name in columns}


def _json_object(line: str, *, place: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{place}: not JSON ({error.msg} at position {error.pos + 1}); mend the line"
        raise _MalformedError(message, "not JSON") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise _MalformedError(f"{place}: JSON that cannot be read ({error}); mend the line", "not JSON") from error
    if not isinstance(content, dict):
        message = f"{place}: holds a {type(content).__name__}; write an object of columns in each line"
        raise _MalformedError(message, "no JSON object")
    return content


class _Record(NamedTuple):
    """The fields of a record of a table, where it begins, and on how many lines it stands."""

    place: str
    fields: list[str]
    lines: int = 1


def _tsv(piece: Piece, columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    """Reads tab-separated values, in which a quotation mark is a character like any other."""
    header = itertools.islice(_lines(Piece(piece.file), tolerance), 1 if piece.begin else 0)
    lines = itertools.chain(header, _lines(piece, tolerance))
    return _table((_Record(place, line.split("\t") if line else []) for place, line in lines), columns, tolerance)


def _csv(piece: Piece, columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    return _table(_csv_records(piece.file, tolerance), columns, tolerance)


def _csv_records(file: str, tolerance: Tolerance) -> Iterator[_Record]:
    reader = csv.reader((line + "\n" for _, line in _lines(Piece(file), tolerance)), strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise errors.DataError(f"{file}:{begin}: {error}; is a quotation mark left open there?") from error
        if record is None:
            return
        yield _Record(f"{file}:{begin}", record, reader.line_num + 1 - begin)


def _table(records: Iterator[_Record], columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    """Yields the rows under a header of column names; an empty record is a blank row."""
    first = next(records, None)
    if first is None:
        return
    _require(columns, first.fields, place=first.place)
    for record in records:
        if not record.fields:
            yield Row(record.place, dict.fromkeys(columns, ""))
            continue
        yield _row_of(record.place, functools.partial(_of_record, record, first.fields, columns), columns, tolerance)


def _of_record(record: _Record, header: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    if len(record.fields) != len(header):
        found = f"{record.place}: {len(record.fields)} fields"
        if record.lines > 1:  # it may hold rows that are none of it
            raise errors.DataError(
                f"{found} on {record.lines} lines, but the header names {len(header)}; is a quotation mark left open "
                "there?"
            )
        message = f"{found}, but the header names {len(header)}; mend the line"
        raise _MalformedError(message, "another number of fields")
    fields = dict(zip(header, record.fields, strict=True))
    return {name: fields[name] for name in columns}


def _parquet(piece: Piece, columns: Sequence[str], tolerance: Tolerance) -> Iterator[Row]:
    with files.parquet_file(piece.file) as table:
        _require(columns, table.schema_arrow.names, place=piece.file)
        number = piece.first - 1
        groups = list(range(piece.begin, table.num_row_groups if piece.end is None else piece.end))
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns), row_groups=groups):
            values = {name: _cells(batch.column(name)) for name in columns}
            for index in range(batch.num_rows):
                number += 1
                place = f"{piece.file}:{number}"
                record = {
                    name: _cell(cells[index], place=place, tolerant=tolerance.invalid) for name, cells in values.items()
                }
                yield _row(place, record, tolerant=tolerance.invalid)


def _cells(array: Any) -> list[Any]:
    """Returns the values of an Arrow array, texts still as the bytes that they are stored as."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_string(array.type) or types.is_large_string(array.type):
        return [_Encoded(value) if value is not None else None for value in array.cast("large_binary").to_pylist()]
    return array.to_pylist()


class _Encoded(bytes):
    """A text as it is stored, to be told from a column of bytes."""


def _cell(value: Any, *, place: str, tolerant: bool) -> Any:
    return utf8.decoded(value, place=place, tolerant=tolerant) if isinstance(value, _Encoded) else value


def _require(columns: Sequence[str], known: Collection[str], *, place: str) -> None:
    missing = _missing(columns, known)
    if missing is not None:
        raise errors.DataError(f"{place}: {missing}")


def _missing(columns: Sequence[str], known: Collection[str]) -> str | None:
    """Returns the message about the first of `columns` that is not known, None when all are."""
    name = next((name for name in columns if name not in known), None)
    return None if name is None else errors.unknown_name("column", name, known)


def _as_text(value: Any, *, name: str, place: str) -> str:
    text = as_text(value)
    if text is None:
        message = f"{place}: column {name!r} holds a {type(value).__name__}; use text or numbers"
        raise _MalformedError(message, "neither text nor number")
    return text


def as_text(value: Any) -> str | None:
    """Returns the text of a column's value, '' for a null; None: it is neither text nor a number."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | int | float) else None
