"""The stages of a batch prediction: settle, cut into shards, work through each, gather.

Each is idempotent from the folder of the predictions: a shard that is committed and whose inputs are the same is taken
as it is, whoever starts the workflow again and for whatever reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from t5core import counting, errors, progress, storage
from t5core.config import load, yaml_text
from t5core.config.infer_edges import InferJob, InferSummary, ShardRef, ShardRequest
from t5core.config.infer_schema import InferConfig
from t5core.metrics import json_numbers
from t5core.report.summary import Failure
from t5core.rundir import RunDirectory
from t5core.stages import failure, holding

_MARK = "inference.json"
_SHOWN_ROWS, _SHOWN_ERRORS = 12, 50


def resolve(config: InferConfig, overrides: Sequence[str], *, owner: str | None = None) -> InferJob:
    """Returns the job that `config` with `overrides` describes, its folder claimed and `config.yaml` written.

    Args:
      config: the settings.
      overrides: settings put over them, `section.key=value` each.
      owner: execution that works on the job; None: this process.

    Raises:
      ConfigError: a setting that cannot work.
      CheckpointError: there is no such checkpoint, or it is not of the model.
      DataError: there are no such files.
      RunDirectoryError: the folder is a run's, is in use, or cannot be written.
    """
    from t5core import trained
    from t5core.checkpoints import locating
    from t5core.inference import sources

    config = load.override_config(config, overrides)
    root = config.run.root.rstrip("/") if storage.is_remote(config.run.root) else os.path.abspath(config.run.root)
    config = config.model_copy(update={"run": config.run.model_copy(update={"root": root})})
    checkpoint = locating.locate(config.checkpoint, root=root)
    model = trained.trained_model(
        checkpoint,
        model=config.model,
        vocabulary=config.vocabulary,
        feature_lengths=config.feature_lengths,
    )
    _check_reads_inputs(config, model.model.architecture().family, model.feature_lengths)
    job = InferJob(uri=f"{root}/{config.run.name}", config=config, trained=model, files=sources.check(config))
    _claim(job, owner=owner)
    progress.say(f"infer {config.run.name!r} in {job.uri}")
    progress.say(f"  {config.mode} with {checkpoint.uri} (state {checkpoint.digest[:12]})")
    for override in overrides:
        progress.say(f"  {override} (from overrides, put over the file)")
    return job


def _check_reads_inputs(config: InferConfig, family: str, lengths: Mapping[str, int]) -> None:
    if "inputs" in lengths:
        if config.source.inputs is None:
            raise errors.ConfigError(
                "source.inputs is missing, and the model reads inputs; give a template, such as '{inputs}'"
            )
        return
    if config.mode == "predict":
        raise errors.ConfigError(
            f"a {family} model with feature_lengths of targets alone has nothing to predict from; set mode: score"
        )
    if config.source.inputs is not None and config.source.task is None:
        raise errors.ConfigError(
            f"source.inputs={config.source.inputs!r} has no effect on a model that reads targets alone; set it to null"
        )


def _claim(job: InferJob, *, owner: str | None) -> None:
    mark = f"{job.uri}/{_MARK}"
    folder = storage.path(job.uri)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if name != "lock.json" and not name.startswith(".")]
    if foreign and _MARK not in names:
        raise errors.RunDirectoryError(
            f"{job.uri} is not empty ({', '.join(foreign[:3])}) and holds no predictions; choose another run.name"
        )
    holding.hold(job.uri, owner=owner)
    storage.write_json(mark, {"name": job.config.run.name})
    storage.write_text(RunDirectory(job.uri).config_uri, yaml_text.dump(job.config.model_dump(mode="json")))


def plan(job: InferJob) -> list[ShardRequest]:
    """Returns the orders for the shards of a job; nothing but positions is held of its rows.

    Raises:
      DataError: there are no rows, or a file cannot be read.
    """
    from t5core.inference import sources

    with _recorded(job, where="counting the rows"):
        with progress.stage("count rows", total=job.config.source.max_rows, unit="rows") as bar:
            requests = []
            for cut in sources.cuts(job):
                requests.append(
                    ShardRequest(job=job, start=cut.start, stop=cut.stop, begin=cut.begin, content=cut.content)
                )
                bar.advance(cut.stop - cut.start)
        if not requests:
            raise errors.DataError(f"there are no rows in {', '.join(job.files) or job.config.source.task}; add some")
    rows, shards = counting.count(requests[-1].stop, "row"), counting.count(len(requests), "shard")
    progress.say(f"plan: {rows} in {shards}")
    return requests


def work_through(request: ShardRequest) -> ShardRef:
    """Returns a shard, worked through unless it is there already.

    Raises:
      DataError: too many rows are unusable, or they have changed since they were counted.
      CheckpointError: the checkpoint is gone or damaged.
    """
    from t5core.inference import shards

    with _recorded(request.job, where=f"rows {request.start} to {request.stop}"):
        return shards.work_through(request)


def gather(job: InferJob, shards: Sequence[ShardRef]) -> tuple[InferSummary, str]:
    """Writes the results in the order of the rows, summary.json and report.html; returns summary and page.

    Raises:
      DataError: no row is usable, or more are not than `max_bad_rows` allows; the results are written all the same.
      IntegrityError: a shard was lost or changed since it was committed.
    """
    from t5core.inference import gathering

    shards = sorted(shards, key=lambda shard: shard.start)
    with _recorded(job, where="gather"):
        gathering.write(job, shards)
    mistake = _too_many_bad(job, shards)
    failed = None if mistake is None else Failure(where="the rows", why=mistake, kind="mistake")
    summary = _summary(job, shards, status="completed" if mistake is None else "failed")
    page = _write(job, summary.model_dump(mode="json"), shards=shards, failed=failed)
    holding.release(job.uri)
    if mistake is not None:
        raise errors.DataError(mistake)
    _say(job, summary, shards)
    return summary, page


def _too_many_bad(job: InferJob, shards: Sequence[ShardRef]) -> str | None:
    """Returns why the job counts as failed for its rows, None when it does not."""
    rows, bad, limit = shards[-1].stop, sum(shard.bad for shard in shards), job.config.max_bad_rows
    first = next((shard.first_error for shard in shards if shard.bad), "")
    if bad == rows:
        return f"not one of {rows:,} rows can be used; the first: {first}"
    if limit is not None and bad > limit:
        return f"{bad:,} of {rows:,} rows cannot be used, more than max_bad_rows={limit}; the first: {first}"
    return None


def _summary(job: InferJob, shards: Sequence[ShardRef], *, status: str) -> InferSummary:
    directory = RunDirectory(job.uri)
    return InferSummary(
        name=job.config.run.name,
        status=status,
        rows=shards[-1].stop,
        bad_rows=sum(shard.bad for shard in shards),
        shards=len(shards),
        reused_shards=sum(shard.reused for shard in shards),
        checkpoint=job.trained.checkpoint,
        uri=directory.summary_uri,
        report=directory.report_uri,
        predictions=f"{job.uri}/predictions.jsonl",
        parquet=f"{job.uri}/predictions.parquet",
    )


def _write(
    job: InferJob,
    account: dict[str, Any],
    *,
    shards: Sequence[ShardRef],
    failed: Failure | None,
) -> str:
    """Writes summary.json and report.html, and returns the page."""
    from t5core.inference import gathering
    from t5core.report import inference_page

    content = {
        **account,
        "failure": None if failed is None else dataclasses.asdict(failed),
        "inputs_truncated": sum(shard.cut for shard in shards),
        "met_length_limit": sum(shard.unended for shard in shards),
        "vocabulary": job.trained.vocabulary.model_dump(),
        "parts": shards[0].parts if shards else {},
    }
    directory = RunDirectory(job.uri)
    page = inference_page.render(
        job,
        content,
        shards=shards,
        examples=list(gathering.first_rows(shards, _SHOWN_ROWS, usable=True)),
        unusable=list(gathering.first_rows(shards, _SHOWN_ERRORS, usable=False)),
    )
    storage.write_text(directory.report_uri, page)
    storage.write_json(directory.summary_uri, json_numbers.encode(content))
    return page


def _recorded(job: InferJob, *, where: str) -> contextlib.AbstractContextManager[None]:
    """Writes the summary and the report of a failed job when the block fails; the error goes on as it is."""

    def write(failed: Failure) -> None:
        account = {
            "name": job.config.run.name,
            "status": "failed",
            "checkpoint": job.trained.checkpoint.model_dump(),
            "uri": RunDirectory(job.uri).summary_uri,
        }
        _write(job, account, shards=[], failed=failed)

    return failure.told(write, where=where)


def _say(job: InferJob, summary: InferSummary, shards: Sequence[ShardRef]) -> None:
    what = "predicted" if job.config.mode == "predict" else "scored"
    bad = f", {summary.bad_rows:,} cannot be used" if summary.bad_rows else ""
    cut, unended = (sum(getattr(shard, name) for shard in shards) for name in ("cut", "unended"))
    lines = [
        "",
        f"infer {summary.name}: {summary.rows - summary.bad_rows:,} of {summary.rows:,} rows {what}{bad}",
        *([f"  cut to {job.trained.feature_lengths['inputs']} tokens: {counting.count(cut, 'input')}"] if cut else []),
        *([f"  at the length limit before an end: {counting.count(unended, 'prediction')}"] if unended else []),
        "",
        f"  predictions  {storage.near(summary.predictions)}",
        f"  parquet      {storage.near(summary.parquet)}",
        f"  report       {storage.near(summary.report)}",
        f"  summary      {storage.near(summary.uri)}",
    ]
    for line in lines:
        progress.say(line)
