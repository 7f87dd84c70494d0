"""Tasks before a scheduled pipeline: whether its tick goes on, and what is left to say when it does not."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from t5core.config.edges import Summary
from t5core.config.evaluate_edges import EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.config.schedule_schema import ScheduleConfig
from t5core.config.schema import PretrainConfig
from tasks import failures, owner, profiles


class FinetuneTick(NamedTuple):
    """A tick that trains; `go` stands apart because conditionals take plain values only."""

    go: bool
    config: PretrainConfig
    reason: str


class EvaluateTick(NamedTuple):
    """A tick that evaluates."""

    go: bool
    config: EvaluationConfig
    reason: str


@profiles.light_task()
def admit_finetune(kickoff_time: datetime.datetime, config: PretrainConfig, schedule: ScheduleConfig) -> FinetuneTick:
    """Lets the tick in or not, and gives its run a name and its day."""
    from t5core.stages import tick

    with failures.retry_what_helps():
        admitted = tick.admit_finetune(kickoff_time, config, schedule, owner=owner.current())
    return FinetuneTick(go=admitted.go, config=admitted.config, reason=admitted.reason)


@profiles.light_task()
def admit_evaluate(kickoff_time: datetime.datetime, config: EvaluationConfig, schedule: ScheduleConfig) -> EvaluateTick:
    """Lets the tick in or not, and gives its evaluation a name and its day."""
    from t5core.stages import tick

    with failures.retry_what_helps():
        admitted = tick.admit_evaluate(kickoff_time, config, schedule, owner=owner.current())
    return EvaluateTick(go=admitted.go, config=admitted.config, reason=admitted.reason)


@profiles.light_task()
def skipped_finetune(config: PretrainConfig, reason: str) -> Summary:
    """Says that the tick does not train, and why."""
    from t5core.stages import tick

    with failures.retry_what_helps():
        return tick.skipped_finetune(config, reason)


@profiles.light_task()
def skipped_evaluate(config: EvaluationConfig, reason: str) -> EvaluationSummary:
    """Says that the tick does not evaluate, and why."""
    from t5core.stages import tick

    with failures.retry_what_helps():
        return tick.skipped_evaluate(config, reason)
