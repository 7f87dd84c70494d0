"""`report.html` of a batch prediction: what came of the rows, and what decided it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from t5core import counting
from t5core.config import yaml_text
from t5core.config.infer_edges import InferJob, ShardRef
from t5core.report import figures, rendering, tables
from t5core.report.lineage import Link
from t5core.report.summary import what_helps
from t5core.report.tables import Table

_MOST_SHARDS = 100
_UNSHOWN = ("row", "predictions", "inputs_truncated")


def render(
    job: InferJob,
    account: Mapping[str, Any],
    *,
    shards: Sequence[ShardRef] = (),
    examples: Sequence[Mapping[str, Any]] = (),
    unusable: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Returns the page.

    Args:
      job: what was asked for.
      account: the content of summary.json.
      shards: that are done.
      examples: some rows with a result.
      unusable: some rows without.
    """
    context = {
        "account": account,
        "place": job.uri,
        "help": what_helps(account["failure"], kept="shards that are done are reused") if account["failure"] else "",
        "lead": _lead(job, shards),
        "cards": _cards(shards),
        "examples": [_shown(row) for row in examples],
        "unusable": _unusable(unusable),
        "lineage": _lineage(job, shards),
        "shards": _shards(shards),
        "settings": yaml_text.dump(job.config.model_dump(mode="json")),
    }
    return rendering.render("inference.html", context)


def _lead(job: InferJob, shards: Sequence[ShardRef]) -> str:
    fresh = [shard for shard in shards if not shard.reused]
    what = "Predictions" if job.config.mode == "predict" else "Scores"
    cost = f"{figures.duration(sum(shard.seconds for shard in fresh))} for {counting.count(len(fresh), 'shard')}"
    return f"{what} by {job.trained.checkpoint.uri} · {cost}, {len(shards) - len(fresh)} reused"


def _cards(shards: Sequence[ShardRef]) -> list[tuple[str, str, str]]:
    rows, bad = sum(s.stop - s.start for s in shards), sum(s.bad for s in shards)
    cards = [
        ("Rows", f"{rows:,}", f"{rows - bad:,} with a result"),
        ("Cannot be used", f"{bad:,}", "each with its reason in the results"),
        ("Inputs cut", f"{sum(s.cut for s in shards):,}", "longer than feature_lengths.inputs"),
    ]
    unended = sum(s.unended for s in shards)
    return [*cards, ("Met the length limit", f"{unended:,}", "predictions without an end")]


def _shown(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in row.items()
        if name not in _UNSHOWN
    ]


def _unusable(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = tuple((tables.text(row["place"]), tables.text(row["error"])) for row in rows)
    return Table(caption="Rows that cannot be used", columns=("place", "why"), rows=cells)


def _shards(shards: Sequence[ShardRef]) -> Table:
    rows = tuple(
        (
            tables.text(f"{shard.start:,} to {shard.stop:,}"),
            tables.number(shard.bad),
            tables.cost(shard.seconds, reused=shard.reused),
            tables.text(shard.reason),
            tables.code(shard.digest),
        )
        for shard in shards[:_MOST_SHARDS]
    )
    more = f", the first {_MOST_SHARDS} of {len(shards):,}" if len(shards) > _MOST_SHARDS else ""
    columns = ("rows", "unusable", "time", "why", "digest")
    return Table(caption=f"Shards{more}", columns=columns, rows=rows)


def _lineage(job: InferJob, shards: Sequence[ShardRef]) -> list[Link]:
    """Returns where the results come from, from the files down to what made them."""
    trained, source = job.trained, job.config.source
    checkpoint = trained.checkpoint
    links = [
        Link(what="results", which=f"{job.uri}/predictions.jsonl", remark="the same rows in predictions.parquet"),
        Link(what=f"checkpoint of step {checkpoint.step:,}", which=checkpoint.uri, fingerprint=checkpoint.digest),
        Link(what="vocabulary", which=trained.vocabulary.uri or "bytes", fingerprint=trained.vocabulary.fingerprint),
    ]
    which = ", ".join(source.files) or source.builtin or f"SeqIO task {source.task}, {source.split}"
    files = f"{counting.count(len(job.files), 'file')}" if job.files else ""
    links.append(Link(what="rows", which=which, remark=files))
    if shards:
        made = shards[0].parts
        links += [Link(what=what, which="", fingerprint=made[what]) for what in ("settings", "code")]
        links.append(Link(what="libraries", which=made["libraries"]))
    return links
