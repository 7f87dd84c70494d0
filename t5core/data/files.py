"""Plain files to read rows from, on a disk or on gs://: found by patterns, told by their content, opened."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from t5core import errors, storage

BLOCK = 1 << 20
SUFFIXES = (".txt", ".jsonl", ".tsv", ".csv", ".parquet")


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
    unread = next((file for file in files if suffix(file) not in SUFFIXES), None)
    if unread is not None:
        raise errors.DataError(
            f"{unread}: cannot read {suffix(unread) or 'files without a suffix'}; use {', '.join(SUFFIXES)}"
        )
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


def suffix(file: str) -> str:
    """Returns the ending of a file's name, which says how it is read."""
    return os.path.splitext(file)[1].lower()


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
