"""What a run has spent, and the action that stops it at a budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from t5core import errors
from t5core.actions.base import TRAIN_TASK, BaseAction, MetricsByTask, metric_value
from t5core.metrics import writer
from t5core.rundir import RunDirectory

SECONDS = "timing/seconds"
TOKENS_PER_SECOND = "timing/target_tokens_per_second"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of training and evaluation, and target tokens (without padding) that were trained on."""

    seconds: float = 0.0
    target_tokens: int = 0


def recorded(directory: RunDirectory, step: int) -> Spent:
    """Returns what the steps up to `step` and their evaluations took, by the records that they left.

    A step counts once, with the seconds of the attempt that was kept: what a kill has lost, the start of a process and
    the wait for a machine are not in it. So the answer is the same whenever it is asked for, however the run was cut.
    """
    lines = [line for line in writer.read_metrics(directory.metrics_uri("train")) if line["step"] <= step]
    evaluations = [evaluation for evaluation in directory.evaluations() if evaluation.step <= step]
    return Spent(
        seconds=sum(line[SECONDS] for line in lines) + sum(evaluation.seconds for evaluation in evaluations),
        target_tokens=sum(_tokens(line) for line in lines),
    )


def _tokens(figures: Mapping[str, Any]) -> int:
    return round(float(figures[SECONDS]) * float(figures[TOKENS_PER_SECOND]))


class BudgetAction(BaseAction):
    """Asks for a stop when a run has spent its seconds or its target tokens, whichever comes first.

    It looks at TRAIN metrics. Seconds are wall clock from the first step of a call of `train` on: training, saving and
    evaluating, not what comes before that step. They add up over calls: its memory is stored with each checkpoint, so
    what a killed call did after its last checkpoint is not counted, and is done again.

    Args:
      seconds: None: any.
      target_tokens: without padding; None: any.
      spent: tells what the run has spent, where that is recorded elsewhere; None: the action counts by itself.
    """

    def __init__(
        self,
        *,
        seconds: float | None = None,
        target_tokens: int | None = None,
        spent: Callable[[], Spent] | None = None,
    ) -> None:
        limits = [limit for limit in (seconds, target_tokens) if limit is not None]
        if not limits or not all(limit > 0 for limit in limits):
            raise errors.ConfigError(
                f"a budget of seconds={seconds}, target_tokens={target_tokens}; give one of them or both, above 0"
            )
        self._limits = {"seconds": seconds, "target_tokens": target_tokens}
        self._told = spent
        self._spent = Spent()
        self._looked_at: float | None = None

    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns True when nothing is left of one of the two."""
        self._spent = self._counted(metrics_by_task) if self._told is None else self._told()
        return bool(self._overspent())

    def _counted(self, metrics_by_task: MetricsByTask) -> Spent:
        figures = {name: metric_value(metrics_by_task, TRAIN_TASK, name) for name in (SECONDS, TOKENS_PER_SECOND)}
        before = self._up_to_now() if self._looked_at is not None else self._spent.seconds + figures[SECONDS]
        self._looked_at = time.monotonic()
        return Spent(seconds=before, target_tokens=self._spent.target_tokens + _tokens(figures))

    def _up_to_now(self) -> float:
        """Returns the seconds, with those since the last look, in which the run was saved and evaluated."""
        since = 0.0 if self._looked_at is None else time.monotonic() - self._looked_at
        return self._spent.seconds + since

    def _overspent(self) -> list[str]:
        spent = dataclasses.asdict(self._spent)
        return [
            f"{spent[name]:.15g} of {limit:.15g} {name.replace('_', ' ')}"
            for name, limit in self._limits.items()
            if limit is not None and spent[name] >= limit
        ]

    def state_dict(self) -> dict[str, Any]:
        """Returns what was spent so far."""
        return {"seconds": self._up_to_now(), "target_tokens": self._spent.target_tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up `state_dict`; the clock stands still until the next look."""
        self._spent = Spent(seconds=float(state["seconds"]), target_tokens=int(state["target_tokens"]))
        self._looked_at = None

    @property
    def still_asks(self) -> bool:
        """Whether nothing is left: a larger budget lets a run go on."""
        return bool(self._overspent())

    @property
    def watched(self) -> tuple[str, str]:
        """What training reports."""
        return TRAIN_TASK, SECONDS

    @property
    def reason(self) -> str:
        """What was spent of what."""
        return f"budget: {' and '.join(self._overspent())} spent"
