"""Whether the state in a checkpoint fits a run, and what becomes of what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5core import errors, trees

Tree = dict[str, Any]
ANY_DTYPE = "any"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """What may differ between a checkpoint and the run that starts from it.

    Attributes:
      strict: whether leaves that the run has no place for are refused.
      may_draw: tells by path whether a leaf that the checkpoint lacks may be drawn from the seed.
      dtype: that parameters may be cast to, or ANY_DTYPE; None casts nothing.
      if_missing: what to do about a leaf that it lacks.
      if_extra: what to do about one that the run has no place for.
      same: how to have a run that it fits.
      another: how to get out of the way of a checkpoint that does not fit.
    """

    strict: bool = True
    may_draw: Callable[[str], bool] = lambda path: False
    dtype: str | None = None
    if_missing: str = "name where it comes from in assignment_map"
    if_extra: str = "drop it in assignment_map, or set strict=False"
    same: str = "use the model and optimizer settings it was trained with"
    another: str = "another model_dir"


def fit(stored: Tree, wanted: Tree, *, terms: Terms, draw: Callable[[], Tree], where: str) -> Tree:
    """Returns the leaves of `stored` as `wanted` describes them, laid out over the mesh.

    Args:
      stored: of the checkpoint.
      wanted: shapes with dtypes and shardings.
      terms: what may differ.
      draw: gives a tree with the leaves that may be missing.
      where: names the checkpoint.

    Raises:
      CheckpointError: it does not fit; see `check_fit`.
    """
    check_fit(stored, wanted, terms=terms, where=where)
    there, here = trees.flatten(stored), trees.flatten(wanted)
    drawn = trees.flatten(draw()) if here.keys() - there.keys() else {}
    return trees.unflatten({p: _laid_out(p, there[p], w) if p in there else drawn[p] for p, w in here.items()})


def check_fit(stored: Tree, wanted: Tree, *, terms: Terms, where: str) -> None:
    """Refuses a checkpoint whose state, or the shapes of it, do not fit the run.

    Raises:
      CheckpointError: a leaf is missing, too many, or of another shape or dtype; the message names it.
    """
    there, here = trees.flatten(stored), trees.flatten(wanted)
    missing = [path for path in here if path not in there and not terms.may_draw(path)]
    if missing:
        raise _misfit(where, missing, "is missing in it", f"{terms.same}, or {terms.if_missing}")
    extra = [path for path in there if path not in here]
    if extra and terms.strict:
        raise _misfit(where, extra, "is not in the model", f"{terms.same}, or {terms.if_extra}")
    # A parameter says more than the optimiser's state of it.
    for path in sorted(here.keys() & there.keys(), key=lambda path: (not path.startswith("params/"), path)):
        _check_leaf(path, there[path], here[path], terms=terms, where=where)


def _misfit(where: str, paths: list[str], what: str, remedy: str) -> errors.CheckpointError:
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return errors.CheckpointError(f"{where} does not fit: {paths[0]} {what}{more}; {remedy}")


def _check_leaf(path: str, stored: Any, wanted: Any, *, terms: Terms, where: str) -> None:
    if path == "step" and np.prod(stored.shape) == 1:
        return  # T5X has written it in several ways
    if stored.shape != wanted.shape:
        raise errors.CheckpointError(
            f"{where} does not fit: {path} is {list(stored.shape)} in it and {list(wanted.shape)} in this "
            f"run; {terms.same}, or {terms.another}"
        )
    is_param = path.startswith("params/") and jnp.issubdtype(stored.dtype, jnp.floating)
    may_cast = is_param and terms.dtype in (ANY_DTYPE, np.dtype(wanted.dtype).name)
    if stored.dtype != wanted.dtype and not may_cast:
        raise errors.CheckpointError(
            f"{where} does not fit: {path} is {np.dtype(stored.dtype).name} in it and "
            f"{np.dtype(wanted.dtype).name} in this run; set restore.dtype={np.dtype(wanted.dtype).name!r}, which "
            f"casts parameters"
        )


def _laid_out(path: str, stored: Any, wanted: Any) -> jax.Array:
    """Returns a leaf over the mesh; a parameter that was saved in another dtype is cast."""
    if path == "step":
        stored = np.asarray(stored).reshape(())
    if stored.dtype != wanted.dtype:
        stored = stored.astype(wanted.dtype)
    if isinstance(stored, jax.Array) and stored.sharding.is_equivalent_to(wanted.sharding, stored.ndim):
        return stored
    if isinstance(stored, jax.Array):
        return jax.device_put(stored, wanted.sharding)
    return jax.make_array_from_callback(wanted.shape, wanted.sharding, lambda at: np.asarray(stored)[at])
