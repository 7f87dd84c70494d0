"""A tick of a schedule before its pipeline: let in or not, and the settings of its run."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Generic, TypeVar

from t5core import progress, storage, ticks
from t5core.config.edges import Summary
from t5core.config.evaluate_edges import EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.config.schedule_schema import ScheduleConfig
from t5core.config.schema import PretrainConfig

_Config = TypeVar("_Config")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission(Generic[_Config]):
    """Whether a tick goes on and why; `config` has the name of its run, and its day in the paths of its sources."""

    go: bool
    config: _Config
    reason: str


def admit_finetune(
    kickoff: datetime.datetime, config: PretrainConfig, schedule: ScheduleConfig, *, owner: str | None
) -> Admission[PretrainConfig]:
    """Returns the run of a tick that trains, and whether it goes on.

    Args:
      kickoff: when the tick was started, in UTC.
      config: of each run of the schedule, with `{date}` where the day belongs.
      schedule: the plan.
      owner: execution that works on the tick; None: this process.

    Raises:
      RecoverableError, RunDirectoryError: as `ticks.admit`.
    """
    tick = _admitted(kickoff, schedule, root=config.run.root, owner=owner)
    data = config.data.model_copy(update={"tasks": ticks.dated_tasks(config.data.tasks, tick.fire)})
    run = config.run.model_copy(update={"name": tick.run_name})
    return Admission(go=tick.go, config=config.model_copy(update={"run": run, "data": data}), reason=tick.reason)


def admit_evaluate(
    kickoff: datetime.datetime, config: EvaluationConfig, schedule: ScheduleConfig, *, owner: str | None
) -> Admission[EvaluationConfig]:
    """Returns the evaluation of a tick, and whether it goes on; arguments and errors as for `admit_finetune`."""
    tick = _admitted(kickoff, schedule, root=config.run.root, owner=owner)
    tasks = None if config.tasks is None else ticks.dated_tasks(config.tasks, tick.fire)
    run = config.run.model_copy(update={"name": tick.run_name})
    return Admission(go=tick.go, config=config.model_copy(update={"run": run, "tasks": tasks}), reason=tick.reason)


def _admitted(kickoff: datetime.datetime, schedule: ScheduleConfig, *, root: str, owner: str | None) -> ticks.Tick:
    tick = ticks.admit(schedule, root=root, kickoff=kickoff, execution=owner)
    progress.say(
        f"schedule {schedule.name}: {tick.run_name} {'goes on' if tick.go else 'does not run'} ({tick.reason})"
    )
    return tick


def skipped_finetune(config: PretrainConfig, reason: str) -> Summary:
    """Returns the summary of a tick that does not train; the run of that name, if there is one, stays as it is."""
    uri = _noted(config.run.root, config.run.name, reason)
    return Summary(
        run_name=config.run.name,
        status="skipped",
        final_step=0,
        stop_reason=reason,
        state_digest="",
        uri=uri,
        report="",
    )


def skipped_evaluate(config: EvaluationConfig, reason: str) -> EvaluationSummary:
    """Returns the summary of a tick that does not evaluate."""
    uri = _noted(config.run.root, config.run.name, reason)
    return EvaluationSummary(
        name=config.run.name,
        status="skipped",
        reason=reason,
        checkpoints=0,
        reused=0,
        uri=uri,
        table="",
        csv="",
        report="",
    )


def _noted(root: str, run_name: str, reason: str) -> str:
    """Writes down that a tick was skipped, apart from the run that may be under way, and returns where."""
    uri = f"{root.rstrip('/')}/schedules/skipped/{run_name}.json"
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    storage.write_json(uri, {"run_name": run_name, "status": "skipped", "reason": reason, "at": at})
    return uri
