"""The first stage: every setting known and checked, and the run directory claimed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from t5core import counting, errors, progress, publishing, schedule, ticks
from t5core.actions import configured
from t5core.checkpoints import index
from t5core.config import load, yaml_text
from t5core.config.edges import ResolvedRun, TaskRequest, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.rundir import RunDirectory, RunInfo, StageRecord
from t5core.stages import holding
from t5core.starting import parent_checkpoint

_MAY_DIFFER = [".".join(path) for path in load.FREE_SETTINGS]


def resolve_run(
    config: PretrainConfig, overrides: Sequence[str], *, owner: str | None = None, workflow: str = ""
) -> ResolvedRun:
    """Returns the run that `config` with `overrides` describes, its directory claimed and `config.yaml` written.

    Args:
      config: the recipe.
      overrides: settings put over it, `section.key=value` each.
      owner: execution that works on the run; None: this process.
      workflow: the name of the one that starts the run; '': not known.

    Raises:
      ConfigError: a setting that cannot work.
      RunDirectoryError: the directory is another run's, is in use, or cannot be written.
    """
    began = time.monotonic()
    run = settle(config, overrides)
    directory = RunDirectory(run.uri)
    info = directory.info()
    _announce(run, overrides)
    holding.hold(run.uri, owner=owner)
    directory.claim(
        run,
        identity=run.fingerprint,
        config_text=yaml_text.dump(run.config.model_dump(mode="json")),
        may_differ=_MAY_DIFFER,
        workflow=workflow,
    )
    directory.write_stage(
        StageRecord(
            stage="resolve",
            reused=info is not None and info.identity == run.fingerprint,
            reason=_reason(run, info),
            seconds=time.monotonic() - began,
            fingerprint=run.fingerprint,
            uri=directory.config_uri,
        )
    )
    return run


def _reason(run: ResolvedRun, before: RunInfo | None) -> str:
    if before is None:
        return "a new run"
    if before.identity == run.fingerprint:
        return f"run {run.fingerprint} lives in {run.uri} already"
    return f"a new run, in the place of run {before.identity}, which was never initialised"


def settle(config: PretrainConfig, overrides: Sequence[str]) -> ResolvedRun:
    """Returns the run that `config` with `overrides` describes, checked; nothing is claimed or written.

    Raises:
      ConfigError: a setting that cannot work.
      RunDirectoryError: the directory is another run's.
      CheckpointError: the run is past its `total_steps`.
    """
    from t5core.data import registered_mixtures, vocabulary_verification

    named = registered_mixtures.expanded(load.override_config(config, overrides))
    known = vocabulary_verification.with_embedding_rows(parent_checkpoint.settled(named))
    run = _with_stored_seed(load.resolve(known), drawn=known.run.seed is None)
    check(run.config)
    directory = RunDirectory(run.uri)
    directory.check_claim(run, identity=run.fingerprint, may_differ=_MAY_DIFFER)
    latest, total = index.latest(directory.checkpoints_uri), run.config.train.total_steps
    if latest is not None and latest > total:
        raise errors.CheckpointError(
            f"train.total_steps={total} is below step {latest}, which {directory.uri} has reached; "
            f"raise it, or choose another run.name"
        )
    return run


def _with_stored_seed(run: ResolvedRun, *, drawn: bool) -> ResolvedRun:
    """Takes up the seed that an earlier start of the same run has drawn."""
    info = RunDirectory(run.uri).info() if drawn else None
    if info is None:
        return run
    settings = run.config.run.model_copy(update={"seed": info.seed})
    return load.resolve(run.config.model_copy(update={"run": settings}))


def _announce(run: ResolvedRun, overrides: Sequence[str]) -> None:
    train = run.config.train
    progress.say(f"run {run.config.run.name!r} in {run.uri} (config {run.fingerprint}, seed {run.seed})")
    segments = schedule.of(train).segments(run.first_step)
    steps, rows = counting.count(train.total_steps, "step"), counting.count(train.batch_size, "row")
    progress.say(f"  {steps} of {rows} in {counting.count(len(segments), 'segment')}")
    for override in overrides:
        progress.say(f"  {override} (from overrides, put over the recipe)")


def check(config: PretrainConfig) -> None:
    """Refuses now what could not work later: names, schedules and rates that only the training code knows.

    Raises:
      ConfigError: the first setting that cannot work.
      CheckpointError: the checkpoint that the run is to start from is not there, or does not fit.
    """
    schedule.of(config.train)
    ticks.refuse_undated(config.data.tasks)
    configured.check(config)
    if config.publish is not None:
        publishing.check(config.publish, root=config.run.root)
    from t5core import build
    from t5core.data.materialise import check_task
    from t5core.data.vocabulary_verification import check_embedding_rows
    from t5core.starting import init_from

    for task in config.data.tasks:
        check_task(config, task)
    build.check(config)
    init_from.check(config, f"{config.run.root}/{config.run.name}")
    vocabulary = config.data.vocabulary
    if vocabulary.kind == "sentencepiece" and vocabulary.path is None:
        check_embedding_rows(config, pieces=vocabulary.size, sentinels=vocabulary.extra_ids)


def task_requests(run: ResolvedRun, vocabulary: VocabularyRef) -> list[TaskRequest]:
    """Returns the order to materialise each task of the run."""
    return [TaskRequest(run=run, vocabulary=vocabulary, task=task.name) for task in run.config.data.tasks]
