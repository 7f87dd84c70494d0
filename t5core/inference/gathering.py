"""The shards of a job as one file of JSON lines and one of Parquet, in the order of the rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from t5core import errors, progress, storage
from t5core.config.infer_edges import InferJob, ShardRef
from t5core.inference.columns import Columns, Kinds
from t5core.inference.shards import FOLDER

LINES_FILE, PARQUET_FILE = "predictions.jsonl", "predictions.parquet"
_ROWS_AT_A_TIME = 4096


def write(job: InferJob, shards: Sequence[ShardRef]) -> None:
    """Writes both files, each of which appears whole, and deletes shards that are none of these.

    Raises:
      IntegrityError: a shard is gone or changed, or rows are missing between two.
    """
    _check_complete(shards)
    kinds = Kinds(field for shard in shards for field in shard.fields)
    columns = Columns(kinds.listed())
    from pyarrow import parquet

    with (
        storage.writing(f"{job.uri}/{LINES_FILE}") as lines,
        storage.writing(f"{job.uri}/{PARQUET_FILE}") as table,
        parquet.ParquetWriter(table, columns.schema, compression="zstd") as writer,
        progress.stage("gather", total=len(shards), unit="shards") as bar,
    ):
        for shard in shards:
            content = _content(shard)
            lines.write(content)
            rows = (json.loads(line) for line in content.split(b"\n") if line)
            while chunk := list(itertools.islice(rows, _ROWS_AT_A_TIME)):
                writer.write_table(columns.table(chunk))
            bar.advance()
    _delete_others(job, shards)


def first_rows(shards: Sequence[ShardRef], count: int, *, usable: bool) -> Iterator[dict[str, Any]]:
    """Yields up to `count` rows in order: those with a result, or those without."""
    wanted = (s for s in shards if (s.stop - s.start > s.bad if usable else s.bad))
    rows = (json.loads(line) for shard in wanted for line in _content(shard).split(b"\n") if line)
    yield from itertools.islice((row for row in rows if ("error" not in row) is usable), count)


def _check_complete(shards: Sequence[ShardRef]) -> None:
    expected = 0
    for shard in shards:
        if shard.start != expected:
            raise errors.IntegrityError(f"rows {expected} to {shard.start} are in no shard; run again")
        expected = shard.stop


def _content(shard: ShardRef) -> bytes:
    try:
        content = storage.path(shard.uri).read_bytes()
    except FileNotFoundError as error:
        raise errors.IntegrityError(f"{shard.uri} is gone; run again") from error
    if storage.digest(content) != shard.digest:
        raise errors.IntegrityError(f"{shard.uri} has changed since it was written; run again")
    return content


def _delete_others(job: InferJob, shards: Sequence[ShardRef]) -> None:
    """Deletes the shards of other settings or other rows, which no later run is likely to ask for."""
    kept = {storage.path(shard.uri).name.removesuffix(".jsonl") for shard in shards}
    for entry in sorted(storage.path(f"{job.uri}/{FOLDER}").iterdir(), key=str):
        if entry.name.rpartition(".")[0] not in kept:
            entry.unlink()
