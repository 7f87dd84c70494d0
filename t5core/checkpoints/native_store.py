"""The checkpoints of a run in T5X's native layout, with what T5X does not store in a file beside each.

`<uri>/checkpoint_<step>/` is what `t5x_native` writes: T5X and its converters read it. `<uri>/checkpoint_<step>.json`
is the record: the digest of every array, and everything else that the rest of the run follows from. The record is
written first, so a checkpoint of this store is never without; a checkpoint without a record is T5X's own.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np
import pydantic
from etils import epath
from jax.experimental import multihost_utils

from t5core import agreement, errors, progress, storage
from t5core.checkpoints import digest, recording, t5x_native
from t5core.checkpoints.record import CheckpointRecord, Provenance
from t5core.checkpoints.retention import RetentionPolicy, steps_to_delete
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x
from t5core.metrics import json_numbers

PINNED_FILE = "PINNED"
_NO_STEP = -1
_log = logging.getLogger(__name__)

Tree = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NativeRestored:
    """A state as it was saved, and its record; None for a checkpoint that T5X wrote."""

    state: Any
    record: CheckpointRecord | None


def committed_steps(uri: str) -> tuple[int, ...]:
    """Returns the steps of the whole checkpoints in the folder `uri`, ascending."""
    return t5x_native.t5x_checkpoint_steps(uri)


def broken_steps(uri: str) -> tuple[int, ...]:
    """Returns the steps in the folder `uri` whose checkpoint lacks its index, ascending.

    On an object store such a folder is a save that was killed, not damage, and is left out.
    """
    if storage.is_remote(uri):
        return ()
    return tuple(step for step in _folders(uri) if step not in committed_steps(uri))


def _folders(uri: str) -> list[int]:
    folder = storage.path(uri)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"checkpoint_(\d+)", name)))


class NativeCheckpointStore:
    """Saves, restores and deletes the native checkpoints in the folder `uri`.

    The interface is that of `CheckpointStore`, `metrics` included. A save is complete when `save` returns. Every
    process of a run makes one and makes the same calls on it; the first one writes, whole arrays, so the state has to
    fit into its memory.
    """

    def __init__(
        self,
        uri: str,
        *,
        retention: RetentionPolicy | None = None,
        metrics: Callable[[], Mapping[int, Mapping[str, float]]] = dict,
    ) -> None:
        self._uri = str(uri).rstrip("/")
        self._policy = retention or RetentionPolicy()
        self._metrics = metrics
        self._has_saved = False

    def __enter__(self) -> NativeCheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Does nothing: no save is ever under way."""

    def wait(self) -> None:
        """Deletes what its metric does not keep any more; no save is ever under way."""
        if self._has_saved and self._policy.needs_metrics and agreement.is_primary():
            self._delete_old()

    def save(self, step: int, state: Any, provenance: Provenance, *, wait: bool = True) -> CheckpointRecord:
        """Returns the record of the checkpoint of `state`, which is committed.

        Args:
          step: what `state` says.
          state: nested dicts {'step', 'params', 'opt_state'} of arrays.
          provenance: what the record tells besides.
          wait: of the common interface; a save is waited for in any case.

        Raises:
          CheckpointError: the step exists with another digest.
          RunDirectoryError: no space, or no right to write.
        """
        del wait
        whole = jax.tree.map(_whole, state)
        record = recording.record_of(step, whole, provenance)
        agreement.on_primary(lambda: self._write(whole, record))
        return record

    def _write(self, whole: Tree, record: CheckpointRecord) -> None:
        if record.step in committed_steps(self._uri):
            self._require_same(record)
            return
        if record.step in broken_steps(self._uri):
            self._set_aside(record.step, "its index is missing")
        content = json_numbers.encode(record.model_dump())
        storage.write_json(self._record_path(record.step), content)
        t5x_native.write_t5x_checkpoint(self._uri, record.step, to_t5x(whole))
        self._has_saved = True
        self._delete_old()

    def _require_same(self, record: CheckpointRecord) -> None:
        existing = self._read(record.step)
        found = digest.state_digest(digest.leaf_digests(existing.state))
        if found != record.digest:
            raise errors.CheckpointError(
                f"checkpoint {record.step} in {self._uri} has digest {found[:16]}, but this run comes to "
                f"{record.digest[:16]} at the same step; choose another model_dir, or move that checkpoint away"
            )

    def restore(self, abstract_state: Any, *, step: int | None = None) -> NativeRestored:
        """Returns the state of `step`, or of the last step that is whole, laid out as `abstract_state` says.

        Raises:
          CheckpointError: as `read`, or the checkpoint does not fit.
        """
        restored = self.read(step=step)
        wanted = recording.leaf_records(abstract_state)
        found = recording.leaf_records(restored.state)
        if wanted != found:
            path = next(p for p in sorted({*wanted, *found}) if wanted.get(p) != found.get(p))
            raise errors.CheckpointError(
                f"{self._uri}/checkpoint_{int(restored.state['step'])} does not fit: {path} is "
                f"{found.get(path) or 'missing'} in it and {wanted.get(path) or 'missing'} in this run; use the model "
                f"and optimizer settings it was trained with, or another model_dir"
            )
        return dataclasses.replace(restored, state=jax.tree.map(_placed, restored.state, abstract_state))

    def read(self, *, step: int | None = None) -> NativeRestored:
        """Returns the state of `step`, or of the last step that is whole, in this machine's memory, verified.

        A damaged last checkpoint is named and put aside (renamed, never deleted), and the one before is used; a `step`
        that is asked for stays where it is. Without a record there is nothing to verify the arrays by.

        Raises:
          CheckpointError: there is no checkpoint that can be used.
        """
        problems: list[str] = []
        read: dict[int, NativeRestored] = {}
        chosen = agreement.primary_decides(lambda: self._intact_step(step, problems, read))
        if chosen == _NO_STEP:
            which = "no usable checkpoint" if step is None else f"checkpoint {step} cannot be used"
            others = ", ".join(map(str, committed_steps(self._uri))) or "none"
            reasons = "; ".join(problems) or "there is none"
            raise errors.CheckpointError(f"{which} in {self._uri}: {reasons}; committed steps: {others}")
        return read[chosen] if chosen in read else self._read(chosen)

    def _intact_step(self, step: int | None, problems: list[str], read: dict[int, NativeRestored]) -> int:
        """Returns `step`, or the last step, that reads as it was written, and keeps what was read in `read`."""
        candidates = sorted(_folders(self._uri), reverse=True)
        for candidate in candidates if step is None else [c for c in candidates if c == step]:
            try:
                read[candidate] = self._read(candidate)
            except (errors.CheckpointError, errors.IntegrityError) as damage:
                problems.append(f"{candidate}: {damage}")
                if step is None:
                    self._set_aside(candidate, str(damage))
                continue
            return candidate
        return _NO_STEP

    def _read(self, step: int) -> NativeRestored:
        folder = f"{self._uri}/checkpoint_{step}"
        state = from_t5x(t5x_native.read_t5x_checkpoint(folder))
        record = self._read_record(step)
        if record is not None:
            found = digest.leaf_digests(state)
            wrong = sorted(p for p in {*found, *record.leaves} if _digest_in(record, p) != found.get(p))
            if wrong:
                more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                raise errors.IntegrityError(f"{wrong[0]}{more} of {folder} differ from what was saved (digest)")
        return NativeRestored(state=state, record=record)

    def _read_record(self, step: int) -> CheckpointRecord | None:
        try:
            return CheckpointRecord.model_validate(storage.read_json(self._record_path(step)))
        except FileNotFoundError:
            return None
        except pydantic.ValidationError as error:
            raise errors.IntegrityError(f"{self._record_path(step)} is not the record of a checkpoint") from error

    def _record_path(self, step: int) -> str:
        return f"{self._uri}/checkpoint_{step}.json"

    def _set_aside(self, step: int, damage: str) -> None:
        for path in (f"{self._uri}/checkpoint_{step}", self._record_path(step)):
            source = storage.path(path)
            if source.exists():
                number = next(n for n in range(1, 1000) if not storage.path(f"{path}.damaged-{n}").exists())
                source.rename(f"{path}.damaged-{number}")
        progress.say(f"checkpoint {step} is damaged and set aside in {self._uri}: {damage}")

    def _delete_old(self) -> None:
        steps = committed_steps(self._uri)
        pinned = [s for s in steps if (storage.path(f"{self._uri}/checkpoint_{s}") / PINNED_FILE).exists()]
        metrics = self._metrics() if self._policy.needs_metrics else {}
        for deletion in steps_to_delete(steps, policy=self._policy, metrics=metrics, protected=pinned):
            folder = storage.path(f"{self._uri}/checkpoint_{deletion.step}")
            _log.info("deleting checkpoint %s: %s", folder, deletion.reason)
            _delete(folder)
            storage.path(self._record_path(deletion.step)).unlink(missing_ok=True)


def _delete(folder: epath.Path) -> None:
    """Deletes a checkpoint so that a kill on the way leaves nothing that looks like one."""
    if storage.is_remote(str(folder)):
        (folder / t5x_native.INDEX_FILE).unlink()
        folder.rmtree()
        return
    doomed = folder.with_name(f"{folder.name}.deleted")
    if doomed.exists():
        doomed.rmtree()
    folder.rename(doomed)
    doomed.rmtree()


def _digest_in(record: CheckpointRecord, path: str) -> str | None:
    return record.leaves[path].digest if path in record.leaves else None


def _whole(leaf: Any) -> np.ndarray:
    """Returns all of an array on every process."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(jax.device_get(leaf))


def _placed(array: np.ndarray, wanted: Any) -> jax.Array:
    return jax.make_array_from_callback(array.shape, wanted.sharding, lambda index: array[index])
