"""The list of a checkpoint's files with their sizes and checksums, written into it just before it is committed.

Most damage to a checkpoint would restore without a word: a flipped bit in the data, or a lost file that happens not to
be read. Against the list each of them shows, and shows by the name of the file.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from etils import epath

from t5core import errors, storage

FILE = "seal.json"
COMMIT_FILE = "commit_success.txt"
METADATA_FILE = "_CHECKPOINT_METADATA"
_WRITTEN_LATER = (COMMIT_FILE, METADATA_FILE)  # Orbax puts the time of the commit into both
_COMMIT_TEXT = "Checkpoint commit was successful"
_REMOTE_LIMIT = 1 << 20  # bytes; what is larger would have to be fetched back only to be summed
_BLOCK = 1 << 23


def write(directory: epath.Path) -> None:
    """Lists every file under `directory` in its seal."""
    files = {name: _entry(path) for name, path in _walk(directory) if name not in (FILE, *_WRITTEN_LATER)}
    storage.write_json(directory / FILE, {"files": files, "crc32": _own_crc32(files)})


def check(directory: epath.Path, *, largest: int | None = None) -> bool:
    """Returns whether the content of every file was compared; of large files on an object store only the size is.

    Args:
      directory: of the checkpoint.
      largest: bytes up to which the content of a file is compared, and of larger ones the size; None compares all.

    Raises:
      IntegrityError: a file that is missing or differs from the one that was sealed; the message names it.
    """
    _check_commit(directory)
    files = _read(directory)
    for name, sealed in files.items():
        _check_file(directory / name, sealed, largest=largest)
    return largest is None and all(sealed["crc32"] is not None for sealed in files.values())


def _walk(directory: epath.Path) -> list[tuple[str, epath.Path]]:
    found = []
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            found.extend((f"{path.name}/{name}", inner) for name, inner in _walk(path))
        else:
            found.append((path.name, path))
    return found


def _entry(path: epath.Path) -> dict[str, Any]:
    size = path.stat().length
    too_far = storage.is_remote(str(path)) and size > _REMOTE_LIMIT
    return {"bytes": size, "crc32": None if too_far else _crc32(path)}


def _crc32(path: epath.Path) -> str:
    value = 0
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def _own_crc32(files: dict[str, dict[str, Any]]) -> str:
    return f"{zlib.crc32(json.dumps(files, sort_keys=True).encode()):08x}"


def _read(directory: epath.Path) -> dict[str, dict[str, Any]]:
    try:
        content = storage.read_json(directory / FILE)
    except FileNotFoundError as error:
        raise errors.IntegrityError(f"{directory / FILE} is missing") from error
    except UnicodeDecodeError as error:
        raise errors.IntegrityError(f"{directory / FILE} is not text") from error
    if not isinstance(content, dict) or _own_crc32(content.get("files", {})) != content.get("crc32"):
        raise errors.IntegrityError(f"{directory / FILE} differs from what was written (checksum)")
    return content["files"]


def _check_file(path: epath.Path, sealed: dict[str, Any], *, largest: int | None) -> None:
    try:
        size = path.stat().length
    except FileNotFoundError as error:
        raise errors.IntegrityError(f"{path} is missing") from error
    if size != sealed["bytes"]:
        raise errors.IntegrityError(f"{path} has {size} bytes instead of {sealed['bytes']}")
    is_compared = sealed["crc32"] is not None and (largest is None or size <= largest)
    if is_compared and _crc32(path) != sealed["crc32"]:
        raise errors.IntegrityError(f"{path} differs from what was written (checksum)")


def _check_commit(directory: epath.Path) -> None:
    """Checks as much as can be known of the two files that are finished after the seal."""
    for name in _WRITTEN_LATER:
        if not (directory / name).exists():
            raise errors.IntegrityError(f"{directory / name} is missing")
    if not (directory / COMMIT_FILE).read_bytes().startswith(_COMMIT_TEXT.encode()):
        raise errors.IntegrityError(f"{directory / COMMIT_FILE} differs from what was written")
    try:
        items = storage.read_json(directory / METADATA_FILE)["item_handlers"]
    except (UnicodeDecodeError, KeyError, TypeError) as error:
        raise errors.IntegrityError(f"{directory / METADATA_FILE} differs from what was written") from error
    if set(items) != {"state", "record"}:
        raise errors.IntegrityError(f"{directory / METADATA_FILE} names the items {sorted(items)}")
