"""Shards: worked through as a whole, committed with all that decided them, and not done again while that stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from t5core import errors, fingerprints, progress, records, storage
from t5core.config.infer_edges import ShardRef, ShardRequest
from t5core.inference import sources
from t5core.inference.columns import Kinds
from t5core.metrics import json_numbers

FOLDER = "shards"
_DECIDING_MODULES = (
    "t5core.build",
    "t5core.data.converters",
    "t5core.data.records",
    "t5core.data.templates",
    "t5core.data.vocabulary",
    "t5core.evaluation.decoded",
    "t5core.inference.examples",
    "t5core.inference.predictor",
    "t5core.inference.shards",
    "t5core.inference.sources",
    "t5core.models.attention",
    "t5core.models.base",
    "t5core.models.beam_search",
    "t5core.models.blocks",
    "t5core.models.decoder_only",
    "t5core.models.decoding",
    "t5core.models.encoder_decoder",
    "t5core.models.layers",
    "t5core.models.networks",
    "t5core.models.sampling",
    "t5core.models.transformer",
)
_DECIDING_MODULES_OF_TASKS = ("t5core.data.seqio_inference", "t5core.data.seqio_registered")


def parts(request: ShardRequest) -> dict[str, str]:
    """Returns fingerprints of everything that decides the lines of a shard, by what they are of.

    How many rows are decoded at a time, and on which devices, is none of it.
    """
    config, trained = request.job.config, request.job.trained
    settings = {"mode": config.mode, "lengths": trained.feature_lengths, "decode": config.decode.model_dump()}
    templates = {"inputs": config.source.inputs, "targets": config.source.targets}
    code = _DECIDING_MODULES_OF_TASKS if config.source.task is not None else ()
    return {
        "checkpoint": trained.checkpoint.digest,
        "model": storage.fingerprint(trained.model.model_dump(mode="json")),
        "vocabulary": trained.vocabulary.fingerprint,
        "rows": request.content,
        "settings": storage.fingerprint({**settings, **templates}),
        "code": fingerprints.code_fingerprint(*_DECIDING_MODULES, *code),
        "libraries": fingerprints.library_versions("jax", "jaxlib", "sentencepiece"),
    }


def work_through(request: ShardRequest) -> ShardRef:
    """Returns the shard, worked through now unless the same one is committed.

    Raises:
      DataError: more rows than `max_bad_rows` are unusable, or the rows have changed since they were counted.
    """
    wanted = parts(request)
    folder, span = f"{request.job.uri}/{FOLDER}", f"{request.start:09d}-{request.stop:09d}"
    uri = f"{folder}/{span}-{storage.fingerprint(wanted)}.jsonl"
    name = f"rows {request.start:,} to {request.stop:,}"
    found, reason = _committed(uri, folder=folder, span=span, wanted=wanted)
    if found is not None:
        progress.say(f"{name}: reused ({reason})")
        return found.model_copy(update={"reused": True, "reason": reason})
    began = time.monotonic()
    tally = _Tally()
    content = "".join(tally.lines(request, name)).encode("utf-8")
    storage.write_bytes(uri, content)
    shard = ShardRef(
        uri=uri,
        start=request.start,
        stop=request.stop,
        parts=wanted,
        digest=storage.digest(content),
        fields=tally.kinds.listed(),
        bad=tally.bad,
        cut=tally.cut,
        unended=tally.unended,
        first_error=tally.first_error,
        seconds=time.monotonic() - began,
        reused=False,
        reason=reason,
    )
    records.write(_record_of(uri), shard)  # last: from here on the shard counts
    bad = f", {shard.bad} unusable" if shard.bad else ""
    progress.say(f"{name}: done in {shard.seconds:.1f} s ({reason}{bad})")
    return shard


class _Tally:
    """Counts what becomes of the rows while their lines are made."""

    def __init__(self) -> None:
        self.kinds = Kinds()
        self.bad = self.cut = self.unended = 0
        self.first_error = ""

    def lines(self, request: ShardRequest, name: str) -> Iterator[str]:
        """Yields the line of each row: its number and place, its fields, and what came of it."""
        from t5core.inference import predictor

        limit = request.job.config.max_bad_rows
        results = predictor.predictor_of(request.job).results(sources.examples(request))
        with progress.stage(name, total=request.stop - request.start, unit="rows") as bar:
            for example, result in results:
                self._count(example.place, result)
                if limit is not None and self.bad > limit:
                    raise errors.DataError(
                        f"more rows are unusable than max_bad_rows={limit} allows: {self.first_error}; mend them, or "
                        f"raise it"
                    )
                whence = {"row": example.number, "place": example.place}
                row = json_numbers.encode({**whence, **example.fields, **whence, **result})
                self.kinds.add(row)
                yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
                bar.advance()

    def _count(self, place: str, result: dict[str, object]) -> None:
        if "error" in result:
            self.bad += 1
            self.first_error = self.first_error or f"{place}: {result['error']}"
            return
        self.cut += bool(result["inputs_truncated"])
        self.unended += result.get("reached_eos") is False


def _record_of(uri: str) -> str:
    return f"{uri.removesuffix('.jsonl')}.json"


def _committed(uri: str, *, folder: str, span: str, wanted: dict[str, str]) -> tuple[ShardRef | None, str]:
    """Returns the shard at `uri` with the reason to take it, or None with the reason why it is made."""
    try:
        found = records.read(_record_of(uri), ShardRef)
    except errors.IntegrityError:
        return None, "its record is damaged"
    if found is None:
        return None, _why_not(folder, span, wanted)
    try:
        content = storage.path(uri).read_bytes()
    except FileNotFoundError:
        return None, "its lines are gone"
    if storage.digest(content) != found.digest:
        return None, "its lines were changed"
    return found, "same checkpoint, rows and settings"


def _read(record: str) -> ShardRef | None:
    try:
        return records.read(record, ShardRef)
    except errors.IntegrityError:
        return None  # written by another version, or damaged: the shard is made again


def _why_not(folder: str, span: str, wanted: dict[str, str]) -> str:
    """Compares `wanted` with earlier shards of the same rows, the one that shares most of it."""
    place = storage.path(folder)
    names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    earlier = [_read(f"{folder}/{name}") for name in names if name.startswith(f"{span}-") and name.endswith(".json")]
    changes = [[key for key in wanted if shard.parts.get(key) != wanted[key]] for shard in earlier if shard]
    if changes:
        return f"{' and '.join(min(changes, key=len))} changed"
    begin, _, end = span.partition("-")
    before = max((name.split("-")[1] for name in names if name.startswith(f"{begin}-")), default=None)
    if before is None:
        return "not done yet"
    return f"it has {'more' if end > before else 'fewer'} rows than before"
