"""Rows of plain files: .txt, .jsonl, .tsv, .csv and .parquet, on a disk or on gs://.

Lines end at a line feed and nowhere else: characters like U+2028 belong to the text. A file is read as a stream, so
memory does not grow with it, only with its longest line.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from t5core import errors, storage
from t5core.data import utf8

_BOM = b"\xef\xbb\xbf"
BLOCK = 1 << 20
# csv refuses longer fields by default; a document may well be one.
LONGEST_FIELD = 1 << 30
_PARQUET_ROWS = 1024


class Piece(NamedTuple):
    """A part of a file that can be read by itself: bytes [begin, end), or row groups of a Parquet file.

    Attributes:
      file: path or gs:// object.
      begin: where it begins.
      end: where it ends; None at the end of the file.
      first: the number of its first line or row, counted from 1.
      lines: how many lines or rows it has; there are no more documents in it.
    """

    file: str
    begin: int = 0
    end: int | None = None
    first: int = 1
    lines: int = 0


class Row(NamedTuple):
    """The texts of a row by column, where it stands, and whether bytes that are not UTF-8 were replaced in it."""

    place: str
    columns: dict[str, str]
    mended: bool = False


def matching(patterns: Sequence[str], *, task: str) -> tuple[str, ...]:
    """Returns the files that `patterns` name: in the order of the patterns, sorted within each, and each once.

    Raises:
      DataError: a pattern matches nothing, names a folder, or a file of a kind that cannot be read.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        for file in _glob(pattern, task=task):
            found.setdefault(file if storage.is_remote(file) else os.path.realpath(file), file)
    return tuple(found.values())


def _glob(pattern: str, *, task: str) -> list[str]:
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(pattern)
    if filesystem.isdir(path):
        raise errors.DataError(
            f"task {task!r}: {pattern} is a folder; name its files, as in {pattern.rstrip('/')}/*.txt"
        )
    matches: list[str] = []
    with contextlib.suppress(FileNotFoundError), _refusals_as_errors(pattern):  # a bucket may be missing as well
        matches = sorted(filesystem.glob(path))
    folder = next(filter(filesystem.isdir, matches), None)
    if folder is not None:
        raise errors.DataError(
            f"task {task!r}: {pattern} matches the folder {folder}; name its files too, as in {folder}/*, or fewer"
        )
    if not matches:
        raise errors.DataError(f"task {task!r}: no file matches {pattern}; check the path (run in {os.getcwd()})")
    remote = storage.is_remote(pattern)
    files = [filesystem.unstrip_protocol(match) if remote else match for match in matches]
    for file in files:
        _reader(file)
    return files


def digest(file: str) -> str:
    """Returns what names the file's content, and its suffix, which decides how it is read.

    It comes from the content itself, or from the checksum that gs:// keeps with an object.
    """
    content = hashlib.sha256(suffix(file).encode())
    listed = _listed_checksum(_listed(file)) if storage.is_remote(file) else None
    if listed is not None:
        content.update(listed.encode())
        return content.hexdigest()
    with opened(file) as handle:
        while block := handle.read(BLOCK):
            content.update(block)
    return content.hexdigest()


def state(file: str) -> str:
    """Returns what differs once `file` was written again; unlike `digest` it does not read the content."""
    found = _listed(file)
    return _listed_checksum(found) or f"{found['size']} {found.get('mtime')}"


def _listed(file: str) -> dict[str, Any]:
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(file)
    with _refusals_as_errors(file):
        try:
            return filesystem.info(path)
        except FileNotFoundError as error:
            raise errors.DataError(f"cannot read {file}: it is gone; check that it is there") from error


def _listed_checksum(listed: Mapping[str, Any]) -> str | None:
    return listed.get("md5Hash") or listed.get("crc32c")


def rows(piece: Piece, *, columns: Sequence[str], tolerant: bool = False) -> Iterator[Row]:
    """Yields the rows of `piece` with just these columns as texts; what is null or a blank line comes as ''.

    Args:
      piece: of a file; `Piece(file)` is the whole.
      columns: those to read.
      tolerant: marks rows with bytes that are not UTF-8, with U+FFFD in their place, instead of refusing them.

    Raises:
      DataError: a column is missing, or a row cannot be read; the message names file and line.
    """
    return _reader(piece.file)(piece, columns, tolerant)


def suffix(file: str) -> str:
    """Returns the ending of a file's name, which says how it is read."""
    return os.path.splitext(file)[1].lower()


def _reader(file: str) -> Callable[[Piece, Sequence[str], bool], Iterator[Row]]:
    readers = {".txt": _text, ".jsonl": _jsonl, ".tsv": _tsv, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(suffix(file))
    if reader is None:
        raise errors.DataError(
            f"{file}: cannot read {suffix(file) or 'files without a suffix'}; use {', '.join(readers)}"
        )
    return reader


@contextlib.contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """Opens `file` to be read; what the system refuses is a DataError of one line."""
    import fsspec

    with _refusals_as_errors(file):
        try:
            if not storage.is_remote(file):
                with open(file, "rb") as handle:
                    yield handle
                return
            with fsspec.open(file, "rb") as remote, io.BufferedReader(cast("io.RawIOBase", remote), BLOCK) as handle:
                yield handle
        except FileNotFoundError as error:
            raise errors.DataError(f"cannot read {file}: it is gone; check that it is there") from error


@contextlib.contextmanager
def _refusals_as_errors(file: str) -> Iterator[None]:
    """Turns what the system refuses into a DataError of one line; that a file is missing is for the caller to say."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = " ".join(str(error.strerror or error).split())
        remedy = "check your right to read it" if isinstance(error, PermissionError) else "check the file"
        raise errors.DataError(f"cannot read {file}: {reason}; {remedy}") from error


def _lines(piece: Piece, tolerant: bool) -> Iterator[tuple[str, str]]:
    """Yields FILE:LINE and the line without its ending; a byte order mark is dropped."""
    with opened(piece.file) as handle:
        left = (handle.seek(0, os.SEEK_END) if piece.end is None else piece.end) - piece.begin
        handle.seek(piece.begin)
        for number, line in enumerate(handle, start=piece.first):
            if left <= 0:
                return
            left -= len(line)
            place = f"{piece.file}:{number}"
            content = line.removeprefix(_BOM) if number == 1 else line
            yield place, utf8.decoded(content, place=place, tolerant=tolerant).rstrip("\r\n")


def _row(place: str, values: Mapping[str, Any], *, tolerant: bool) -> Row:
    """Returns a row of what a file holds, as texts."""
    mended, columns = False, {}
    for name, value in values.items():
        columns[name], replaced = utf8.whole(
            _as_text(value, name=name, place=place), name=name, place=place, tolerant=tolerant
        )
        mended |= replaced
    return Row(place, columns, mended)


def _text(piece: Piece, columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    _require(columns, ("text",), place=piece.file)
    for place, line in _lines(piece, tolerant):
        yield _row(place, {"text": line}, tolerant=tolerant)


def _jsonl(piece: Piece, columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    for place, line in _lines(piece, tolerant):
        if not line.strip():
            yield Row(place, dict.fromkeys(columns, ""))
            continue
        content = _json_object(line, place=place)
        _require(columns, content, place=place)
        yield _row(place, {name: content[name] for name in columns}, tolerant=tolerant)


def _json_object(line: str, *, place: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise errors.DataError(f"{place}: not JSON ({error.msg} at position {error.pos + 1}); mend the line") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise errors.DataError(f"{place}: JSON that cannot be read ({error}); mend the line") from error
    if not isinstance(content, dict):
        raise errors.DataError(f"{place}: holds a {type(content).__name__}; write an object of columns in each line")
    return content


def _tsv(piece: Piece, columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    """Reads tab-separated values, in which a quotation mark is a character like any other."""
    header = itertools.islice(_lines(Piece(piece.file), tolerant), 1 if piece.begin else 0)
    lines = itertools.chain(header, _lines(piece, tolerant))
    records = ((place, line.split("\t") if line else []) for place, line in lines)
    return _table(records, columns, tolerant)


def _csv(piece: Piece, columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    return _table(_csv_records(piece.file, tolerant), columns, tolerant)


def _csv_records(file: str, tolerant: bool) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in _lines(Piece(file), tolerant)), strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise errors.DataError(f"{file}:{begin}: {error}; is a quotation mark left open there?") from error
        if record is None:
            return
        yield f"{file}:{begin}", record


def _table(records: Iterator[tuple[str, list[str]]], columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    """Yields the rows under a header of column names; an empty record is a blank row."""
    first = next(records, None)
    if first is None:
        return
    header = first[1]
    _require(columns, header, place=first[0])
    for place, record in records:
        if not record:
            yield Row(place, dict.fromkeys(columns, ""))
            continue
        if len(record) != len(header):
            raise errors.DataError(f"{place}: {len(record)} fields, but the header names {len(header)}; mend the line")
        fields = dict(zip(header, record, strict=True))
        yield _row(place, {name: fields[name] for name in columns}, tolerant=tolerant)


@contextlib.contextmanager
def parquet_file(file: str) -> Iterator[Any]:
    """Gives the `pyarrow.parquet.ParquetFile` of `file`, with what Arrow refuses as errors of one line."""
    import pyarrow
    from pyarrow import parquet

    with opened(file) as handle:
        try:
            yield parquet.ParquetFile(handle)
        except pyarrow.ArrowException as error:
            reason = " ".join(str(error).split())
            raise errors.DataError(f"{file} is not a Parquet file, or damaged ({reason}); write it again") from error


def _parquet(piece: Piece, columns: Sequence[str], tolerant: bool) -> Iterator[Row]:
    with parquet_file(piece.file) as table:
        _require(columns, table.schema_arrow.names, place=piece.file)
        number = piece.first - 1
        groups = list(range(piece.begin, table.num_row_groups if piece.end is None else piece.end))
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns), row_groups=groups):
            values = {name: _cells(batch.column(name)) for name in columns}
            for index in range(batch.num_rows):
                number += 1
                place = f"{piece.file}:{number}"
                record = {name: _cell(cells[index], place=place, tolerant=tolerant) for name, cells in values.items()}
                yield _row(place, record, tolerant=tolerant)


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


def _require(columns: Sequence[str], known: Sequence[str] | dict[str, Any], *, place: str) -> None:
    for name in columns:
        if name not in known:
            raise errors.DataError(f"{place}: {errors.unknown_name('column', name, known)}")


def _as_text(value: Any, *, name: str, place: str) -> str:
    text = as_text(value)
    if text is None:
        raise errors.DataError(f"{place}: column {name!r} holds a {type(value).__name__}; use text or numbers")
    return text


def as_text(value: Any) -> str | None:
    """Returns the text of a column's value, '' for a null; None: it is neither text nor a number."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | int | float) else None
