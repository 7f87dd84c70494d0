"""The stages of an evaluation of checkpoints: settle, evaluate each, put them into one table.

An evaluation is kept by content, so the same one is never made twice, whichever workflow asks for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from t5core import errors, progress, records, sharing, storage
from t5core.checkpoints import index, locating
from t5core.config import load, yaml_text
from t5core.config.edges import DatasetRef, Evaluation, RunInputs, TaskRequest
from t5core.config.evaluate_edges import EvaluatedCheckpoint, EvaluationPlan, EvaluationRequest, EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.config.infer_edges import TrainedModel
from t5core.config.schema import PretrainConfig
from t5core.report import evaluation_table
from t5core.rundir import RunDirectory
from t5core.stages import failure, holding, resolve
from t5core.trained import trained_model

_SPLIT = "validation"


def settle(config: EvaluationConfig, overrides: Sequence[str], *, owner: str | None = None) -> EvaluationPlan:
    """Returns which checkpoints are evaluated and how; the folder of the evaluation is claimed.

    Args:
      config: the settings.
      overrides: settings put over them, `section.key=value` each.
      owner: execution that works on it; None: this process.

    Raises:
      ConfigError: a setting that cannot work.
      CheckpointError: there is no such checkpoint, or it is not of the model.
      RunDirectoryError: the folder is a run's, is in use, or cannot be written.
    """
    config = load.override_config(config, overrides)
    root = config.run.root.rstrip("/") if storage.is_remote(config.run.root) else os.path.abspath(config.run.root)
    config = config.model_copy(update={"run": config.run.model_copy(update={"root": root})})
    checkpoints = locating.locate_all(config.checkpoint, root=root, steps=config.steps)
    directory = locating.run_of(checkpoints[0])
    model = trained_model(
        checkpoints[-1], model=config.model, vocabulary=config.vocabulary, feature_lengths=config.feature_lengths
    )
    trained = directory.uri if directory is not None else index.locate(checkpoints[0].uri)[0]
    settings = _of_run(directory) if directory is not None else _of_none(config, model)
    origin = directory.config_uri if directory is not None and config.tasks is None else f"tasks of {config.run.name!r}"
    run = load.resolve(_put_over(settings, config, origin=origin))
    resolve.check(run.config)
    plan = EvaluationPlan(
        uri=run.uri,
        config=config,
        trained=trained,
        run=run,
        vocabulary=model.vocabulary,
        checkpoints=checkpoints,
    )
    _claim(plan, owner=owner)
    steps = ", ".join(f"{checkpoint.step:,}" for checkpoint in checkpoints)
    progress.say(f"evaluation {config.run.name!r} in {plan.uri}: {trained} at step {steps}")
    for override in overrides:
        progress.say(f"  {override} (from overrides, put over the file)")
    return plan


def _of_run(trained: RunDirectory) -> dict[str, Any]:
    """Returns the settings of a run, its seed among them."""
    info = trained.info()
    assert info is not None, "a run's directory says whose it is"
    return {**load.read_file(trained.config_uri), "run": {"seed": info.seed}}


def _of_none(config: EvaluationConfig, model: TrainedModel) -> dict[str, Any]:
    """Returns the settings for a checkpoint that lies in no run's directory; what is random is drawn from seed 0."""
    if config.tasks is None:
        raise errors.ConfigError(
            f"tasks is missing, and {model.checkpoint.uri} lies in no run's directory, whose tasks they would be; "
            "name those to evaluate on"
        )
    return {
        "run": {"seed": 0},
        "model": model.model.model_dump(mode="json"),
        "data": {"feature_lengths": model.feature_lengths},
        "train": {},
    }


def _put_over(settings: dict[str, Any], config: EvaluationConfig, *, origin: str) -> PretrainConfig:
    """Returns `settings` with the place, the tasks and the pool of the evaluation put over them."""
    from t5core.data import registered_mixtures

    settings["run"] = {"name": config.run.name, "root": config.run.root, **settings["run"]}
    settings["train"] = {**settings["train"], "actions": []}
    settings["cluster"] = config.cluster.model_dump(mode="json")
    if config.model is not None:
        settings["model"] = config.model.model_dump(mode="json")
    if config.vocabulary is not None:
        settings["data"]["vocabulary"] = config.vocabulary.model_dump(mode="json")
    if config.evaluate is not None:
        settings["evaluate"] = config.evaluate.model_dump(mode="json")
    if config.feature_lengths is not None:
        settings["data"]["feature_lengths"] = config.feature_lengths
    if config.tasks is not None:
        own = {
            "tasks": [task.model_dump(mode="json") for task in config.tasks],
            "module": config.module,
            "seqio_cache_dirs": config.seqio_cache_dirs,
            "passes": 1,  # what is trained on is not looked at
            "allow_missing_split": False,
        }
        settings["data"] = {**settings["data"], **own}
    return registered_mixtures.expanded(load.validate(settings, PretrainConfig, origin=origin))


def _claim(plan: EvaluationPlan, *, owner: str | None) -> None:
    directory, place = RunDirectory(plan.uri), storage.path(plan.uri)
    names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    foreign = [name for name in names if name != "lock.json" and not name.startswith(".")]
    if foreign and evaluation_table.PLAN not in names:
        raise errors.RunDirectoryError(
            f"{plan.uri} is not empty ({', '.join(foreign[:3])}) and holds no evaluation; choose another run.name"
        )
    holding.hold(plan.uri, owner=owner)
    for stale in storage.path(f"{plan.uri}/records").glob("stage-*.json") if "records" in names else ():
        stale.unlink()  # of tasks that may not be evaluated on any more
    records.write(f"{plan.uri}/{evaluation_table.PLAN}", plan)
    storage.write_text(directory.config_uri, yaml_text.dump(plan.config.model_dump(mode="json")))


def dataset_requests(plan: EvaluationPlan) -> list[TaskRequest]:
    """Returns the order to materialise each task that is evaluated on."""
    return resolve.task_requests(plan.run, plan.vocabulary)


def evaluation_requests(plan: EvaluationPlan, datasets: Sequence[DatasetRef]) -> list[EvaluationRequest]:
    """Returns the order to evaluate each checkpoint.

    Raises:
      DataError: none of the datasets has a validation example.
    """
    from t5core.data import manifest

    with failure.recorded(plan.uri, where="datasets"):
        found = [manifest.load(dataset.uri) for dataset in datasets]
        if not any(described and _SPLIT in described.splits and described.splits[_SPLIT].rows for described in found):
            names = ", ".join(dataset.name for dataset in datasets)
            raise errors.DataError(f"no task has a validation example ({names}); give one of them validation_files")
    return [
        EvaluationRequest(plan=plan, datasets=list(datasets), checkpoint=checkpoint) for checkpoint in plan.checkpoints
    ]


def evaluate_checkpoint(request: EvaluationRequest) -> EvaluatedCheckpoint:
    """Returns the metrics of one checkpoint, measured unless the same were before."""
    from t5core.evaluation import evaluated, identity

    plan, checkpoint = request.plan, request.checkpoint
    root, parts = plan.config.run.root, identity.parts(_inputs(request, uri=plan.uri))
    reason = ""

    def find() -> EvaluatedCheckpoint | None:
        nonlocal reason
        settings = storage.fingerprint(parts)
        own = RunDirectory(plan.trained).evaluation(checkpoint.step)
        if own is not None and (own.checkpoint.digest, own.settings) == (checkpoint.digest, settings):
            found, reason = own, "evaluated while the run trained"
        else:
            found, reason = evaluated.find(root, checkpoint, parts)
        if found is None:
            return None
        return EvaluatedCheckpoint(evaluation=found.model_copy(update={"reused": True}), reason=reason)

    def make() -> EvaluatedCheckpoint:
        return EvaluatedCheckpoint(evaluation=_measured(request, parts), reason=reason)

    with failure.recorded(plan.uri, where=f"evaluation of step {checkpoint.step}"):
        result = sharing.made_once(root, evaluated.key_of(checkpoint, parts), find=find, make=make)
    seconds = "reused" if result.evaluation.reused else f"done in {result.evaluation.seconds:.1f} s"
    progress.say(f"evaluate step {checkpoint.step:,}: {seconds} ({result.reason})")
    return result


def _inputs(request: EvaluationRequest, *, uri: str) -> RunInputs:
    """Returns the run as evaluation takes it, with `uri` for what it writes; there is no mixture to train on."""
    run = request.plan.run.model_copy(update={"uri": uri})
    datasets = request.datasets
    return RunInputs(run=run, vocabulary=request.plan.vocabulary, tasks=datasets, mixture=datasets[0])


def _measured(request: EvaluationRequest, parts: dict[str, str]) -> Evaluation:
    from t5core.evaluation import checkpoint as evaluation
    from t5core.evaluation import evaluated

    began, root = time.monotonic(), request.plan.config.run.root
    key = evaluated.key_of(request.checkpoint, parts)
    place = evaluated.folder(root, key)
    with contextlib.suppress(FileNotFoundError):
        storage.path(place).rmtree()  # of an attempt that died, or damaged
    metrics = evaluation.evaluate(_inputs(request, uri=place), request.checkpoint)
    measured = Evaluation(
        step=request.checkpoint.step,
        checkpoint=request.checkpoint,
        metrics=metrics,
        seconds=time.monotonic() - began,
        reused=False,
        settings=storage.fingerprint(parts),
        uri=place,
    )
    return evaluated.commit(root, key, parts=parts, evaluation=measured)


def tabulate(plan: EvaluationPlan, results: Sequence[EvaluatedCheckpoint]) -> tuple[EvaluationSummary, str]:
    """Writes the table, summary.json and report.html; returns the summary and the report's HTML."""
    with failure.recorded(plan.uri, where="table"):
        summary, page = evaluation_table.write(plan, results)
    for line in evaluation_table.closing_lines(plan, summary, results):
        progress.say(line)
    holding.release(plan.uri)
    return summary, page
