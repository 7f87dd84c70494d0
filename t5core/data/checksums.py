"""Sizes and MD5 checksums of the files of a dataset, taken when it is committed and compared when it is read.

A disk gives sizes for nothing and checksums at the price of reading the file; gs:// lists both. So on a disk a file's
checksum is compared once, before its first use, and on gs:// those of all files when the dataset is opened.

MD5 because it is what gs:// lists. Its CRC-32C would be blind here: a chunk followed by its own CRC-32C leaves the
register in the same state whatever the chunk holds, so all intact shards of one shape have the same CRC-32C.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping

from t5core import errors, storage
from t5core.data.manifest import FileRecord


def records_below(uri: str, *, skip: str) -> dict[str, FileRecord]:
    """Returns size and checksum of every file below `uri` except `skip`, by path below it."""
    if storage.is_remote(uri):
        listed = _listed(uri)
    else:
        listed = {}
        for folder, _, names in os.walk(uri):
            for name in names:
                file = os.path.join(folder, name)
                listed[os.path.relpath(file, uri)] = FileRecord(size=os.path.getsize(file), md5=_checksum(file))
    return {file: record for file, record in sorted(listed.items()) if file != skip}


def check_sizes(uri: str, files: Mapping[str, FileRecord]) -> None:
    """Compares the size of every one of `files`, and on an object store its checksum.

    Raises:
      IntegrityError: a file is missing or differs.
    """
    if storage.is_remote(uri):
        listed = _listed(uri)
        for file, expected in files.items():
            _compare(f"{uri}/{file}", expected, listed.get(file))
        return
    for file, expected in files.items():
        try:
            size = os.stat(f"{uri}/{file}").st_size
        except (FileNotFoundError, NotADirectoryError):
            _compare(f"{uri}/{file}", expected, None)
        else:
            _compare(f"{uri}/{file}", expected, expected.model_copy(update={"size": size}))


class Checker:
    """Compares checksums of a dataset's files, each one once."""

    def __init__(self, uri: str, files: Mapping[str, FileRecord]) -> None:
        self._uri = uri
        self._files = files
        self._seen: set[str] = set()

    def check(self, file: str) -> None:
        """Compares the checksum of `file`, a path below the dataset, unless that was done before.

        Raises:
          IntegrityError: the file is missing, differs, or is none of this dataset's.
        """
        if file in self._seen:
            return
        path = f"{self._uri}/{file}"
        expected = self._files.get(file)
        if expected is None:
            raise errors.IntegrityError(f"{path} is not in the manifest; delete the dataset and run again")
        if not storage.is_remote(self._uri):  # there, opening the dataset compared it
            try:
                found = FileRecord(size=os.path.getsize(path), md5=_checksum(path))
            except FileNotFoundError:
                found = None
            _compare(path, expected, found)
        self._seen.add(file)


def _compare(path: str, expected: FileRecord, found: FileRecord | None) -> None:
    if found == expected:
        return
    if found is None:
        detail = "is missing"
    elif found.size != expected.size:
        detail = f"has {found.size} bytes instead of {expected.size}"
    else:
        detail = f"has checksum {found.md5} instead of {expected.md5}"
    raise errors.IntegrityError(f"{path} {detail}; delete the dataset and run again")


def _checksum(path: str) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _listed(uri: str) -> dict[str, FileRecord]:
    """Returns what the object store says about every object below `uri`."""
    import fsspec

    filesystem, prefix = fsspec.core.url_to_fs(uri)
    filesystem.invalidate_cache(prefix)
    found = filesystem.find(prefix, detail=True)
    return {
        name[len(prefix) :].lstrip("/"): FileRecord(size=int(info["size"]), md5=base64.b64decode(info["md5Hash"]).hex())
        for name, info in found.items()
    }
