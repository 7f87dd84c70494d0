"""Files, local or gs://: the few operations that everything else is built from.

Every write is atomic: a reader sees the old bytes or the new ones, never a part. A request to an object store that
moves no byte for T5FLOW_STORAGE_STALL_SECONDS (60) is broken off and made again, as one is that the store refuses for
the moment; without that a stalled connection would hold up a run for ever.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

# Without it etils sends every gs:// path through TensorFlow as soon as that is installed.
os.environ.setdefault("EPATH_USE_TF", "0")

import fsspec.config
from etils import epath

from t5core import errors, outages

_STALL_SECONDS = int(os.environ.get("T5FLOW_STORAGE_STALL_SECONDS", "60"))
# tensorstore reads these at its first request; it tries again by itself.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(_STALL_SECONDS))
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")

# gcsfs remembers listings for ever, and would never see what another process writes.
for _protocol in ("gs", "gcs"):
    fsspec.config.conf.setdefault(_protocol, {})["use_listings_cache"] = False


def path(uri: str | os.PathLike[str]) -> epath.Path:
    """Returns `uri` as a path object; relative local paths stay relative."""
    if is_remote(str(uri)):
        _break_off_stalled_requests()
    return epath.Path(uri)


@functools.cache
def _break_off_stalled_requests() -> None:
    """Sets what gcsfs waits for: it tries again after a stall, but neither after its own limit for a whole request."""
    import aiohttp

    patience = aiohttp.ClientTimeout(total=None, sock_connect=_STALL_SECONDS, sock_read=_STALL_SECONDS)
    for protocol in ("gs", "gcs"):
        fsspec.config.conf[protocol]["requests_timeout"] = patience


def is_remote(uri: str) -> bool:
    """Tells whether `uri` names an object store rather than this machine's disk."""
    return "://" in str(uri)


def near(uri: str) -> str:
    """Returns `uri` as a person at this directory writes it: from there where it lies below."""
    below = not is_remote(uri) and os.path.abspath(uri).startswith(f"{os.getcwd().rstrip('/')}/")
    return os.path.relpath(uri) if below else uri


def modified(uri: str | os.PathLike[str]) -> int | None:
    """Returns when `uri` was written last, in whole seconds of the epoch; None when it does not exist."""
    try:
        return path(uri).stat().mtime
    except FileNotFoundError:
        return None


def write_bytes(uri: str | os.PathLike[str], content: bytes) -> None:
    """Writes `content` to `uri` atomically, making the folders above it.

    Raises:
      RunDirectoryError: no right to write there, or no space.
      RecoverableError: the storage was out of reach.
    """
    target = path(uri)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_remote(str(uri)):
            target.write_bytes(content)  # an object store's put is atomic as it is
            return
        scratch = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        with open(scratch, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(scratch, target)
    except OSError as error:
        raise write_refused(uri, error) from error


def write_refused(uri: str | os.PathLike[str], error: OSError) -> Exception:
    """Returns the one-line error for a write to `uri` that failed: RunDirectoryError, RecoverableError in an outage."""
    reason = error.strerror or (str(error).strip() or type(error).__name__).splitlines()[0]
    if outages.is_outage(error):
        return errors.RecoverableError(f"cannot write {os.fspath(uri)}: {reason}; run again")
    return errors.RunDirectoryError(f"cannot write {os.fspath(uri)}: {reason}; free space or choose another run.root")


@contextlib.contextmanager
def writing(uri: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a file to write any amount to; it appears at `uri` whole when the block ends, and not at all if it fails.

    Raises:
      RunDirectoryError: no right to write there, or no space.
    """
    target = path(uri)
    try:
        if is_remote(str(uri)):
            with tempfile.TemporaryDirectory(prefix="t5core-upload-") as folder:
                scratch = path(folder) / target.name
                with open(scratch, "wb") as handle:
                    yield handle
                _upload(str(scratch), str(uri))
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(scratch, "wb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(scratch, target)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise write_refused(uri, error) from error


def _upload(file: str, uri: str) -> None:
    from fsspec.core import url_to_fs

    filesystem, place = url_to_fs(uri)
    filesystem.put_file(file, place)


def write_text(uri: str | os.PathLike[str], content: str) -> None:
    """Writes UTF-8 text to `uri` atomically."""
    write_bytes(uri, content.encode("utf-8"))


def write_json(uri: str | os.PathLike[str], content: Any) -> None:
    """Writes `content` as indented JSON with sorted keys, atomically."""
    write_text(uri, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(uri: str | os.PathLike[str]) -> Any:
    """Returns the JSON at `uri`.

    Raises:
      FileNotFoundError: there is nothing at `uri`.
      IntegrityError: what is there is not JSON.
    """
    content = path(uri).read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise errors.IntegrityError(f"{os.fspath(uri)} is not JSON ({error}); delete it and run again") from error


def digest(content: bytes) -> str:
    """Returns the SHA-256 of `content` in hex."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(content: Any) -> str:
    """Returns 16 hex digits that name `content` (anything JSON can hold), whatever the order of its keys."""
    return digest(json.dumps(content, sort_keys=True, ensure_ascii=False).encode("utf-8"))[:16]
