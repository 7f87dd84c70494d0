"""Several optimisers, each for the parameters that its pattern matches; the rest stays as it is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax.typing import ArrayLike

from t5core import errors, trees
from t5core.optim.base import Optimizer, OptState, Params, clip_by_global_norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """The parameters of one optimiser.

    Attributes:
      pattern: regular expression that matches the whole path, such as 'decoder/.*'; None takes every parameter that no
        other pattern matches.
      optimizer: what updates them.
    """

    pattern: str | None
    optimizer: Optimizer


class MultiOptimizer:
    """Updates each group of parameters by its own optimiser, all at the same rate.

    What no group matches is frozen: it keeps its bits and has no state. The state of a single group is that of its
    optimiser. With several, those that keep their state by parameter (Adafactor) share one tree, as in T5X, so that
    regrouping does not change the checkpoint; the state of any other lies under "groups" by its position.

    Source: t5x/optimizers.py@cc342d4 `MultiOptimizer`. Differences from T5X: a pattern that matches nothing is refused,
    and optax optimisers work in groups.

    Args:
      groups: at least one.
      frozen: patterns of parameters that are not trained.
      clip_global_norm: largest norm of the gradient of all that is trained; None does not clip.

    Raises:
      ConfigError: a pattern that is no regular expression.
    """

    def __init__(
        self, groups: Sequence[ParameterGroup], *, frozen: Sequence[str] = (), clip_global_norm: float | None = None
    ) -> None:
        self._groups = tuple(groups)
        self._clip_global_norm = clip_global_norm
        self._patterns = {i: _compiled(g.pattern) for i, g in enumerate(self._groups) if g.pattern is not None}
        self._frozen = [_compiled(pattern) for pattern in frozen]
        self._rest = next((i for i, group in enumerate(self._groups) if group.pattern is None), None)

    @property
    def state_per_parameter(self) -> bool:
        """Whether every group keeps its state by parameter."""
        return all(group.optimizer.state_per_parameter for group in self._groups)

    def check(self, paths: Collection[str]) -> None:
        """Refuses groups that do not fit parameters with these paths.

        Raises:
          ConfigError: two patterns match one parameter, a pattern matches none, or nothing is left to train.
        """
        used = {pattern.pattern for path in paths for _, pattern in self._matches(path)}
        for pattern in [*self._patterns.values(), *self._frozen]:
            if pattern.pattern not in used:
                example = errors.nearest(pattern.pattern, paths) or min(paths)
                raise errors.ConfigError(
                    f"optimizer pattern {pattern.pattern!r} matches no parameter; "
                    f"a pattern matches a whole path, such as {example!r}"
                )
        if not any(self._groups_by_path(paths)):
            raise errors.ConfigError("every parameter is frozen; leave at least one to an optimizer")

    def _matches(self, path: str) -> list[tuple[int | None, re.Pattern[str]]]:
        """Returns the (group, pattern) that match `path`; the group of a frozen pattern is None."""
        candidates = [*self._patterns.items(), *((None, pattern) for pattern in self._frozen)]
        return [(group, pattern) for group, pattern in candidates if pattern.fullmatch(path)]

    def _group_of(self, path: str) -> int | None:
        matches = self._matches(path)
        if len(matches) > 1:
            first, second = (pattern.pattern for _, pattern in matches[:2])
            raise errors.ConfigError(
                f"optimizer patterns {first!r} and {second!r} both match parameter {path}; make them disjoint"
            )
        return matches[0][0] if matches else self._rest

    def _groups_by_path(self, paths: Collection[str]) -> list[list[str]]:
        """Returns the paths of each group."""
        group_of = {path: self._group_of(path) for path in paths}
        return [[path for path in paths if group_of[path] == i] for i in range(len(self._groups))]

    def init(self, params: Params) -> OptState:
        """Returns the state before the first update.

        Raises:
          ConfigError: the groups do not fit the parameters (see `check`).
        """
        flat = trees.flatten(params)
        self.check(flat)
        parts = self._groups_by_path(flat)
        states = [group.optimizer.init(_subtree(flat, paths)) for group, paths in zip(self._groups, parts, strict=True)]
        return self._joined(states)

    def apply_gradient(
        self, grads: Params, params: Params, opt_state: OptState, *, step: ArrayLike, learning_rate: ArrayLike
    ) -> tuple[Params, OptState]:
        """Returns the parameters and the state after one update (see `Optimizer`)."""
        flat_params = trees.flatten(params)
        parts = self._groups_by_path(flat_params)
        trained = [path for paths in parts for path in paths]
        grads = _subtree(trees.flatten(grads), trained)
        if self._clip_global_norm is not None:
            grads = clip_by_global_norm(grads, self._clip_global_norm)
        flat_grads = trees.flatten(grads)
        new_params = dict(flat_params)
        states = []
        for i, (group, paths) in enumerate(zip(self._groups, parts, strict=True)):
            updated, state = group.optimizer.apply_gradient(
                _subtree(flat_grads, paths),
                _subtree(flat_params, paths),
                self._state_of(i, opt_state),
                step=step,
                learning_rate=learning_rate,
            )
            new_params |= trees.flatten(updated)
            states.append(state)
        return trees.unflatten(new_params), self._joined(states)

    def _joined(self, states: Sequence[OptState]) -> OptState:
        if len(states) == 1:
            return states[0]
        shared, others = {}, {}
        for i, state in enumerate(states):
            if self._groups[i].optimizer.state_per_parameter:
                shared |= trees.flatten(state["param_states"])
            else:
                others[str(i)] = state
        joined = {"param_states": trees.unflatten(shared), "groups": others}
        return {name: part for name, part in joined.items() if part}

    def _state_of(self, group: int, opt_state: OptState) -> OptState:
        """Returns the state of one group; in a shared tree it finds its own parameters by their paths."""
        if len(self._groups) == 1 or self._groups[group].optimizer.state_per_parameter:
            return opt_state
        return opt_state["groups"][str(group)]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise errors.ConfigError(
            f"optimizer pattern {pattern!r} is no regular expression: {error}; correct it"
        ) from error


def _subtree(flat: Mapping[str, Any], paths: Collection[str]) -> Params:
    return trees.unflatten({path: flat[path] for path in paths})
