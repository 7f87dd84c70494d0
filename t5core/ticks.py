"""Which tick of a schedule runs: each once, none beside the one before, none late unless that was asked for.

`<root>/schedules/<name>.json` says which tick was let in last, and `<name>.lock` keeps two that come at once apart.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Callable, Sequence

from t5core import cron, errors, records, sharing, storage
from t5core.config.base import StrictModel
from t5core.config.data_schema import TaskConfig
from t5core.config.schedule_schema import ScheduleConfig
from t5core.process import ProcessIdentity, this_process
from t5core.rundir import RunDirectory

_POLL_SECONDS = 15.0
_DATE = re.compile(r"\{date(?::([^{}]*))?\}")
_ZONE = "UTC"  # Flyte's scheduler knows no other


class Claim(StrictModel):
    """The tick that was let in last: its run, and who works on it since when (seconds of the epoch).

    `execution` is None for a process of this or another machine that is no Flyte execution.
    """

    run_name: str
    execution: str | None
    process: ProcessIdentity
    since: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tick:
    """One firing of a schedule: the instant it stands for, the name of its run, and whether it goes on, with why."""

    fire: datetime.datetime
    run_name: str
    go: bool
    reason: str


def admit(
    schedule: ScheduleConfig,
    *,
    root: str,
    kickoff: datetime.datetime,
    execution: str | None = None,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> Tick:
    """Returns whether the tick of `schedule` that was kicked off at `kickoff` runs now, and lets it in if so.

    Args:
      schedule: the plan.
      root: folder of the runs.
      kickoff: when the scheduler started the tick; the last firing up to then is the tick it stands for.
      execution: what works on it, unique to it; None: this process.
      now: the clock.

    Raises:
      RecoverableError: with `overlap: wait`, the previous tick is still going after `wait_minutes`.
      RunDirectoryError: with `overlap: refuse`, it is going.
    """
    fire = cron.last_fire(schedule.cron, _ZONE, _aware(kickoff))
    run_name = f"{schedule.name}-{fire:%Y-%m-%dT%H%M}"
    due = cron.next_fire(schedule.cron, _ZONE, fire)
    if now() >= due and not schedule.backfill:
        reason = f"late: the tick of {due:%Y-%m-%d %H:%M} is due already; set backfill to run it all the same"
        return Tick(fire=fire, run_name=run_name, go=False, reason=reason)
    folder = f"{root.rstrip('/')}/schedules/{schedule.name}"
    deadline = now() + datetime.timedelta(minutes=schedule.wait_minutes)
    while True:
        with sharing.turn(f"{folder}.lock", busy=f"another tick of {schedule.name} is being let in", owner=execution):
            going = _going(f"{folder}.json", root, execution, schedule, now())
            if going is None:
                claim = Claim(run_name=run_name, execution=execution, process=this_process(), since=now().timestamp())
                records.write(f"{folder}.json", claim)
                return Tick(fire=fire, run_name=run_name, go=True, reason=f"the tick of {fire:%Y-%m-%d %H:%M} UTC")
        told = f"{going.run_name} is still going (in {going.execution or going.process})"
        if schedule.overlap == "skip":
            return Tick(fire=fire, run_name=run_name, go=False, reason=f"skipped: {told}")
        if schedule.overlap == "refuse":
            raise errors.RunDirectoryError(f"{run_name} is refused: {told}; wait for it, or set overlap: skip or wait")
        if now() >= deadline:
            raise errors.RecoverableError(f"{run_name} has waited {schedule.wait_minutes:g} minutes: {told}")
        time.sleep(_POLL_SECONDS)


def dated(text: str, fire: datetime.datetime) -> str:
    """Returns `text` with `{date}` (2026-12-01) or `{date:%Y/%m}` (strftime) replaced by the day of the tick."""
    return _DATE.sub(lambda match: fire.strftime(match[1] or "%Y-%m-%d"), text)


def dated_tasks(tasks: Sequence[TaskConfig], fire: datetime.datetime) -> list[TaskConfig]:
    """Returns `tasks` with the day of the tick put into the paths of their sources."""
    return [
        TaskConfig.model_validate(
            task.model_dump()
            | {
                "files": [dated(file, fire) for file in task.files],
                "validation_files": [dated(file, fire) for file in task.validation_files],
                "cache": None if task.cache is None else dated(task.cache, fire),
            }
        )
        for task in tasks
    ]


def refuse_undated(tasks: Sequence[TaskConfig]) -> None:
    """Refuses paths that a day has still to be put into: only the tick of a schedule has one.

    Raises:
      ConfigError: the first such path.
    """
    for task in tasks:
        for path in (*task.files, *task.validation_files, task.cache or ""):
            if _DATE.search(path):
                raise errors.ConfigError(
                    f"task {task.name!r}: {path!r} takes the day of a tick, and this run is no tick of a schedule; "
                    "write the day, or start it by workflows/schedules.py"
                )


def _aware(instant: datetime.datetime) -> datetime.datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)


def _going(
    uri: str, root: str, execution: str | None, schedule: ScheduleConfig, now: datetime.datetime
) -> Claim | None:
    """Returns the tick that was let in last if somebody else is still working on it."""
    claim = records.read(uri, Claim, otherwise="is no record of a tick; delete it if no run is under way")
    if claim is None:
        return None
    if (claim.execution, claim.process) == (execution, this_process()) or (execution and claim.execution == execution):
        return None  # another attempt of the same
    directory = RunDirectory(f"{root.rstrip('/')}/{claim.run_name}")
    ended = storage.modified(directory.summary_uri)
    if ended is not None and ended >= int(claim.since):
        return None
    if claim.execution is None and claim.process.is_alive() is not None:
        return claim if claim.process.is_alive() else None
    silent = now.timestamp() - max(claim.since, directory.last_sign_of_life() or 0.0)
    return claim if silent < schedule.abandoned_hours * 3600 else None
