"""What the actions make of metrics: one answer for all processes, and a stop that holds once it was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from t5core import errors
from t5core.actions import base
from t5core.actions.base import ActionMode, BaseAction, MetricsByTask

# By `ActionMode`, or by its name as in T5X.
ActionMap = Mapping[Any, Sequence[BaseAction]]
_GO_ON, _STOP, _NO_METRICS, _FAILED = range(4)


def run_actions(mode: ActionMode, actions: ActionMap, train_state: Any, metrics_by_task: MetricsByTask | None) -> bool:
    """Returns on every process whether an action of `mode` asks, on the first process, for a stop.

    Every action of the mode runs, whatever the others answer, and on the first process only: the metrics of the others
    play no part.

    Raises:
      RuntimeError: there are no metrics on the first process; raised on every process.
      RecoverableError: an action failed on the first process, which raises the failure itself.

    Source: t5x/train.py@cc342d4 `run_actions`. Difference from T5X: there the first process alone raises, and leaves
    the others waiting.
    """
    chosen = [*actions.get(mode, ()), *actions.get(mode.name, ())]

    def decide() -> bool:
        return bool(base.run_all(chosen, train_state, _present(metrics_by_task)))

    return _agreed(decide)


def _present(metrics_by_task: MetricsByTask | None) -> MetricsByTask:
    if not metrics_by_task:
        raise NoMetricsError
    return metrics_by_task


class NoMetricsError(RuntimeError):
    """Actions were called without metrics."""

    def __init__(self) -> None:
        super().__init__("the metrics are unexpectedly empty on process 0; give those of an evaluation")


def _agreed(decide: Callable[[], bool]) -> bool:
    """Returns on every process what the first decides; a failure there ends all of them."""
    from t5core import agreement  # imports JAX, which the stage between two segments does without

    answer, failure = _GO_ON, None
    if agreement.is_primary():
        try:
            answer = _STOP if decide() else _GO_ON
        except NoMetricsError:
            answer = _NO_METRICS
        except Exception as error:
            answer, failure = _FAILED, error  # raised below: the others are waiting for an answer
    answer = agreement.from_primary(answer)
    if failure is not None:
        raise failure
    if answer == _NO_METRICS:
        raise NoMetricsError
    if answer == _FAILED:
        raise errors.RecoverableError("an action failed on the first process; see its message")
    return answer == _STOP


class ActionSet:
    """The actions of a run with their memory; a stop that one of them asked for holds from then on.

    Args:
      actions: by mode and key.
      alone: whether this process decides for itself, instead of the first one for all.

    Attributes:
      stop: whether a stop was asked for, the same on every process.
      asked: the reason of each action that asked for it, by key; known to the first process.
    """

    def __init__(self, actions: Mapping[ActionMode, Mapping[str, BaseAction]], *, alone: bool = False) -> None:
        self._actions = actions
        self._alone = alone
        self.stop = False
        self.asked: dict[str, str] = {}

    def of(self, mode: ActionMode) -> Mapping[str, BaseAction]:
        """Returns the actions of a mode by key."""
        return self._actions.get(mode, {})

    def still_asking(self, asked: Collection[str]) -> set[str]:
        """Returns those of the keys that belong to an action whose stop still holds."""
        actions = {key: action for by_key in self._actions.values() for key, action in by_key.items()}
        return {key for key in asked if key in actions and actions[key].still_asks}

    def look(self, mode: ActionMode, train_state: Any, metrics_by_task: MetricsByTask | None) -> bool:
        """Returns whether a stop was asked for, now or before, after every action of `mode` has looked at the metrics.

        Raises:
          RuntimeError, RecoverableError: as `run_actions`.
        """
        actions = self.of(mode)

        def decide() -> bool:
            metrics = _present(metrics_by_task)
            found = [key for key, action in actions.items() if action.run(train_state, metrics)]
            self.asked |= {key: actions[key].reason for key in found}
            return bool(found)

        if actions and (decide() if self._alone else _agreed(decide)):
            self.stop = True
        return self.stop

    def memory(self) -> dict[str, Any]:
        """Returns what each action has to remember, by key; those without memory are left out.

        Raises:
          ConfigError: an action remembers something that JSON cannot hold.
        """
        actions = {key: action for by_key in self._actions.values() for key, action in by_key.items()}
        states = {key: state for key, action in actions.items() if (state := action.state_dict())}
        try:
            json.dumps(states)
        except (TypeError, ValueError) as error:
            raise errors.ConfigError(
                f"the state_dict of an action is no JSON ({error}): {states}; give numbers, texts and lists"
            ) from error
        return states

    def load(self, memory: Mapping[str, Any]) -> None:
        """Gives each action what it had to remember; one that was not there then begins anew."""
        for actions in self._actions.values():
            for key, action in actions.items():
                if key in memory:
                    action.load_state_dict(memory[key])


def action_set(actions: ActionMap | None) -> ActionSet:
    """Returns the actions that `train` was given, each under a key of mode, position and class.

    Raises:
      ConfigError: a mode that does not exist, or something that is no action.
    """
    by_mode: dict[ActionMode, dict[str, BaseAction]] = {}
    for name, given in (actions or {}).items():
        mode = name if isinstance(name, ActionMode) else ActionMode.__members__.get(name)
        if mode is None:
            known = ActionMode.__members__
            raise errors.ConfigError(errors.unknown_name("key of actions", str(name), known))
        for position, action in enumerate(given):
            if not isinstance(action, BaseAction):
                raise errors.ConfigError(
                    f"actions[{mode.name!r}][{position}] is a {type(action).__name__}; derive it from BaseAction"
                )
            by_mode.setdefault(mode, {})[f"{mode.name}/{position}-{type(action).__name__}"] = action
    return ActionSet(by_mode)
