"""How a run ended, as `summary.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from t5core import counting, errors, storage
from t5core.checkpoints.record import package_versions
from t5core.config import edges
from t5core.metrics import json_numbers
from t5core.report.gather import LOSS, RunRecord, gather
from t5core.rundir import RunDirectory, StageRecord

Status = Literal["completed", "stopped", "failed"]
FailureKind = Literal["mistake", "damage", "error"]

# Teacher-forced metrics that say over again, or in another unit, what the ones shown first say.
_SECONDARY = frozenset({"loss", "z_loss", "cross_ent_loss", "weight_sum", "num_examples", "sequences"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Where a run failed (a stage, a segment) and why, in one line each.

    `kind` tells whether the user can mend it (`mistake`), stored bytes are not what was written (`damage`), or it is
    something else (`error`).
    """

    where: str
    why: str
    kind: FailureKind = "error"

    @classmethod
    def of(cls, error: Exception, *, where: str) -> Failure:
        """Returns the failure that `error` is."""
        kind: FailureKind = "error"
        if isinstance(error, errors.UserError | errors.IntegrityError):
            kind = "mistake" if isinstance(error, errors.UserError) else "damage"
        why = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        return cls(where=where, why=why, kind=kind)


def what_helps(failure: Mapping[str, Any], *, kept: str) -> str:
    """Returns what to do about a failure as summary.json has it; `kept` says what the next start does not do again."""
    first = {
        "mistake": "Mend what is named there, and give the command again",
        "damage": "Restore or delete what is named there, and give the command again",
    }
    return f"{first.get(failure.get('kind', ''), 'Give the same command again')}: {kept}."


def what_helps_a_run(account: Mapping[str, Any]) -> str:
    """Returns `what_helps` for the failure of a run; '' when it did not fail."""
    failure = account["failure"]
    if not failure:
        return ""
    reached = f"step {account['final_step']:,} is committed, and the run goes on from there"
    text = what_helps(failure, kept=reached if account["checkpoint"] else "the stages that finished are reused")
    another = " Where that changes what is trained, it is another run and needs another run.name."
    return text + (another if failure.get("kind") == "mistake" else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastValue:
    """The newest value of a metric and the evaluation that measured it."""

    value: float
    evaluation: edges.Evaluation


def last_values(evaluations: Iterable[edges.Evaluation]) -> dict[str, dict[str, LastValue]]:
    """Returns the newest value of every metric, by task and metric; `evaluations` come in the order of steps."""
    newest: dict[str, dict[str, LastValue]] = {}
    for evaluation in evaluations:
        for task, metrics in evaluation.metrics.items():
            for name, value in metrics.items():
                newest.setdefault(task, {})[name] = LastValue(value=value, evaluation=evaluation)
    return newest


def leading_metrics(names: Iterable[str]) -> list[str]:
    """Returns those of `names` that a person looks at first: loss per token, accuracy, then the task's own."""
    known = list(dict.fromkeys(names))
    first = [name for name in (LOSS, "accuracy") if name in known]
    own = [
        name
        for name in known
        if name not in first and name not in _SECONDARY and "/" not in name and not name.endswith("_target_tokens")
    ]
    return first + own or known


def write_summary(
    run_uri: str,
    *,
    status: Status,
    stop_reason: str = "",
    checkpoint: edges.CheckpointRef | None = None,
    failure: Failure | None = None,
) -> edges.Summary:
    """Writes `summary.json` of the run at `run_uri` and returns it as what travels on.

    Args:
      run_uri: the run directory.
      status: how the run ended.
      stop_reason: why it ended before its last step; '' when it did not.
      checkpoint: where the run stands; None takes the newest that a segment recorded.
      failure: what went wrong; given with the status `failed` and only then.

    Raises:
      IntegrityError: a record of the run cannot be read.
    """
    assert (failure is not None) == (status == "failed"), "a failed run says where and why, and no other does"
    record = gather(run_uri, with_summary=False)  # the one from before may be damaged, and is written anew
    last = checkpoint or record.checkpoint
    content = {
        "status": status,
        "stop_reason": stop_reason,
        "failure": dataclasses.asdict(failure) if failure else None,
        "versions": package_versions(),
        **account(record, last),
    }
    uri = RunDirectory(record.uri).summary_uri
    storage.write_json(uri, content)
    return edges.Summary(
        run_name=record.name,
        status=status,
        final_step=content["final_step"],
        stop_reason=stop_reason,
        state_digest=content["state_digest"],
        uri=uri,
        report=RunDirectory(record.uri).report_uri,
    )


def loss_before_and_after(record: RunRecord, final_step: int) -> dict[str, dict[str, float] | None]:
    """Returns the first training loss per target token and the one at `final_step`, each with its step.

    Before the first checkpoint (`final_step` 0) the last loss written counts as the one after.
    """
    points = [point for series in record.series_of("train") for point in series.points(LOSS)]
    points = [point for point in points if point[0] <= final_step] or points
    if not points:
        return {"before": None, "after": None}
    ends = (("before", points[0]), ("after", points[-1]))
    return {name: {"step": step, "value": value} for name, (step, value) in ends}


def training_in_words(account: Mapping[str, Any]) -> str:
    """Returns how much of a run was trained and how much reused, from the segments in its account."""
    segments = account["segments"]
    trained = [segment for segment in segments if not segment["reused"]]
    if not segments:
        return "no segment finished"
    if not trained:
        which = f"all {len(segments)} segments" if len(segments) > 1 else "the segment"
        return f"{which} reused, the checkpoints up to step {segments[-1]['end']:,} are committed"
    steps = counting.count(sum(segment["trained_steps"] for segment in trained), "step")
    rest = len(segments) - len(trained)
    reused = f"; {counting.count(rest, 'segment')} reused, checkpoints committed" if rest else ""
    return f"{steps} trained in {counting.count(len(trained), 'segment')}{reused}"


def account(record: RunRecord, last: edges.CheckpointRef | None) -> dict[str, Any]:
    """Returns the part of a summary that the records tell, as JSON.

    `last` is where the run stands, None before its first checkpoint. Numbers that are not finite are spelled as
    `json_numbers` does.
    """
    final_step = last.step if last else 0
    metrics = last_values(record.evaluations_to(final_step))
    content = {
        "run_name": record.name,
        "final_step": final_step,
        "total_steps": record.total_steps,
        "state_digest": last.digest if last else "",
        "checkpoint": last.model_dump() if last else None,
        "config_fingerprint": record.fingerprint,
        "parent": record.parent.model_dump() if record.parent else None,
        "publication": record.publication.model_dump() if record.publication else None,
        "loss": loss_before_and_after(record, final_step),
        "metrics": {task: {name: at.value for name, at in values.items()} for task, values in metrics.items()},
        "dataset": _reference(record.stages_of("assemble")),
        "tasks": {stage.name: _reference([stage]) for stage in record.stages_of("materialise")},
        "vocabulary": _reference(record.stages_of("vocabulary")),
        "preflight": record.preflight.model_dump(mode="json") if record.preflight else None,
        "stages": [
            {
                "stage": stage.stage,
                "name": stage.name,
                "reused": stage.reused,
                "reason": stage.reason,
                "seconds": stage.seconds,
            }
            for stage in record.stages
        ],
        "segments": [
            {
                "start": segment.start,
                "end": segment.end,
                "seconds": segment.seconds,
                "trained_steps": segment.trained_steps,
                "digest": segment.checkpoint.digest,
                "reused": segment.reused,
            }
            for segment in record.segments_to(final_step)
        ],
        "evaluations": [
            {"step": evaluation.step, "seconds": evaluation.seconds, "reused": evaluation.reused}
            for evaluation in record.evaluations_to(final_step)
        ],
    }
    return json_numbers.encode(content)


def _reference(stages: Iterable[StageRecord]) -> dict[str, str] | None:
    stage = next(iter(stages), None)
    return {"fingerprint": stage.fingerprint, "uri": stage.uri} if stage else None
