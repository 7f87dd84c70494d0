"""Actions: what looks at the metrics after an evaluation and may stop the run.

An action's memory is plain JSON (`state_dict`), so that it crosses segments, tasks and machines.
"""

from __future__ import annotations

import abc
import enum
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from t5core import counting, errors

MetricsByTask = Mapping[str, Mapping[str, Any]]

TRAIN_TASK = "train"  # under which TRAIN actions find what training reports


class ActionMode(enum.Enum):
    """Which metrics an action sees."""

    TRAIN = 1
    TRAIN_EVAL = 2
    INFER_EVAL = 3


class BaseAction(abc.ABC):
    """Base of all actions."""

    @abc.abstractmethod
    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns True to ask for a stop."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the action's memory as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - an action without memory takes none
        """Takes up the memory that `state_dict` gave."""

    @property
    def reason(self) -> str:
        """Why the action asked for a stop, one line."""
        return type(self).__name__

    @property
    def still_asks(self) -> bool:
        """Whether a stop that it asked for in an earlier call of `train` holds, by the memory that was loaded."""
        return True

    @property
    def watched(self) -> tuple[str, str] | None:
        """The task and the metric that `run` looks at, so that a wrong name is found before training; None: any."""
        return None


def metric_value(metrics_by_task: MetricsByTask, task: str, metric: str) -> float:
    """Returns one metric as a float, whatever number type holds it.

    Raises:
      ConfigError: there is no such task or metric, or it is no number; the names that there are are listed.
    """
    if task not in metrics_by_task:
        raise errors.ConfigError(errors.unknown_name("task of an action", task, metrics_by_task))
    if metric not in metrics_by_task[task]:
        raise errors.ConfigError(errors.unknown_name(f"metric of task {task!r}", metric, metrics_by_task[task]))
    value = metrics_by_task[task][metric]
    value = getattr(value, "value", value)  # clu and seqio wrap scalars
    if isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0:
        return float(value)
    raise errors.ConfigError(
        f"metric {metric!r} of task {task!r} is {type(value).__name__}, not a number; choose another"
    )


class EarlyStoppingAction(BaseAction):
    """Asks for a stop when a metric has not improved on its best for `patience` evaluations in a row.

    An improvement beats the best so far by more than `atol + rtol * |best|`; NaN never does. Differences from T5X: it
    compares with the best, not with the value before; `patience=1` stops at the first evaluation that is no
    improvement, not at the very first one; NaN counts as no improvement.

    Args:
      metric: (task, metric name).
      mode: 'min' or 'max'.
      patience: evaluations without improvement that are one too many; at least 1.
      atol: absolute tolerance, in the metric's unit.
      rtol: tolerance relative to the best value.
    """

    def __init__(
        self, metric: tuple[str, str], mode: str, patience: int = 3, atol: float = 0.0, rtol: float = 0.0
    ) -> None:
        if mode not in ("min", "max"):
            raise errors.ConfigError(f"early stopping mode={mode!r}; use 'min' or 'max'")
        if patience < 1 or atol < 0 or rtol < 0:
            raise errors.ConfigError(
                f"early stopping patience={patience}, atol={atol}, rtol={rtol}; use 1 or more, 0 or more"
            )
        self._task, self._metric = metric
        self._sign = 1.0 if mode == "min" else -1.0
        self._patience, self._atol, self._rtol = patience, atol, rtol
        self._best: float | None = None
        self._bad = 0

    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns True when patience is at its end."""
        value = metric_value(metrics_by_task, self._task, self._metric)
        if self._improves(value):
            self._best, self._bad = value, 0
        else:
            self._bad += 1
        return self._bad >= self._patience

    def _improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best is None:
            return True
        return self._sign * (self._best - value) > self._atol + self._rtol * abs(self._best)

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value so far (None before any) and the evaluations since without improvement."""
        return {"best": self._best, "bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up `state_dict`."""
        self._best, self._bad = state["best"], state["bad"]

    @property
    def watched(self) -> tuple[str, str]:
        """The metric that has to improve."""
        return self._task, self._metric

    @property
    def reason(self) -> str:
        """Which metric stood still and for how long."""
        best = "none" if self._best is None else f"{self._best:.4g}"
        waited = counting.count(self._bad, "evaluation")
        return f"early stopping: {self._task}/{self._metric} no better than {best} for {waited}"


class TerminateOnNanAction(BaseAction):
    """Asks for a stop when a metric is NaN or infinite; the last checkpoint before that stays, whatever is kept.

    Attributes:
      finite_step: the last step at which the metric was finite; None before any.
    """

    def __init__(self, task: str, metric: str = "loss") -> None:
        self._task, self._metric = task, metric
        self._last = 0.0
        self.finite_step: int | None = None

    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns True unless the metric is finite."""
        self._last = metric_value(metrics_by_task, self._task, self._metric)
        if not math.isfinite(self._last):
            return True
        step = getattr(train_state, "step", None)
        self.finite_step = self.finite_step if step is None else int(step)
        return False

    def state_dict(self) -> dict[str, Any]:
        """Returns the last step at which all was well."""
        return {} if self.finite_step is None else {"finite_step": self.finite_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up `state_dict`."""
        self.finite_step = int(state["finite_step"])

    @property
    def watched(self) -> tuple[str, str]:
        """The metric that has to stay finite."""
        return self._task, self._metric

    @property
    def reason(self) -> str:
        """Which metric was lost."""
        return f"terminate on NaN: {self._task}/{self._metric} is {self._last}"


def run_all(actions: Sequence[BaseAction], train_state: Any, metrics_by_task: MetricsByTask) -> list[str]:
    """Runs every action, none skipped, and returns the reasons of those that ask for a stop."""
    asked = [(action, action.run(train_state, metrics_by_task)) for action in actions]
    return [action.reason for action, stop in asked if stop]
