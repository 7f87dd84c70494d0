"""The actions that a run's configuration names: built, and checked against the evaluations that there will be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from t5core import errors
from t5core.actions import called
from t5core.actions.base import BaseAction, EarlyStoppingAction, TerminateOnNanAction
from t5core.actions.budget import BudgetAction, Spent
from t5core.config.action_schema import (
    ActionConfig,
    BudgetConfig,
    CallConfig,
    EarlyStoppingConfig,
    KeepBestConfig,
    TerminateOnNanConfig,
)
from t5core.config.data_schema import MIXTURE, DataConfig, TaskConfig
from t5core.config.schema import PretrainConfig
from t5core.metrics.summarise import BY_FEATURE, EVALUATION_METRICS

# Gives the run's decoded texts more than the names of its metrics.
_LENGTH_LIMIT = "length_limit_fraction"


def after_an_evaluation(configs: Iterable[ActionConfig]) -> dict[str, BaseAction]:
    """Returns the actions that look at an evaluation's metrics, by key: place among all actions and name."""
    built = {f"{place}-{config.name}": _build(config) for place, config in enumerate(configs)}
    return {key: action for key, action in built.items() if action is not None}


def after_a_segment(configs: Iterable[ActionConfig], *, spent: Callable[[], Spent]) -> dict[str, BaseAction]:
    """Returns the actions that look at the run whether it was evaluated or not, by key; `spent` is what it took."""
    return {
        f"{place}-{config.name}": BudgetAction(seconds=config.seconds, target_tokens=config.target_tokens, spent=spent)
        for place, config in enumerate(configs)
        if isinstance(config, BudgetConfig)
    }


def _build(config: ActionConfig) -> BaseAction | None:
    """Returns the action; None for one that does not look at metrics: retention and the budget have their own way."""
    match config:
        case EarlyStoppingConfig():
            return EarlyStoppingAction(config.watched, config.mode, config.patience, atol=config.atol, rtol=config.rtol)
        case TerminateOnNanConfig():
            return TerminateOnNanAction(*config.watched)
        case CallConfig():
            return called.build(config.function, config.arguments)
        case BudgetConfig() | KeepBestConfig():
            return None


def check(config: PretrainConfig) -> None:
    """Refuses what could not work later: functions that cannot be called, and metrics that nothing will give.

    Raises:
      ConfigError: the first of them, with the names there are.
    """
    for place, action in enumerate(config.train.actions):
        where = f"train.actions.{place}"
        try:
            built = _build(action)
        except errors.ConfigError as error:
            raise errors.ConfigError(f"{where}: {error}") from error
        watched = built.watched if built is not None else action.watched
        if watched is not None:
            _check_watched(where, watched, config.data)
    if config.publish is not None:
        _check_watched("publish", config.publish.watched, config.data)


def _check_watched(where: str, watched: tuple[str, str], data: DataConfig) -> None:
    task, metric = watched
    if task not in data.evaluated:
        raise errors.ConfigError(f"{where}: {errors.unknown_name('task', task, data.evaluated)}")
    tasks = {task.name: task for task in data.tasks}
    known = _metric_names(tasks[task]) if task in tasks else EVALUATION_METRICS
    if known is not None and metric not in known and not metric.startswith(BY_FEATURE):
        raise errors.ConfigError(f"{where}: {errors.unknown_name(f'metric of task {task!r}', metric, known)}")


def _metric_names(task: TaskConfig) -> Collection[str] | None:
    """Returns the metrics of a task's evaluation; None when functions of the user's own give names of their own."""
    from t5core.evaluation.metric_functions import METRICS

    if task.is_seqio or not set(task.metrics) <= METRICS.keys():
        return None
    decoded = [*task.metrics, _LENGTH_LIMIT] if task.metrics else []
    return [*EVALUATION_METRICS, *decoded]


def check_evaluated(config: PretrainConfig, splits: Mapping[str, Collection[str]]) -> None:
    """Refuses an action, or a publication, by a task which was found to have nothing to evaluate.

    Args:
      config: of the run.
      splits: of each task's dataset, by task.

    Raises:
      ConfigError: there is one.
    """
    evaluated = [task for task, names in splits.items() if "validation" in names]
    if set(evaluated) & set(config.data.mixed):
        evaluated.append(MIXTURE)
    by_place = [(f"train.actions.{place}", _watched(action)) for place, action in enumerate(config.train.actions)]
    by_place += [("publish", config.publish.watched)] if config.publish is not None else []
    for where, watched in by_place:
        if watched is not None and watched[0] not in evaluated:
            raise errors.ConfigError(
                f"{where} watches task {watched[0]!r}, which has no validation split; tasks that have "
                f"one: {', '.join(sorted(evaluated)) or 'none'}"
            )


def _watched(action: ActionConfig) -> tuple[str, str] | None:
    built = _build(action)
    return built.watched if built is not None else action.watched
