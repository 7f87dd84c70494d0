"""One zarr3 array of rows through tensorstore: how it is laid out, opened, and how its errors read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorstore

from t5core import errors, storage
from t5core.data.manifest import FeatureSpec

_OPEN_ENDED_ROWS = 1 << 40  # the height of an array while it is being written
_TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "INTERNAL", "UNKNOWN")
_FORBIDDEN = ("PERMISSION_DENIED", "UNAUTHENTICATED")


def start(uri: str, spec: FeatureSpec, *, chunk_rows: int, rows_per_shard: int) -> Any:
    """Returns a tensorstore array to write rows to, without an end; there is no array at `uri` before `finish`.

    Chunks are raw: packed tokens hardly compress, and raw chunks of a few rows are what makes reading a row at random
    cheap. Chunks of zeros are stored like any other, so that a chunk that is missing is damage. Nothing that lies at
    `uri` is removed: another writer may just have finished the same array.
    """
    array = {
        "driver": "zarr3",
        "kvstore": _kvstore(uri),
        "metadata": _metadata(_OPEN_ENDED_ROWS, spec, chunk_rows=chunk_rows, rows_per_shard=rows_per_shard),
        "store_data_equal_to_fill_value": True,
    }
    with write_errors(uri):
        return tensorstore.open(array, open=True, assume_metadata=True, write=True).result()


def finish(uri: str, spec: FeatureSpec, *, rows: int, chunk_rows: int, rows_per_shard: int) -> None:
    """Writes the metadata of an array of `rows` rows whose chunks are there."""
    metadata = _metadata(rows, spec, chunk_rows=chunk_rows, rows_per_shard=rows_per_shard)
    storage.write_json(f"{uri}/zarr.json", metadata)


def _metadata(rows: int, spec: FeatureSpec, *, chunk_rows: int, rows_per_shard: int) -> dict[str, Any]:
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    checked = [little_endian, {"name": "crc32c"}]
    sharding = {
        "chunk_shape": [chunk_rows, spec.length],
        "codecs": checked,
        "index_codecs": checked,
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, spec.length],
        "data_type": spec.dtype,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows_per_shard, spec.length]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def open_for_reading(uri: str, *, context: tensorstore.Context) -> Any:
    """Returns the tensorstore array at `uri`; reading a chunk that is missing is an error.

    Raises:
      IntegrityError: there is no array, or its metadata is damaged.
    """
    spec = {
        "driver": "zarr3",
        "kvstore": _kvstore(uri),
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,  # a committed dataset does not change
    }
    with read_errors(uri):
        return tensorstore.open(spec, open=True, read=True, context=context).result()


def _kvstore(uri: str) -> dict[str, str]:
    if not storage.is_remote(uri):
        return {"driver": "file", "path": os.path.abspath(uri) + "/"}
    scheme, _, rest = uri.partition("://")
    if scheme != "gs":
        raise errors.ConfigError(
            f"{uri}: datasets lie on a disk or on gs://, not on {scheme}://; choose another run.root"
        )
    bucket, _, path = rest.partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": path.rstrip("/") + "/"}


@contextlib.contextmanager
def write_errors(uri: str) -> Iterator[None]:
    """Turns tensorstore's errors into a RecoverableError, or a RunDirectoryError when trying again will not help."""
    try:
        yield
    except ValueError as error:
        detail = _first_line(error)
        if detail.startswith(_TRANSIENT):
            raise errors.RecoverableError(f"writing {uri} failed: {detail}; run again") from error
        message = f"cannot write {uri}: {detail}; free space or choose another run.root"
        raise errors.RunDirectoryError(message) from error


@contextlib.contextmanager
def read_errors(uri: str) -> Iterator[None]:
    """Turns tensorstore's errors into an IntegrityError that names the file, or whatever else they stand for."""
    try:
        yield
    except ValueError as error:
        detail = _first_line(error)
        if detail.startswith(_TRANSIENT):
            raise errors.RecoverableError(f"reading {uri} failed: {detail}; run again") from error
        if detail.startswith(_FORBIDDEN):
            raise errors.RunDirectoryError(f"cannot read {uri}: {detail}; ask for the right to") from error
        raise errors.IntegrityError(f"{uri} is damaged: {detail}; delete the dataset and run again") from error


def _first_line(error: ValueError) -> str:
    return str(error).splitlines()[0].partition(" [tensorstore_spec=")[0].partition(" [source locations=")[0]
