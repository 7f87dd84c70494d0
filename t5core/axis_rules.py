"""Logical axes: what each dimension of a parameter means, and along which mesh axis that meaning is laid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen as nn
from flax.linen import spmd
from jax.sharding import PartitionSpec

from t5core import errors, trees

Axes = tuple[str | None, ...]
Rules = tuple[tuple[str, str | None], ...]

_MODEL_AXES = ("vocab", "mlp", "heads", "joined_kv")
_WHOLE_AXES = ("kv", "relpos_buckets", "abspos_buckets", "length", "layers", "stack", "mlp_activations")
_EMBED_AXES: dict[tuple[int, int], tuple[str | None, ...]] = {
    (1, 1): (None,),
    (2, 1): ("model",),
    (1, 2): ("data",),
    (2, 2): ("model", "data"),
}


def standard_logical_axis_rules(
    *,
    activation_partitioning_dims: int = 1,
    parameter_partitioning_dims: int = 1,
    additional_rules: Sequence[tuple[str, str | None]] = (),
) -> Rules:
    """Returns (logical axis, mesh axis) pairs; the first one whose mesh axis an array has not used yet wins.

    Args:
      activation_partitioning_dims: 2 also splits the embedding dimension over 'model'.
      parameter_partitioning_dims: 2 also splits each parameter over 'data', so that no device holds a whole copy.
      additional_rules: more pairs, of the lowest priority.

    Raises:
      ConfigError: a number of dimensions other than 1 or 2.

    Source: t5x/partitioning.py@cc342d4 `standard_logical_axis_rules`.
    """
    dims = (activation_partitioning_dims, parameter_partitioning_dims)
    if dims not in _EMBED_AXES:
        raise errors.ConfigError(
            f"activation_partitioning_dims={dims[0]}, parameter_partitioning_dims={dims[1]} is no layout; "
            f"give 1 or 2 for each"
        )
    return (
        ("batch", "data"),
        *((name, "model") for name in _MODEL_AXES),
        *((name, None) for name in _WHOLE_AXES),
        *(("embed", mesh_axis) for mesh_axis in _EMBED_AXES[dims]),
        *additional_rules,
    )


def logical_axes(tree: Mapping[str, Any]) -> dict[str, Axes]:
    """Returns the axis names of every parameter by its path, such as 'decoder/layers_0/mlp/wo/kernel'.

    Args:
      tree: nested dicts with boxed parameters (`nn.LogicallyPartitioned`), partition specs of logical names, or tuples
        of logical names as leaves.

    Raises:
      ConfigError: a parameter comes without names; the message names it.
    """
    return {path: _names(path, leaf) for path, leaf in trees.flatten(tree).items()}


def _names(path: str, leaf: Any) -> Axes:
    if isinstance(leaf, nn.Partitioned):
        return tuple(leaf.names)
    if isinstance(leaf, (tuple, PartitionSpec)):
        return tuple(leaf)
    raise errors.ConfigError(
        f"parameter {path} has no axis names (it is a {type(leaf).__name__}); "
        f"create it with nn.with_logical_partitioning"
    )


def mesh_axes(path: str, axes: Axes, rules: Rules) -> PartitionSpec:
    """Returns how the parameter at `path` is laid over the mesh.

    Raises:
      ConfigError: a logical axis without a rule. Difference from T5X: it leaves such a dimension whole, silently.
    """
    known = {name for name, _ in rules}
    for name in axes:
        if name is not None and name not in known:
            raise errors.ConfigError(f"parameter {path}: {errors.unknown_name('logical axis', name, known)}")
    spec = spmd.logical_to_mesh_axes(axes, rules)
    assert spec is not None, "axes are given, so flax answers with a spec"
    return spec
