"""Rows of plain files: .txt, .jsonl, .tsv, .csv and .parquet, on a disk or on gs://.

Lines end at a line feed and nowhere else: characters like U+2028 belong to the text. A file is read as a stream, so
memory does not grow with it, only with its longest line.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from t5core import errors, storage

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 20
# csv refuses longer fields by default; a document may well be one.
_LONGEST_FIELD = 1 << 30


class Row(NamedTuple):
    """The texts of a row by column, and where it stands."""

    place: str
    columns: dict[str, str]


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
        matches = sorted(match for match in filesystem.glob(path) if not filesystem.isdir(match))
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
    content = hashlib.sha256(_suffix(file).encode())
    listed = _listed_checksum(file)
    if listed is not None:
        content.update(listed.encode())
        return content.hexdigest()
    with _opened(file) as handle:
        while block := handle.read(_BLOCK):
            content.update(block)
    return content.hexdigest()


def _listed_checksum(file: str) -> str | None:
    if not storage.is_remote(file):
        return None
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(file)
    found = filesystem.info(path)
    return found.get("md5Hash") or found.get("crc32c")


def rows(file: str, *, columns: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of `file` with just these columns as texts; what is null or a blank line comes as ''.

    Raises:
      DataError: a column is missing, or a row cannot be read; the message names file and line.
    """
    return _reader(file)(file, columns)


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def _reader(file: str) -> Callable[[str, Sequence[str]], Iterator[Row]]:
    readers = {".txt": _text, ".jsonl": _jsonl, ".tsv": _tsv, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(_suffix(file))
    if reader is None:
        raise errors.DataError(
            f"{file}: cannot read {_suffix(file) or 'files without a suffix'}; use {', '.join(readers)}"
        )
    return reader


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    import fsspec

    with _refusals_as_errors(file):
        try:
            if not storage.is_remote(file):
                with open(file, "rb") as handle:
                    yield handle
                return
            with fsspec.open(file, "rb") as remote, io.BufferedReader(cast("io.RawIOBase", remote), _BLOCK) as handle:
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
        raise errors.DataError(f"cannot read {file}: {error.strerror or error}; check your right to read it") from error


def _lines(file: str) -> Iterator[tuple[str, str]]:
    """Yields FILE:LINE and the line without its ending; a byte order mark is dropped."""
    with _opened(file) as handle:
        for number, line in enumerate(handle, start=1):
            place = f"{file}:{number}"
            content = line.removeprefix(_BOM) if number == 1 else line
            try:
                yield place, content.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise errors.DataError(
                    f"{place}: byte 0x{content[error.start]:02x} at position {error.start + 1} is not UTF-8; "
                    "convert the file to UTF-8"
                ) from error


def _text(file: str, columns: Sequence[str]) -> Iterator[Row]:
    _require(columns, ("text",), place=file)
    for place, line in _lines(file):
        yield Row(place, {"text": line})


def _jsonl(file: str, columns: Sequence[str]) -> Iterator[Row]:
    for place, line in _lines(file):
        if not line.strip():
            yield Row(place, dict.fromkeys(columns, ""))
            continue
        try:
            content = json.loads(line)
        except json.JSONDecodeError as error:
            raise errors.DataError(
                f"{place}: not JSON ({error.msg} at position {error.pos + 1}); mend the line"
            ) from error
        if not isinstance(content, dict):
            raise errors.DataError(
                f"{place}: holds a {type(content).__name__}; write an object of columns in each line"
            )
        _require(columns, content, place=place)
        yield Row(place, {name: _as_text(content[name], name=name, place=place) for name in columns})


def _tsv(file: str, columns: Sequence[str]) -> Iterator[Row]:
    """Reads tab-separated values, in which a quotation mark is a character like any other."""
    return _table(file, ((place, line.split("\t") if line else []) for place, line in _lines(file)), columns)


def _csv(file: str, columns: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    return _table(file, _csv_records(file), columns)


def _csv_records(file: str) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in _lines(file)), strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise errors.DataError(f"{file}:{begin}: {error}; is a quotation mark left open there?") from error
        if record is None:
            return
        yield f"{file}:{begin}", record


def _table(file: str, records: Iterator[tuple[str, list[str]]], columns: Sequence[str]) -> Iterator[Row]:
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
        yield Row(place, {name: fields[name] for name in columns})


def _parquet(file: str, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    with _opened(file) as handle:
        try:
            table = parquet.ParquetFile(handle)
        except pyarrow.ArrowInvalid as error:
            raise errors.DataError(f"{file} is not a Parquet file ({error}); write it again") from error
        _require(columns, table.schema_arrow.names, place=file)
        number = 0
        for batch in table.iter_batches(batch_size=1024, columns=list(columns)):
            for record in batch.to_pylist():
                number += 1
                place = f"{file}:{number}"
                yield Row(place, {name: _as_text(record[name], name=name, place=place) for name in columns})


def _require(columns: Sequence[str], known: Sequence[str] | dict[str, Any], *, place: str) -> None:
    for name in columns:
        if name not in known:
            raise errors.DataError(f"{place}: {errors.unknown_name('column', name, known)}")


def _as_text(value: Any, *, name: str, place: str) -> str:
    if isinstance(value, str):
        _check_whole(value, name=name, place=place)
        return value
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise errors.DataError(f"{place}: column {name!r} holds a {type(value).__name__}; use text or numbers")


def _check_whole(value: str, *, name: str, place: str) -> None:
    """Refuses what JSON can spell but UTF-8 cannot."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.DataError(
            f"{place}: column {name!r} holds half a surrogate pair at position {error.start + 1}; "
            "write whole characters"
        ) from error
