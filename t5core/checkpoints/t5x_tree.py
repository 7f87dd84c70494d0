"""One state under two sets of names: this project's and those of T5X's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_t5x(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {'target', 'state': {'step', 'param_states', ...}} for {'params', 'step', 'opt_state'}."""
    return {"target": state["params"], "state": {"step": state["step"], **state["opt_state"]}}


def from_t5x(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree that `to_t5x` turned into `state`; what `state` lacks is missing in the result too."""
    inner = dict(state.get("state", {}))
    step = {"step": inner.pop("step")} if "step" in inner else {}
    return {**step, "params": state.get("target", {}), "opt_state": inner}
