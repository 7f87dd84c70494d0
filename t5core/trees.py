"""Nested dicts of arrays as flat ones, with a path such as 'decoder/decoder_norm/scale' for each leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import traverse_util


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves of nested dicts by path; an empty dict has no leaves."""
    return {str(path): leaf for path, leaf in traverse_util.flatten_dict(tree, sep="/").items()}


def paths_within(path: str) -> list[str]:
    """Returns every path that is a run of components of `path`, the longest first.

    The state of an optimiser holds a parameter's path somewhere in its own: 'param_states/0/mu/decoder_norm/scale'.
    """
    parts = path.split("/")
    count = len(parts)
    return ["/".join(parts[i : i + size]) for size in range(count, 0, -1) for i in range(count - size + 1)]


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dicts whose leaves `flat` holds by path."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")
