"""The rows of plain files with all of their fields, from any row on; one that cannot be read says why.

Two steps: `raw` finds where each row begins and ends, which is all that counting takes, and `fields` reads one. Memory
does not grow with a file, only with its longest row.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import datetime
import decimal
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from t5core import errors, storage
from t5core.config.infer_edges import RowPosition
from t5core.data import files, plain_rows

_BOM = b"\xef\xbb\xbf"
_PARQUET_ROWS = 1024
_HALF = re.compile("[\ud800-\udfff]")


class Raw(NamedTuple):
    """A row as it stands: `place` is FILE:LINE, `content` its bytes; a row of Parquet brings its `values` apart."""

    begin: RowPosition
    place: str
    content: bytes
    values: Mapping[str, Any] | str = {}


class UnusableRow(Exception):
    """Why a row cannot be used, in one line."""


class _Rows(Protocol):
    """One file."""

    @property
    def columns(self) -> tuple[str, ...] | None: ...
    def raw(self, begin: RowPosition, *, values: bool) -> Iterator[Raw]: ...
    def fields(self, raw: Raw) -> dict[str, Any]: ...


class RowReader:
    """Reads the rows of several files one after another."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - a reader lives as long as one pass over its files
    def _file(self, number: int) -> _Rows:
        kinds = {".txt": _Text, ".jsonl": _JsonLines, ".tsv": _Tsv, ".csv": _Csv, ".parquet": _Parquet}
        return kinds[files.suffix(self._names[number])](self._names[number])

    def columns(self, number: int) -> tuple[str, ...] | None:
        """Returns the columns that every row of a file has; None: each row names its own.

        Raises:
          DataError: the file has no head that could be read.
        """
        return self._file(number).columns

    def raw(self, begin: RowPosition, *, values: bool = True) -> Iterator[Raw]:
        """Yields the rows from `begin` on.

        Args:
          begin: a position that an earlier pass gave, or the first.
          values: whether rows of Parquet are to be read, and not only counted.

        Raises:
          DataError: a file cannot be read at all.
        """
        for number in range(begin.file, len(self._names)):
            at = begin if number == begin.file else RowPosition(file=number)
            yield from self._file(number).raw(at, values=values)

    def fields(self, raw: Raw) -> dict[str, Any]:
        """Returns the fields of a row: texts, and in JSON and Parquet whatever JSON can hold.

        Dates and decimals of Parquet come as texts, bytes in base64.

        Raises:
          UnusableRow: it cannot be read.
        """
        return self._file(raw.begin.file).fields(raw)


def _lines(file: str, handle: BinaryIO, begin: RowPosition) -> Iterator[Raw]:
    handle.seek(begin.offset)
    offset = begin.offset
    for line, content in enumerate(handle, start=begin.line):
        at = RowPosition(file=begin.file, offset=offset, line=line)
        yield Raw(at, f"{file}:{line}", content)
        offset += len(content)


def _text(content: bytes) -> str:
    """Returns a line as text, without its ending and a byte order mark."""
    try:
        text = content.removeprefix(_BOM).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UnusableRow(f"byte 0x{byte:02x} at position {error.start + 1} is not UTF-8") from error
    if not text.strip():
        raise UnusableRow("a blank line")
    return text


class _Text:
    columns = ("text",)

    def __init__(self, file: str) -> None:
        self._file = file

    def raw(self, begin: RowPosition, *, values: bool) -> Iterator[Raw]:
        del values
        with files.opened(self._file) as handle:
            yield from _lines(self._file, handle, begin)

    def fields(self, raw: Raw) -> dict[str, Any]:
        return {"text": _text(raw.content)}


class _JsonLines(_Text):
    columns = None

    def fields(self, raw: Raw) -> dict[str, Any]:
        text = _text(raw.content)
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise UnusableRow(f"not JSON ({error.msg} at position {error.pos + 1})") from error
        except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
            raise UnusableRow(f"JSON that cannot be read ({error})") from error
        if not isinstance(content, dict):
            raise UnusableRow(f"holds a {type(content).__name__}, not an object of fields")
        if "\\u" in text and _HALF.search(json.dumps(content, ensure_ascii=False)):
            raise UnusableRow("holds half a surrogate pair")
        return content


class _Table:
    """A file whose first row names the columns."""

    def __init__(self, file: str) -> None:
        self._file = file

    def _records(self, handle: BinaryIO, begin: RowPosition) -> Iterator[Raw]:
        raise NotImplementedError

    def _cells(self, content: bytes) -> list[str]:
        raise NotImplementedError

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        with files.opened(self._file) as handle:
            head = next(self._records(handle, RowPosition()), None)
        if head is None:
            return ()
        try:
            names = self._cells(head.content)
        except UnusableRow as reason:
            raise errors.DataError(f"{head.place}: {reason}; mend the line, which names the columns") from reason
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise errors.DataError(f"{head.place}: the column {twice!r} stands twice; rename one")
        return tuple(names)

    def raw(self, begin: RowPosition, *, values: bool) -> Iterator[Raw]:
        del values
        with files.opened(self._file) as handle:
            records = self._records(handle, begin)
            if begin.offset == 0:
                next(records, None)
            yield from records

    def fields(self, raw: Raw) -> dict[str, Any]:
        cells = self._cells(raw.content)
        if len(cells) != len(self.columns):
            raise UnusableRow(f"{len(cells)} fields, but the head names {len(self.columns)}")
        return dict(zip(self.columns, cells, strict=True))


class _Tsv(_Table):
    """Tab-separated values, in which a quotation mark is a character like any other."""

    def _records(self, handle: BinaryIO, begin: RowPosition) -> Iterator[Raw]:
        return _lines(self._file, handle, begin)

    def _cells(self, content: bytes) -> list[str]:
        return _text(content).split("\t")


class _Csv(_Table):
    def _records(self, handle: BinaryIO, begin: RowPosition) -> Iterator[Raw]:
        csv.field_size_limit(plain_rows.LONGEST_FIELD)
        taken: list[Raw] = []

        def texts() -> Iterator[str]:
            for line in _lines(self._file, handle, begin):
                taken.append(line)
                yield _csv_line(line.content)

        reader = csv.reader(texts(), strict=True)
        more = True
        while more:
            with contextlib.suppress(csv.Error):  # `fields` parses the row again, and says why
                more = next(reader, None) is not None
            if taken:
                yield taken[0]._replace(content=b"".join(line.content for line in taken))
                taken.clear()

    def _cells(self, content: bytes) -> list[str]:
        try:
            cells = next(csv.reader(map(_csv_line, _split(content)), strict=True), [])
        except csv.Error as error:
            raise UnusableRow(f"{error}; is a quotation mark left open there?") from error
        if not any(cell.strip() for cell in cells):
            raise UnusableRow("a blank line")
        if any(_HALF.search(cell) for cell in cells):
            raise UnusableRow("bytes that are not UTF-8")
        return cells


def _split(content: bytes) -> list[bytes]:
    """Returns the lines of a row, which end at line feeds and nowhere else."""
    return [line + b"\n" for line in content.removesuffix(b"\n").split(b"\n")]


def _csv_line(content: bytes) -> str:
    return content.removeprefix(_BOM).decode("utf-8", "surrogateescape").rstrip("\r\n") + "\n"


class _Parquet:
    def __init__(self, file: str) -> None:
        self._file = file

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        with files.opened(self._file) as handle, _damage(self._file) as parquet:
            return tuple(parquet.ParquetFile(handle).schema_arrow.names)

    @functools.cached_property
    def _digest(self) -> str:
        return _digest_of(self._file, storage.modified(self._file))

    def raw(self, begin: RowPosition, *, values: bool) -> Iterator[Raw]:
        with files.opened(self._file) as handle, _damage(self._file) as parquet:
            table = parquet.ParquetFile(handle)
            skipped = begin.line - 1
            rows = _values(table, skipped) if values else itertools.repeat({}, table.metadata.num_rows - skipped)
            for line, row in enumerate(rows, start=begin.line):
                at = RowPosition(file=begin.file, line=line)
                yield Raw(at, f"{self._file}:{line}", f"{self._digest}:{line}".encode(), row)

    def fields(self, raw: Raw) -> dict[str, Any]:
        if isinstance(raw.values, str):
            raise UnusableRow(raw.values)
        return {name: _plain(value) for name, value in raw.values.items()}


@functools.lru_cache(maxsize=64)
def _digest_of(file: str, modified: int | None) -> str:
    del modified  # another time is another content
    return files.digest(file)


@contextlib.contextmanager
def _damage(file: str) -> Iterator[Any]:
    """Yields pyarrow's module for Parquet, and turns what it says of a damaged file into one line."""
    import pyarrow
    from pyarrow import parquet

    try:
        yield parquet
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())
        raise errors.DataError(f"{file} is not a Parquet file, or damaged ({reason}); write it again") from error


def _values(table: Any, skipped: int) -> Iterator[Mapping[str, Any] | str]:
    """Yields the rows after the first `skipped`, without reading the groups that lie before them; or why not."""
    number = before = 0
    while number < table.num_row_groups and before + table.metadata.row_group(number).num_rows <= skipped:
        before += table.metadata.row_group(number).num_rows
        number += 1
    groups = list(range(number, table.num_row_groups))
    for batch in table.iter_batches(batch_size=_PARQUET_ROWS, row_groups=groups) if groups else ():
        rest = batch.slice(max(0, skipped - before))
        before += batch.num_rows
        try:
            yield from rest.to_pylist()
        except UnicodeDecodeError:
            yield from (_value(rest.slice(row, 1)) for row in range(rest.num_rows))


def _value(row: Any) -> Mapping[str, Any] | str:
    try:
        return row.to_pylist()[0]
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"


def _plain(value: Any) -> Any:
    """Returns a value of Parquet as JSON can hold it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
