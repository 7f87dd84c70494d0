"""Where a run starts: from its own last checkpoint, else from another run's, else from its seed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from t5core import errors, storage, trees
from t5core.checkpoint_config import RestoreCheckpointConfig
from t5core.checkpoints import index, native_store, t5x_native
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.record import CheckpointRecord
from t5core.checkpoints.store import CheckpointStore
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x
from t5core.config.edges import ParentRef
from t5core.rundir import RunDirectory
from t5core.running import run_record
from t5core.starting import fitting
from t5core.starting.fitting import ANY_DTYPE, Terms
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

    @property
    def uri(self) -> str:
        """The checkpoint's own folder."""
        return f"{self.folder}/{self.step if self.kind == 'orbax' else f'checkpoint_{self.step}'}"

    @property
    def where(self) -> str:
        """The checkpoint in the words of messages."""
        return f"checkpoint {self.step} in {self.folder}"

    @property
    def run_uri(self) -> str:
        """The directory of the run that the checkpoint is of, if it lies where runs put theirs."""
        return self.folder.removesuffix(f"/{ORBAX_FOLDER}") if self.kind == "orbax" else self.folder


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

    @property
    def data_start(self) -> int:
        """The step that read the first batch of the data that the state was trained on."""
        return self.record.provenance.schedule.data_start if self.record else 0


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
    return specific(restore.path, setting="restore.path") if restore.mode == "specific" else _promised(restore.path)


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


def specific(path: str, *, setting: str) -> Found:
    """Returns the checkpoint whose own folder is `path`; looks at names only.

    Raises:
      CheckpointError: it is none; the message calls `path` the value of `setting`.
    """
    location = storage.path(path.rstrip("/"))
    folder = str(location.parent)
    if location.name.isdecimal() and int(location.name) in index.committed_steps(folder):
        return Found(kind="orbax", folder=folder, step=int(location.name), is_own=False)
    number = location.name.removeprefix("checkpoint_")
    if number.isdecimal() and int(number) in native_store.committed_steps(folder):
        return Found(kind="native", folder=folder, step=int(number), is_own=False)
    if location.with_name(f"{location.name}.index").exists():
        raise errors.CheckpointError(
            f"{setting}={path!r} is a TensorFlow checkpoint; convert it with T5X to its native format first"
        )
    steps = [*index.committed_steps(folder), *native_store.committed_steps(folder)]
    there = f"steps there: {', '.join(map(str, steps))}" if steps else "there are none beside it"
    raise errors.CheckpointError(
        f"{setting}={path!r} is no checkpoint; name the folder of a single one, such as "
        f"{location.parent / 'checkpoint_1000'} ({there})"
    )


def parent_of(found: Found, record: CheckpointRecord | None) -> ParentRef:
    """Returns how the records of a run name the checkpoint of another run that it was started from."""
    info = RunDirectory(found.run_uri).info()
    trained = run_record.load(found.run_uri) if info is None else None
    return ParentRef(
        uri=found.uri,
        step=found.step,
        digest=record.digest if record else "",
        run=info.name if info else trained.run_id if trained else "",
        config_fingerprint=record.provenance.config_fingerprint if record else "",
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
    stored, record = read(found, wanted, checkpointer_cls=checkpointer_cls)
    for transform in restore.transformations if restore else ():
        stored = from_t5x(transform(to_t5x(stored), to_t5x(wanted), is_resuming=found.is_own))
    fitted = fitting.fit(
        stored,
        wanted,
        terms=_terms(restore, is_own=found.is_own),
        draw=lambda: initializer.from_scratch().as_tree(),
        where=found.where,
    )
    state = TrainState.from_tree(fitted)
    seconds = time.monotonic() - began
    jax.monitoring.record_event_duration_secs("/jax/checkpoint/read/durations_sec", seconds)
    return Start(state=state, record=record, found=found, seconds=seconds)


def _terms(restore: RestoreCheckpointConfig | None, *, is_own: bool) -> Terms:
    """Returns the terms that T5X's configuration sets; `strict` and what follows count for another run's only."""
    if is_own:
        return Terms(dtype=ANY_DTYPE)  # `save.dtype` may have been another
    if restore is None:
        return Terms()
    fallback = restore.fallback_to_scratch
    return Terms(strict=restore.strict, may_draw=lambda path: fallback, dtype=restore.dtype)


def read(
    found: Found, wanted: Tree, *, checkpointer_cls: Any = None, params_only: bool = False
) -> tuple[Tree, CheckpointRecord | None]:
    """Returns the state in the checkpoint `found`, verified, and its record; None: T5X wrote it.

    Args:
      found: from `find` or `specific`.
      wanted: shapes with shardings; a leaf of the same name and shape is laid out like that.
      checkpointer_cls: reads the checkpoint; None takes what its kind asks for.
      params_only: reads {'params': ...} alone, of another run's checkpoint.

    Raises:
      CheckpointError: it cannot be read.
    """
    # The run's own last checkpoint may be damaged; then the one before is as good. Another run's is what was asked for.
    step = None if found.is_own else found.step
    if checkpointer_cls is None and found.kind == "native":
        with NativeCheckpointStore(found.folder) as store:
            restored = store.read(step=step)
        return _params_of(restored.state) if params_only else restored.state, restored.record
    with (checkpointer_cls or CheckpointStore)(found.folder) as store:
        stored = _as_stored(found, wanted)
        if params_only and checkpointer_cls is None:
            restored = store.restore_params(stored["params"], step=found.step)
        else:
            restored = store.restore(stored, step=step)
    return _params_of(restored.state) if params_only else restored.state, restored.record


def _params_of(state: Tree) -> Tree:
    return {"params": state["params"]}


def shapes(found: Found) -> tuple[Tree, CheckpointRecord | None]:
    """Returns shapes and dtypes of the state in the checkpoint `found`, and its record, without reading arrays.

    Raises:
      CheckpointError: it cannot be read.
    """
    if found.kind == "native":
        return from_t5x(t5x_native.read_t5x_shapes(found.uri)), None
    try:
        record = index.read_record(found.folder, found.step)
    except errors.IntegrityError as damage:
        raise errors.CheckpointError(f"{damage}; start from another checkpoint") from damage
    leaves = {path: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype)) for path, leaf in record.leaves.items()}
    return {"opt_state": {}, **trees.unflatten(leaves)}, record


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
