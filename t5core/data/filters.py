"""Which documents a task leaves out, by its filters; each drop has a reason."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from t5core import errors, fingerprints, named, storage
from t5core.config.data_schema import TaskConfig
from t5core.config.preprocessing_schema import FilterConfig

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Filter(NamedTuple):
    """A criterion on the columns of a document (name -> text), and what it is called."""

    reason: str
    keeps: Callable[[Mapping[str, str]], bool]


def document_filters(task: TaskConfig, *, columns: Sequence[str]) -> tuple[Filter, ...]:
    """Returns the filters of `task` that look at documents; those that count tokens come after tokenising.

    Args:
      task: the task.
      columns: those that it reads.

    Raises:
      ConfigError: a filter names another column, or a function that cannot be used.
    """
    return tuple(
        Filter(entry.reason, _predicate(entry, task=task.name, columns=columns))
        for entry in task.filters
        if not entry.counts_tokens
    )


class TokenLimit(NamedTuple):
    """How many tokens a feature of a document may have, and what a drop is called."""

    feature: str
    minimum: int
    maximum: int | None
    reason: str


def token_limits(task: TaskConfig) -> tuple[TokenLimit, ...]:
    """Returns the filters of `task` that count tokens, one for each filter and feature.

    Raises:
      ConfigError: a filter names a feature that documents do not have before the objective is applied.
    """
    sides = ("inputs", "targets") if task.objective == "supervised" else ("targets",)
    limits: list[TokenLimit] = []
    for entry in task.filters:
        if not entry.counts_tokens:
            continue
        if entry.column is not None and entry.column not in sides:
            raise errors.ConfigError(
                f"task {task.name!r}: filter {entry.reason!r} counts the tokens of {entry.column!r}, which objective "
                f"{task.objective!r} does not have before it is applied; use 'targets'"
            )
        looked_at = sides if entry.column is None else (entry.column,)
        limits += [TokenLimit(side, entry.min_tokens or 0, entry.max_tokens, entry.reason) for side in looked_at]
    return tuple(limits)


def fingerprint(task: TaskConfig, *, tokens: bool = True) -> str:
    """Returns what decides which documents the filters of `task` leave, functions by the code of their modules.

    Args:
      task: the task.
      tokens: whether those that count tokens matter.
    """
    entries = [entry for entry in task.filters if tokens or not entry.counts_tokens]
    named_ones = [entry.function for entry in entries if entry.function is not None]
    code = fingerprints.functions_fingerprint(
        [named.given(name, told=f"task {task.name!r}: filter function={name!r}") for name in named_ones],
        modules={name.rpartition(".")[0] for name in named_ones},
    )
    return storage.fingerprint([[entry.model_dump(exclude={"name"}) for entry in entries], code])


def _predicate(entry: FilterConfig, *, task: str, columns: Sequence[str]) -> Callable[[Mapping[str, str]], bool]:
    if entry.function is not None:
        return _function(entry.function, task=task, columns=columns)
    if entry.column is not None and entry.column not in columns:
        raise errors.ConfigError(
            f"task {task!r}: filter {entry.reason!r}: {errors.unknown_name('column', entry.column, columns)}"
        )
    looked_at = (entry.column,) if entry.column is not None else tuple(columns)
    passes = _test(entry)
    return lambda document: all(passes(document[name]) for name in looked_at)


def _test(entry: FilterConfig) -> Callable[[str], bool]:
    if entry.min_characters is not None:
        least = entry.min_characters
        return lambda text: len(text) >= least
    if entry.max_characters is not None:
        most = entry.max_characters
        return lambda text: len(text) <= most
    expression = entry.must_match if entry.must_match is not None else entry.must_not_match
    assert expression is not None, "a filter has one criterion"
    search, wanted = re.compile(expression).search, entry.must_match is not None
    return lambda text: (search(text) is not None) == wanted


def _function(name: str, *, task: str, columns: Sequence[str]) -> Callable[[Mapping[str, str]], bool]:
    """Returns the user's function of a document: called with the columns that it names, or all for `**columns`."""
    told = f"task {task!r}: filter function={name!r}"
    function = named.given(name, told=told)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise errors.ConfigError(f"{told} cannot be used: {error}; give a function of {', '.join(columns)}") from error
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken = [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
    used = [column for column in columns if takes_all or column in taken]
    left = [parameter.name for parameter in parameters if _has_to_be_given(parameter) and parameter.name not in used]
    if left or not used:
        wrong = f"takes {left[0]!r}, which is no column that is read" if left else "takes no column"
        raise errors.ConfigError(f"{told} {wrong}; give a function of {', '.join(columns)}, or of **columns")
    return lambda document: bool(function(**{column: document[column] for column in used}))


def _has_to_be_given(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (*_BY_NAME, parameter.POSITIONAL_ONLY) and parameter.default is parameter.empty
