"""Where a run starts: from its own last checkpoint, else from another run's, else from its seed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t5core import errors, storage, trees
from t5core.checkpoint_config import RestoreCheckpointConfig
from t5core.checkpoints import index, native_store
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.record import CheckpointRecord
from t5core.checkpoints.store import CheckpointStore
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x
from t5core.state import TrainState

ORBAX_FOLDER = "checkpoints"
Kind = Literal["orbax", "native"]
Tree = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint to start from: `step` in the folder `folder`; `is_own` when it is the run's own last one."""

    kind: Kind
    folder: str
    step: int
    is_own: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """The state that a run starts from.

    Attributes:
      record: of its checkpoint; None: T5X's, or drawn from the seed.
      found: where the checkpoint lay.
      seconds: what it took.
    """

    state: TrainState
    record: CheckpointRecord | None
    found: Found | None
    seconds: float

    @property
    def step(self) -> int:
        """The step of the state."""
        return int(self.state.step)


def find(model_dir: str, restore: RestoreCheckpointConfig | None) -> Found | None:
    """Returns the checkpoint that a run starts from: the last of `model_dir`, else what `restore` names, else None.

    Looks at names only.

    Raises:
      CheckpointError: there is nothing where a checkpoint was promised, or only damaged ones.
    """
    own = _latest(model_dir)
    if own is not None:
        return dataclasses.replace(own, is_own=True)
    if restore is None or not restore.path:
        return None
    assert isinstance(restore.path, str), "preparation refuses several paths"
    return _specific(restore.path) if restore.mode == "specific" else _promised(restore.path)


def _latest(folder: str) -> Found | None:
    """Returns the last checkpoint of either kind below `folder`, or None when there never was any."""
    orbax, numbered = index.survey(f"{folder}/{ORBAX_FOLDER}"), index.survey(folder)
    candidates: list[tuple[int, Kind, str]] = [
        *((step, "orbax", f"{folder}/{ORBAX_FOLDER}") for step in orbax.committed),
        *((step, "orbax", folder) for step in numbered.committed),
        *((step, "native", folder) for step in native_store.committed_steps(folder)),
    ]
    if candidates:
        step, kind, where = max(candidates)
        return Found(kind=kind, folder=where, step=step, is_own=False)
    broken = [*orbax.broken, *orbax.set_aside, *native_store.broken_steps(folder)]
    if broken:
        raise errors.CheckpointError(
            f"no usable checkpoint in {folder} (damaged: {', '.join(map(str, broken))}); restore one from a copy, or "
            f"choose another model_dir to start anew"
        )
    return None


def _promised(path: str) -> Found:
    found = _latest(path.rstrip("/")) if storage.path(path).is_dir() else None
    if found is None:
        what = "has no checkpoint" if storage.path(path).is_dir() else "is no folder"
        raise errors.CheckpointError(
            f"restore.path={path!r} {what}; name a folder that holds checkpoints, or set restore=None to start anew"
        )
    return found


def _specific(path: str) -> Found:
    location = storage.path(path.rstrip("/"))
    folder = str(location.parent)
    if location.name.isdecimal() and int(location.name) in index.committed_steps(folder):
        return Found(kind="orbax", folder=folder, step=int(location.name), is_own=False)
    number = location.name.removeprefix("checkpoint_")
    if number.isdecimal() and int(number) in native_store.committed_steps(folder):
        return Found(kind="native", folder=folder, step=int(number), is_own=False)
    if location.with_name(f"{location.name}.index").exists():
        raise errors.CheckpointError(
            f"restore.path={path!r} is a TensorFlow checkpoint; convert it with T5X to its native format first"
        )
    raise errors.CheckpointError(
        f"restore.path={path!r} is no checkpoint; with mode='specific' name the folder of one, such as "
        f"{location.parent / 'checkpoint_1000'}"
    )


def start(
    found: Found | None, restore: RestoreCheckpointConfig | None, initializer: Any, *, checkpointer_cls: Any = None
) -> Start:
    """Returns the state in the checkpoint `found`, laid out over the mesh; without one the state drawn from the seed.

    Args:
      found: from `find`.
      restore: its transformations apply; `strict`, `fallback_to_scratch` and `dtype` to another run's checkpoint only.
      initializer: gives `abstract_state` and `from_scratch()`.
      checkpointer_cls: reads the checkpoint; None takes what its kind asks for.

    Raises:
      CheckpointError: it cannot be read, or does not fit.
    """
    began = time.monotonic()
    if found is None:
        state = jax.block_until_ready(initializer.from_scratch())
        return Start(state=state, record=None, found=None, seconds=time.monotonic() - began)
    wanted = initializer.abstract_state.as_tree()
    stored, record = _read(found, wanted, checkpointer_cls)
    for transform in restore.transformations if restore else ():
        stored = from_t5x(transform(to_t5x(stored), to_t5x(wanted), is_resuming=found.is_own))
    fit = _Fit(found, restore, initializer)
    state = TrainState.from_tree(fit.tree(stored, wanted))
    seconds = time.monotonic() - began
    jax.monitoring.record_event_duration_secs("/jax/checkpoint/read/durations_sec", seconds)
    return Start(state=state, record=record, found=found, seconds=seconds)


def _read(found: Found, wanted: Tree, checkpointer_cls: Any) -> tuple[Tree, CheckpointRecord | None]:
    # The run's own last checkpoint may be damaged; then the one before is as good. Another run's is what was asked for.
    step = None if found.is_own else found.step
    if checkpointer_cls is None and found.kind == "native":
        with NativeCheckpointStore(found.folder) as store:
            restored = store.read(step=step)
        return restored.state, restored.record
    with (checkpointer_cls or CheckpointStore)(found.folder) as store:
        restored = store.restore(_as_stored(found, wanted), step=step)
    return restored.state, restored.record


def _as_stored(found: Found, wanted: Tree) -> Tree:
    """Returns what the checkpoint holds, by its record; a leaf lies like the wanted one of its name and shape."""
    if found.kind == "native":
        return wanted
    try:
        leaves = index.read_record(found.folder, found.step).leaves
    except errors.IntegrityError:
        return wanted  # the store will find the damage, and look for an earlier checkpoint
    places = trees.flatten(wanted)
    return trees.unflatten(
        {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_place(places, path, leaf.shape))
            for path, leaf in leaves.items()
        }
    )


def _place(places: Mapping[str, Any], path: str, shape: tuple[int, ...]) -> Any:
    wanted = places.get(path)
    return wanted.sharding if wanted is not None and wanted.shape == shape else places["step"].sharding


class _Fit:
    """Makes a stored tree into the wanted one, or says why it is not."""

    def __init__(self, found: Found, restore: RestoreCheckpointConfig | None, initializer: Any) -> None:
        self._where = f"checkpoint {found.step} in {found.folder}"
        self._own = found.is_own
        self._restore = restore
        self._initializer = initializer

    def tree(self, stored: Tree, wanted: Tree) -> Tree:
        """Returns the leaves of `stored` as `wanted` describes them."""
        there, here = trees.flatten(stored), trees.flatten(wanted)
        missing = [path for path in here if path not in there]
        may_draw = self._restore is not None and self._restore.fallback_to_scratch and not self._own
        if missing and not may_draw:
            raise self._misfit(missing, "is missing in it", "name where it comes from in assignment_map")
        extra = [path for path in there if path not in here]
        is_strict = self._own or self._restore is None or self._restore.strict
        if extra and is_strict:
            raise self._misfit(extra, "is not in the model", "drop it in assignment_map, or set strict=False")
        drawn = trees.flatten(self._initializer.from_scratch().as_tree()) if missing else {}
        return trees.unflatten(
            {p: drawn[p] if p not in there else self._leaf(p, there[p], leaf) for p, leaf in here.items()}
        )

    def _misfit(self, paths: list[str], what: str, remedy: str) -> errors.CheckpointError:
        more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
        return errors.CheckpointError(
            f"{self._where} does not fit: {paths[0]} {what}{more}; use the model and optimizer it was trained with, "
            f"or {remedy}"
        )

    def _leaf(self, path: str, stored: Any, wanted: Any) -> jax.Array:
        if path == "step" and np.size(stored) == 1:
            stored = np.asarray(stored).astype(np.int32).reshape(())  # T5X has written it in several ways
        if stored.shape != wanted.shape:
            raise errors.CheckpointError(
                f"{self._where} does not fit: {path} is {list(stored.shape)} in it and {list(wanted.shape)} in this "
                f"run; use the model and optimizer settings it was trained with, or another model_dir"
            )
        if stored.dtype != wanted.dtype:
            stored = self._cast(path, stored, wanted)
        if isinstance(stored, jax.Array) and stored.sharding.is_equivalent_to(wanted.sharding, stored.ndim):
            return stored
        if isinstance(stored, jax.Array):
            return jax.device_put(stored, wanted.sharding)
        return jax.make_array_from_callback(wanted.shape, wanted.sharding, lambda at: np.asarray(stored)[at])

    def _cast(self, path: str, stored: Any, wanted: Any) -> Any:
        """Casts a parameter that was saved in another dtype; the run's own may have been, by `save.dtype`."""
        asked = self._restore.dtype if self._restore and not self._own else np.dtype(wanted.dtype).name
        is_param = path.startswith("params/") and jnp.issubdtype(stored.dtype, jnp.floating)
        if not is_param or asked is None or jnp.dtype(asked) != wanted.dtype:
            raise errors.CheckpointError(
                f"{self._where} does not fit: {path} is {np.dtype(stored.dtype).name} in it and "
                f"{np.dtype(wanted.dtype).name} in this run; set restore.dtype={np.dtype(wanted.dtype).name!r}, which "
                f"casts parameters"
            )
        return stored.astype(wanted.dtype)
