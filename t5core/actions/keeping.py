"""Keeping checkpoints for their metrics: the best ones, the last before NaN, and how retention learns of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from t5core import errors
from t5core.actions.base import ActionMode, BaseAction, MetricsByTask, TerminateOnNanAction, metric_value
from t5core.actions.decision import ActionSet
from t5core.checkpoint_config import SaveCheckpointConfig
from t5core.checkpoints.retention import BestBy, RetentionPolicy
from t5core.config.action_schema import KeepBestConfig, TerminateOnNanConfig
from t5core.config.publish_schema import PublishConfig
from t5core.config.train_schema import TrainConfig
from t5core.rundir import RunDirectory

_Kind = TypeVar("_Kind", bound=BaseAction)
MetricsByStep = dict[int, dict[str, float]]


class KeepBestAction(BaseAction):
    """Keeps the checkpoints with the best values of a metric, beside the newest; never stops.

    A state that is among the best is saved when it has been evaluated, wherever checkpoints are due otherwise. Several
    of these actions keep the best by several metrics.

    Args:
      metric: (task, metric name) of the evaluation under whose mode the action stands.
      mode: 'min' or 'max'.
      keep: checkpoints to keep; of equally good ones the later. NaN is never among the best.

    Source: the idea of t5x/checkpoints.py@cc342d4 `SaveBestCheckpointer`. Difference from T5X: it is given the metrics
    of evaluations, it reads no event files.
    """

    def __init__(self, metric: tuple[str, str], mode: str = "min", keep: int = 1) -> None:
        if mode not in ("min", "max"):
            raise errors.ConfigError(f"keeping the best, mode={mode!r}; use 'min' or 'max'")
        if keep < 1:
            raise errors.ConfigError(f"keeping the best keep={keep} checkpoints keeps none; give 1 or more")
        self._task, self._metric = metric
        self._mode, self._keep = mode, keep
        self._best: dict[int, float] = {}

    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns False, having noted whether the state is among the best."""
        value = metric_value(metrics_by_task, self._task, self._metric)
        if not math.isnan(value):
            sign = 1 if self._mode == "min" else -1
            known = {**self._best, int(train_state.step): value}
            ranked = sorted(known, key=lambda step: (sign * known[step], -step))
            self._best = {step: known[step] for step in ranked[: self._keep]}
        return False

    @property
    def values(self) -> Mapping[int, float]:
        """The metric of each of the best steps."""
        return self._best

    def rule(self, name: str) -> BestBy:
        """Returns the rule by which retention keeps them, given their metric as `name`."""
        return BestBy(metric=name, mode="min" if self._mode == "min" else "max", count=self._keep)

    def state_dict(self) -> dict[str, Any]:
        """Returns the metric of each of the best steps."""
        return {"best": {str(step): value for step, value in self._best.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up `state_dict`."""
        self._best = {int(step): float(value) for step, value in state["best"].items()}

    @property
    def watched(self) -> tuple[str, str]:
        """The metric that decides."""
        return self._task, self._metric


def _in(actions: ActionSet, kind: type[_Kind]) -> dict[str, _Kind]:
    by_key = {key: action for mode in ActionMode for key, action in actions.of(mode).items()}
    return {key: action for key, action in by_key.items() if isinstance(action, kind)}


def check(actions: ActionSet, save: SaveCheckpointConfig | None) -> None:
    """Refuses actions that could keep nothing.

    Raises:
      ConfigError: everything is kept anyway, nothing is saved, or the action stands under TRAIN.
    """
    for key in _in(actions, KeepBestAction):
        if key in actions.of(ActionMode.TRAIN):
            raise errors.ConfigError(f"action {key}: there are no checkpoints of TRAIN metrics; use an evaluation's")
        if save is None or save.keep is None:
            given = "nothing is saved" if save is None else "SaveCheckpointConfig.keep=None keeps all checkpoints"
            raise errors.ConfigError(
                f"action {key} has no effect: {given}; give keep the number of newest ones to keep"
            )


def is_among_the_best(actions: ActionSet, step: int) -> bool:
    """Returns on every process whether one of the actions wants the checkpoint of `step`."""
    found = _in(actions, KeepBestAction)
    if not found:
        return False
    from t5core import agreement  # imports JAX

    return bool(agreement.from_primary(int(any(step in action.values for action in found.values()))))


def policy_with(actions: ActionSet, *, keep: int | None, keep_period: int | None) -> RetentionPolicy:
    """Returns what is kept of a run of `train`: what its configuration says, and what the actions want."""
    best = tuple(action.rule(key) for key, action in _in(actions, KeepBestAction).items())
    finite = tuple(_in(actions, TerminateOnNanAction))
    return RetentionPolicy(keep=keep, keep_period=keep_period, best=best, finite=finite)


def known(actions: ActionSet) -> MetricsByStep:
    """Returns by step what such a policy goes by, under the actions' keys; NaN where one knows nothing of a step."""
    values: dict[str, Mapping[int, float]] = {k: action.values for k, action in _in(actions, KeepBestAction).items()}
    for key, action in _in(actions, TerminateOnNanAction).items():
        values[key] = {} if action.finite_step is None else {action.finite_step: 0.0}
    steps = sorted({step for by_step in values.values() for step in by_step})
    return {step: {key: by_step.get(step, math.nan) for key, by_step in values.items()} for step in steps}


# In a run of the stages a checkpoint is evaluated by a later task: what is known of it lies in the run directory.


def policy_of(train: TrainConfig, publish: PublishConfig | None = None) -> RetentionPolicy:
    """Returns what a run's configuration wants kept; what is to be published is the best by its own metric."""
    actions = [action for action in train.actions if isinstance(action, KeepBestConfig)]
    best = [BestBy(metric="/".join(a.watched), mode=a.mode, count=a.keep) for a in actions]
    best += [BestBy(metric="/".join(publish.watched), mode=publish.mode)] if publish else []
    finite = [action for action in train.actions if isinstance(action, TerminateOnNanConfig)]
    return RetentionPolicy(
        keep=train.keep_checkpoints,
        checkpoint_period=train.checkpoint_period,
        keep_period=train.keep_period,
        best=tuple(dict.fromkeys(best)),
        finite=tuple("/".join(action.watched) for action in finite),
    )


def evaluated(directory: RunDirectory) -> MetricsByStep:
    """Returns the recorded metrics of each evaluated step, as `task/metric`."""
    return {
        evaluation.step: {
            f"{task}/{name}": value for task, figures in evaluation.metrics.items() for name, value in figures.items()
        }
        for evaluation in directory.evaluations()
    }
