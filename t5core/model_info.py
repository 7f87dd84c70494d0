"""What a model consists of, as a text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5core import trees
from t5core.state import TrainState

FILE = "model-info.txt"


def describe(state: TrainState, logical_axes: Mapping[str, tuple[str | None, ...]]) -> str:
    """Returns a line for each parameter, their number, and after a blank line one for each array of the optimiser.

    Args:
      state: shapes with their shardings.
      logical_axes: the names of each parameter's axes, by path.
    """
    params = trees.flatten(state.params)
    lines = [_line(path, leaf, logical_axes.get(path)) for path, leaf in params.items()]
    lines += [f"Total number of parameters: {sum(leaf.size for leaf in params.values())}", ""]
    lines += [_line(path, leaf, None) for path, leaf in trees.flatten(state.opt_state).items()]
    return "\n".join(lines) + "\n"


def _line(path: str, leaf: Any, axes: tuple[str | None, ...] | None) -> str:
    dims = leaf.shape if axes is None else [f"{axis}={size}" for axis, size in zip(axes, leaf.shape, strict=True)]
    shape = f"({', '.join(map(str, dims))})"
    spec = f"({', '.join(map(str, leaf.sharding.spec))})"
    return f"Variable {path:<70} size {leaf.size:<12} shape {shape:<40} partition spec {spec}"
