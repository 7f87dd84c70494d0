"""An action by the dotted name of one's own function or class, checked before any compute is spent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from t5core import errors, named
from t5core.actions.base import BaseAction, MetricsByTask


class CallAction(BaseAction):
    """Asks for a stop when `function(train_state, metrics_by_task, **arguments)` returns True."""

    def __init__(self, function: Any, arguments: Mapping[str, Any] | None = None) -> None:
        self._arguments = dict(arguments or {})
        self._function = named.given(function) if isinstance(function, str) else function
        self._name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))
        if not callable(self._function) or isinstance(self._function, type):
            raise errors.ConfigError(f"{self._name} is {self._function!r:.80}, not a function; name one")
        _require_fit(self._function, self._name, (None, None), self._arguments)

    def run(self, train_state: Any, metrics_by_task: MetricsByTask) -> bool:
        """Returns what the function says.

        Raises:
          ConfigError: it says neither yes nor no.
        """
        answer = self._function(train_state, metrics_by_task, **self._arguments)
        if isinstance(answer, bool) or (getattr(answer, "ndim", None) == 0 and str(answer.dtype) == "bool"):
            return bool(answer)
        raise errors.ConfigError(f"{self._name} returned {answer!r:.80}; return True to stop and False to go on")

    @property
    def reason(self) -> str:
        """Which function asked."""
        return f"{self._name} asked for it"


def build(name: str, arguments: Mapping[str, Any]) -> BaseAction:
    """Returns the action behind a dotted name: a function to call, or an instance of a class derived from BaseAction.

    Raises:
      ConfigError: there is nothing of that name, it is neither of the two, or it does not take `arguments`.
    """
    found = named.given(name)
    if not isinstance(found, type):
        return CallAction(name, arguments)
    if not issubclass(found, BaseAction):
        raise errors.ConfigError(f"the class {name} is no action; derive it from t5core.actions.base.BaseAction")
    if inspect.isabstract(found):
        raise errors.ConfigError(f"the class {name} lacks {', '.join(sorted(found.__abstractmethods__))}; write it")
    _require_fit(found, name, (), arguments)
    try:
        return found(**arguments)
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(f"{name} refuses its arguments {dict(arguments)}: {error}") from error


def _require_fit(function: Any, name: str, given: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
    """Refuses a call that would fail."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: it does not tell
    parameters = list(signature.parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    known = [parameter.name for parameter in parameters[len(given) :]]
    unknown = next((key for key in arguments if key not in known and not takes_any), None)
    if unknown is not None:
        raise errors.ConfigError(f"{name}{signature}: {errors.unknown_name('argument', unknown, known)}")
    try:
        signature.bind(*given, **arguments)
    except TypeError as error:
        first = ["train_state", "metrics_by_task"][: len(given)]
        call = ", ".join([*first, *(f"{key}=..." for key in arguments)])
        raise errors.ConfigError(
            f"{name}{signature} cannot be called as ({call}): {error}; mend its arguments"
        ) from error
