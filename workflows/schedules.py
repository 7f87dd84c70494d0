"""Pipelines that start by themselves: launch plans with cron schedules, each firing of which is a run of its own.

pyflyte -c flyte.config register workflows          # the plans are there, asleep
python -m workflows.schedules --timezone Europe/London

The schedules are on the clocks of UTC, the only ones that Flyte's scheduler knows.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from collections.abc import Mapping
from typing import Any

from flytekit import CronSchedule, Labels, LaunchPlan, conditional, workflow
from flytekit.core.workflow import WorkflowBase

from t5core import command_line, cron, errors, progress
from t5core.config import load
from t5core.config.edges import Summary
from t5core.config.evaluate_edges import EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.config.schedule_schema import ScheduleConfig
from t5core.config.schema import PretrainConfig
from tasks.scheduling import admit_evaluate, admit_finetune, skipped_evaluate, skipped_finetune
from workflows.evaluate import evaluate
from workflows.finetune import finetune

_CONFIGS = pathlib.Path(__file__).parent / "configs"
_KICKOFF = "kickoff_time"


@workflow
def scheduled_finetune(kickoff_time: datetime.datetime, config: PretrainConfig, schedule: ScheduleConfig) -> Summary:
    """Fine-tunes for one tick of a schedule, unless it comes at a bad time.

    Args:
        kickoff_time: when the tick was started; the last firing of the schedule up to then is the one it stands for
        config: YAML file with the settings of each run, `{date}` in paths being the day of the tick
        schedule: when the pipeline runs, and what becomes of a tick that comes late or finds another one going

    Returns:
        how the run ended, or status "skipped" and why
    """
    tick = admit_finetune(kickoff_time=kickoff_time, config=config, schedule=schedule)
    return (
        conditional("tick_goes_on")
        .if_(tick.go.is_true())
        .then(finetune(config=tick.config, overrides=[]))
        .else_()
        .then(skipped_finetune(config=tick.config, reason=tick.reason))
    )


@workflow
def scheduled_evaluate(
    kickoff_time: datetime.datetime, config: EvaluationConfig, schedule: ScheduleConfig
) -> EvaluationSummary:
    """Evaluates for one tick of a schedule, unless it comes at a bad time; arguments as for `scheduled_finetune`.

    Returns:
        how the evaluation ended, or status "skipped" and why
    """
    tick = admit_evaluate(kickoff_time=kickoff_time, config=config, schedule=schedule)
    return (
        conditional("tick_goes_on")
        .if_(tick.go.is_true())
        .then(evaluate(config=tick.config, overrides=[]))
        .else_()
        .then(skipped_evaluate(config=tick.config, reason=tick.reason))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A launch plan with its schedule."""

    plan: LaunchPlan
    schedule: ScheduleConfig


def planned(schedule: ScheduleConfig, scheduled: WorkflowBase, inputs: Mapping[str, Any]) -> Planned:
    """Returns the launch plan of a workflow that runs by itself, asleep until somebody activates it.

    Args:
      schedule: when; the plan is named after it.
      scheduled: the workflow; its input `kickoff_time` is the time of each firing.
      inputs: all of its other inputs.

    Raises:
      ConfigError: an input is left open, which would fail at each firing only, or is none of the workflow's.
    """
    given, wanted = {**inputs, "schedule": schedule}, scheduled.python_interface.inputs_with_defaults
    open_ones = [name for name, (_, default) in wanted.items() if name not in given and default is None]
    if open_ones != [_KICKOFF]:
        missing = ", ".join(sorted(set(open_ones) - {_KICKOFF})) or "nothing but"
        what = f"leaves {missing} open" if _KICKOFF in wanted else f"has no input {_KICKOFF}"
        raise errors.ConfigError(
            f"launch plan {schedule.name}: {scheduled.name} {what}; give every other input a value"
        )
    unknown = next((name for name in given if name not in wanted), None)
    if unknown is not None:
        raise errors.ConfigError(f"launch plan {schedule.name}: {errors.unknown_name('input', unknown, wanted)}")
    plan = LaunchPlan.get_or_create(
        scheduled,
        name=f"workflows.schedules.{schedule.name.replace('-', '_')}",
        fixed_inputs=given,
        schedule=CronSchedule(schedule=schedule.cron, kickoff_time_input_arg=_KICKOFF),
        labels=Labels({"app.kubernetes.io/name": "t5flow", "t5flow/schedule": schedule.name}),
    )
    return Planned(plan=plan, schedule=schedule)


NIGHTLY_FINETUNE = planned(
    ScheduleConfig(name="nightly-finetune", cron="0 3 * * *"),
    scheduled_finetune,
    {"config": load.load(str(_CONFIGS / "nightly_finetune.yaml"), PretrainConfig)},
)
NIGHTLY_EVALUATE = planned(
    ScheduleConfig(name="nightly-evaluate", cron="0 6 * * *"),
    scheduled_evaluate,
    {"config": load.load(str(_CONFIGS / "nightly_evaluate.yaml"), EvaluationConfig)},
)
nightly_finetune, nightly_evaluate = NIGHTLY_FINETUNE.plan, NIGHTLY_EVALUATE.plan


def next_fires(schedule: ScheduleConfig, *, timezone: str, count: int, now: datetime.datetime) -> list[str]:
    """Returns the next firings of a schedule as they show on the clocks of `timezone`."""
    zone, fires = cron.zone(timezone), [now]
    for _ in range(count):
        fires.append(cron.next_fire(schedule.cron, "UTC", fires[-1]))
    return [f"{fire.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for fire in fires[1:]]


def _list() -> None:
    parser = command_line.Parser(prog="python -m workflows.schedules", description="Lists the plans and their fires.")
    parser.add_argument("--timezone", default="UTC", help="whose clocks to show, as Europe/London")
    parser.add_argument("--count", type=int, default=3, help="firings to show of each plan")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error(f"--count {arguments.count} shows nothing; give 1 or more")
    now = datetime.datetime.now(datetime.UTC)
    for each in (NIGHTLY_FINETUNE, NIGHTLY_EVALUATE):
        schedule = each.schedule
        progress.say(
            f"{each.plan.name}   {schedule.cron} (UTC), overlap: {schedule.overlap}, backfill: {schedule.backfill}"
        )
        for fire in next_fires(schedule, timezone=arguments.timezone, count=arguments.count, now=now):
            progress.say(f"  {fire}")


if __name__ == "__main__":
    command_line.run(_list)
