"""The rows of a job: counted and cut into shards, and read again shard by shard."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from t5core import errors, storage
from t5core.config.data_schema import TaskConfig
from t5core.config.infer_edges import InferJob, RowPosition, ShardRequest
from t5core.config.infer_schema import InferConfig
from t5core.data import corpus, documents, files, worker
from t5core.data.records import Raw, RowReader, UnusableRow
from t5core.data.sources import VALIDATION, TaskSource
from t5core.inference.examples import Example, TextRow, Tokeniser, fitted, name_clash, parsed_templates

_LOOKED_AT = 100  # rows of a file whose columns each row names itself
_IN_WORKER = "t5core.data.seqio_inference"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """Rows [start, stop), where the first of them begins, and what they hold (16 hex digits)."""

    start: int
    stop: int
    begin: RowPosition
    content: str


def check(config: InferConfig) -> list[str]:
    """Returns the files of the source, after a look at the first of them.

    Raises:
      ConfigError: a template is malformed, or names a column that there is not.
      DataError: a pattern matches nothing, or a column has a name of the results.
    """
    source, named = config.source, _named_columns(config)
    if source.builtin is not None:
        _check_columns(named, tuple(_builtin(source.builtin)[0].columns), place=f"builtin {source.builtin}")
    if not source.files:
        return []
    found = list(files.matching(source.files, task="infer"))
    _check_columns(named, _columns_of_first(found), place=found[0])
    return found


def _named_columns(config: InferConfig) -> dict[str, str]:
    """Returns the columns that the templates name, each with the setting that does."""
    if config.source.task is not None:
        return {}
    parsed = parsed_templates(config.source)
    return {p.column: f"source.{side}" for side, pieces in parsed.items() for p in pieces if p.column is not None}


def _columns_of_first(names: Sequence[str]) -> tuple[str, ...]:
    reader = RowReader(names[:1])
    columns = reader.columns(0)
    if columns is not None:
        return columns
    seen: dict[str, None] = {}
    for raw in itertools.islice(reader.raw(RowPosition(), values=False), _LOOKED_AT):
        try:
            seen.update(dict.fromkeys(reader.fields(raw)))
        except UnusableRow:
            continue
    return tuple(seen)


def _check_columns(named: dict[str, str], columns: Sequence[str], *, place: str) -> None:
    if not columns:
        return  # no row that could be read: the plan counts them
    for name, setting in named.items():
        if name not in columns:
            raise errors.ConfigError(f"{setting}: {errors.unknown_name(f'column of {place}', name, columns)}")


def _check_head(named: dict[str, str], columns: Sequence[str] | None, *, place: str) -> None:
    """Refuses a file whose every row would be unusable; None: each row names its own fields, and is told by itself."""
    if columns is None:
        return
    _check_columns(named, columns, place=place)
    clash = name_clash(columns)
    if clash:
        raise errors.DataError(f"{place}: {clash}")


@functools.lru_cache(maxsize=1)
def _builtin(name: str) -> tuple[documents.Document, ...]:
    """Returns the documents of a corpus that are held out by default, in the order of validation."""
    objective = "supervised" if name == "python_docstrings" else "lm"
    settings = {"name": name, "builtin": name, "objective": objective, "max_validation_examples": None}
    return tuple(TaskSource(TaskConfig.model_validate(settings)).documents(VALIDATION))


def cuts(job: InferJob) -> Iterator[Cut]:
    """Yields the shards of a job, `shard_rows` rows each but for the last.

    Raises:
      DataError: a file cannot be read, or lacks a column that every row of it should have.
    """
    source = job.config.source
    if source.files:
        yield from _cuts_of_files(job)
        return
    if source.builtin is not None:
        content, rows = corpus.digest(), len(_builtin(source.builtin))
    else:
        found: dict[str, Any] = worker.call(f"{_IN_WORKER}:describe", _task(job), job.trained.vocabulary)
        content, rows = found["content"], found["rows"]
    rows = min(rows, source.max_rows or rows)
    for start in range(0, rows, job.config.shard_rows):
        stop = min(start + job.config.shard_rows, rows)
        yield Cut(start=start, stop=stop, begin=RowPosition(), content=storage.fingerprint([content, start, stop]))


def _cuts_of_files(job: InferJob) -> Iterator[Cut]:
    reader, named = RowReader(job.files), _named_columns(job.config)
    rows = itertools.islice(reader.raw(RowPosition(), values=False), job.config.source.max_rows)
    start, file = 0, -1
    while chunk := next_chunk(rows, job.config.shard_rows):
        digest, stop, begin = _RowsDigest(job.files), start, None
        for raw in chunk:
            if raw.begin.file != file:
                file = raw.begin.file
                _check_head(named, reader.columns(file), place=job.files[file])
            begin = begin or raw.begin
            digest.add(raw)
            stop += 1
        assert begin is not None, "a chunk has rows"
        yield Cut(start=start, stop=stop, begin=begin, content=digest.value)
        start = stop


def next_chunk(rows: Iterator[Raw], size: int) -> Iterator[Raw] | None:
    """Returns an iterator over the next `size` rows, not one of which is held; None: there are no more."""
    first = next(rows, None)
    return None if first is None else itertools.chain([first], itertools.islice(rows, size - 1))


class _RowsDigest:
    """Names rows by their bytes and by where they stand."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._file = names, -1
        self._content = hashlib.sha256()

    def add(self, raw: Raw) -> None:
        if raw.begin.file != self._file:
            self._file = raw.begin.file
            self._content.update(f"{self._names[self._file]}:{raw.begin.line}\n".encode())
        self._content.update(raw.content)

    @property
    def value(self) -> str:
        return self._content.hexdigest()[:16]


def examples(request: ShardRequest) -> Iterator[Example]:
    """Yields the rows of a shard, in order.

    Raises:
      DataError: the rows are no longer what they were when the shard was planned.
    """
    source = request.job.config.source
    if source.task is not None:
        yield from _of_task(request)
        return
    rows = _of_files(request) if source.files else _of_corpus(request)
    yield from Tokeniser(source, request.job.trained).examples(rows)


def _of_files(request: ShardRequest) -> Iterator[TextRow]:
    names = request.job.files
    reader, digest = RowReader(names), _RowsDigest(names)
    rows = itertools.islice(reader.raw(request.begin), request.stop - request.start)
    for number, raw in enumerate(rows, start=request.start):
        digest.add(raw)
        try:
            fields, flaw = reader.fields(raw), ""
        except UnusableRow as reason:
            fields, flaw = {}, str(reason)
        yield TextRow(number=number, place=raw.place, fields=fields, flaw=flaw)
    if digest.value != request.content:
        raise errors.DataError(
            f"rows {request.start} to {request.stop} of {names[request.begin.file]} have changed since they were "
            "counted; run again"
        )


def _of_corpus(request: ShardRequest) -> Iterator[TextRow]:
    assert request.job.config.source.builtin is not None
    documents = _builtin(request.job.config.source.builtin)[request.start : request.stop]
    for number, document in enumerate(documents, start=request.start):
        yield TextRow(number=number, place=document.place, fields=document.columns)


def _task(job: InferJob) -> tuple[str, str, str, dict[str, int]]:
    source = job.config.source
    assert source.task is not None
    assert source.module is not None, "the configuration checks that"
    return source.task, source.module, source.split, job.trained.feature_lengths


def _of_task(request: ShardRequest) -> Iterator[Example]:
    job = request.job
    found = worker.call(f"{_IN_WORKER}:read", _task(job), request.start, request.stop)
    wanted = ("inputs",) if job.config.mode == "predict" else ("inputs", "targets")
    for number, row in enumerate(found, start=request.start):
        example = Example(
            number=number,
            place=f"{job.config.source.task}/{job.config.source.split}:{number}",
            fields=row["fields"],
            tokens={side: ids for side, ids in row["tokens"].items() if side in wanted},
            flaw=name_clash(row["fields"]),
        )
        yield example if example.flaw else fitted(example, lengths=job.trained.feature_lengths)
