"""Checkpoints of a run: saved in the background, verified when read, damaged ones put aside, old ones deleted."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import orbax.checkpoint as ocp

from t5core import agreement, errors, progress, storage
from t5core.checkpoints import digest, index, recording, retention, seal
from t5core.checkpoints.record import CheckpointRecord, Provenance
from t5core.checkpoints.retention import RetentionPolicy
from t5core.metrics import json_numbers

_NO_STEP = -1
# What an object store or a disk says when it is not the bytes that are wrong.
_OUTAGES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "ABORTED")
_USER_CAN_MEND = ("no space left", "permission denied", "read-only file system", "disk quota", "file too large")
_INDEX_BYTES = 1 << 16  # what is smaller is an index or a record, and cheap to compare
_SPACE_FACTOR = 1.1  # of the arrays' bytes: indices, metadata, records
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """A state as it was saved, on the devices that were asked for, and its record."""

    state: Any
    record: CheckpointRecord


class CheckpointStore:
    """The checkpoints in the folder `uri`, one folder for each step, as Orbax writes them.

    Every process of a run makes one and makes the same calls on it. `metrics` gives the metrics known so far by step,
    for a policy that keeps the best. Only a store that saves cleans up what killed saves left, so others may read
    beside it.
    """

    def __init__(
        self,
        uri: str,
        *,
        retention: RetentionPolicy | None = None,
        metrics: Callable[[], Mapping[int, Mapping[str, float]]] = dict,
    ) -> None:
        self._uri = str(uri) if storage.is_remote(uri) else os.path.abspath(uri)
        self._policy = retention or RetentionPolicy()
        self._metrics = metrics
        self._saving: int | None = None
        self._cleaned = False
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(
                post_finalization_callback=self._seal,
                # Where the folder cannot be made, threads that wait for it would keep the process from ending.
                create_directories_asynchronously=False,
            ),
        )
        # Orbax logs each failure with a traceback before it raises it; here every failure is raised, in one line.
        logging.getLogger("absl").addFilter(_is_not_from_orbax)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the save under way and frees the store's threads.

        Raises:
          CheckpointError, RecoverableError: as `wait`.
        """
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def save(self, step: int, state: Any, provenance: Provenance, *, wait: bool = False) -> CheckpointRecord:
        """Returns the record of the checkpoint of `state`, which is being written in the background.

        The state may be given up to another computation at once. Saving a step again is nothing to do when the digest
        is the same. With `wait` it is committed on return; otherwise after the next `wait`, `save` or `close`.

        Raises:
          CheckpointError: no space or no right to write, or the step exists with another digest.
          RecoverableError: the storage failed in another way.
        """
        self.wait()
        record = recording.record_of(step, state, provenance)
        content = json_numbers.encode(record.model_dump())
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), record=ocp.args.JsonSave(content))
        try:
            if agreement.primary_decides(lambda: self._exists(step)):
                return self._same(record)
            agreement.on_primary(lambda: self._require_space(state))
            self._saving = step
            self._checkpointer.save(index.step_path(self._uri, step), args=items)
        except OSError as error:
            self._saving = None
            raise self._save_failed(step, error) from error
        if wait:
            self.wait()
        return record

    def wait(self) -> None:
        """Returns when everything saved so far is committed; then deletes what the policy does not keep.

        Raises:
          CheckpointError: the save under way failed for want of space or rights; the message has its step.
          RecoverableError: it failed in another way.
        """
        step = self._saving
        if step is None:
            return
        try:
            self._checkpointer.wait_until_finished()
        except Exception as error:
            raise self._save_failed(step, error) from error
        finally:
            self._saving = None
        if agreement.is_primary():
            retention.delete_old(
                self._uri, policy=self._policy, metrics=self._metrics() if self._policy.needs_metrics else {}
            )

    def restore(self, abstract_state: Any, *, step: int | None = None) -> Restored:
        """Returns the state of `step`, or of the last step that is whole, verified bit by bit.

        `abstract_state` is a tree of `jax.ShapeDtypeStruct` with the shardings wanted; the mesh and the number of
        processes may differ from those that saved. When the last checkpoint is damaged it is named and put aside
        (renamed, never deleted) and the one before is used; a `step` that is asked for stays where it is.

        Raises:
          CheckpointError: there is no checkpoint that can be used, or it does not fit `abstract_state`.
          RecoverableError: the storage failed.
        """
        return self._restore(step, abstract_state, part="", largest=None)

    def restore_params(self, abstract_params: Any, *, step: int) -> Restored:
        """Returns the parameters of `step` as {'params': ...}, verified by their digests; nothing else is read.

        `abstract_params` is as for `restore`. Damage to large files that no parameter lies in goes unnoticed.

        Raises:
          CheckpointError, RecoverableError: as `restore`.
        """
        return self._restore(step, {"params": abstract_params}, part="params/", largest=_INDEX_BYTES)

    def _restore(self, step: int | None, abstract: Any, *, part: str, largest: int | None) -> Restored:
        self.wait()
        problems: list[str] = []
        while True:
            chosen = agreement.primary_decides(lambda: self._intact_step(step, problems, largest=largest))
            if chosen == _NO_STEP:
                raise self._nothing_to_restore(step, problems)
            try:
                return self._read(chosen, abstract, part=part)
            except errors.IntegrityError as damage:
                self._on_damage(chosen, str(damage), problems, keep_in_place=step is not None)
                if step is not None:
                    raise self._nothing_to_restore(step, problems) from damage

    # Saving

    def _seal(self) -> None:
        """Lists the files of the checkpoint under way; called between the last of them and the commit."""
        assert self._saving is not None, "a checkpoint is sealed while it is being saved"
        final = index.step_path(self._uri, self._saving)
        unfinished = final.with_name(final.name + index.UNFINISHED_MARK)
        seal.write(unfinished if unfinished.exists() else final)

    def _require_space(self, state: Any) -> None:
        """Refuses to begin what cannot end: a disk that fills up in the middle makes Orbax print pages."""
        if storage.is_remote(self._uri):
            return
        needed = sum(leaf.nbytes for leaf in digest.named_leaves(state).values()) * _SPACE_FACTOR
        folder = next(
            parent for parent in [storage.path(self._uri), *storage.path(self._uri).parents] if parent.exists()
        )
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"no space left: {needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free")

    def _exists(self, step: int) -> bool:
        """Returns whether `step` is committed; if not, makes room for it."""
        found = index.survey(self._uri)
        for name in () if self._cleaned else found.unfinished:
            _log.info("removing %s/%s, which a killed save or deletion left", self._uri, name)
            (storage.path(self._uri) / name).rmtree()
        self._cleaned = True
        if step in found.broken:
            self._set_aside(step, found.broken[step])
        return step in found.committed

    def _same(self, record: CheckpointRecord) -> CheckpointRecord:
        existing = index.read_record(self._uri, record.step)
        if existing.digest != record.digest:
            raise errors.CheckpointError(
                f"checkpoint {record.step} in {self._uri} has digest {existing.digest[:16]}, but this run comes to "
                f"{record.digest[:16]} at the same step; give this run another run.name, or move that checkpoint away"
            )
        return existing

    def _save_failed(self, step: int, error: Exception) -> Exception:
        self._cleaned = False  # what it left takes up space
        committed = index.latest(self._uri)
        rest = "nothing was committed before" if committed is None else f"committed and safe: step {committed}"
        reason = _one_line(error)
        if any(mark in str(error).lower() for mark in _USER_CAN_MEND):
            return errors.CheckpointError(
                f"cannot save checkpoint {step} in {self._uri}: {reason}; {rest}; free space or restore the right to "
                f"write there"
            )
        return errors.RecoverableError(f"saving checkpoint {step} in {self._uri} failed: {reason}; {rest}; run again")

    # Restoring

    def _intact_step(self, step: int | None, problems: list[str], *, largest: int | None) -> int:
        """Returns `step`, or the last step, whose files are all as they were sealed; others are put aside."""
        found = index.survey(self._uri)
        candidates = sorted({*found.committed, *found.broken}, reverse=True)
        for candidate in candidates if step is None else [c for c in candidates if c == step]:
            try:
                seal.check(index.step_path(self._uri, candidate), largest=largest)
            except errors.IntegrityError as damage:
                self._on_damage(candidate, str(damage), problems, keep_in_place=step is not None)
                continue
            return candidate
        return _NO_STEP

    def _read(self, step: int, abstract: Any, *, part: str) -> Restored:
        record = index.read_record(self._uri, step)
        misfit = record.misfit(recording.leaf_records(abstract), part=part)
        if misfit is not None:
            raise errors.CheckpointError(
                f"checkpoint {step} in {self._uri} does not fit: {misfit}; use the model and optimizer settings it was "
                f"trained with, or another run.name"
            )
        try:
            state = self._read_part(step, abstract) if part else self._read_whole(step, abstract)
        except Exception as error:
            raise self._read_failed(step, error) from error
        _verify(state, record, step=step)
        return Restored(state=state, record=record)

    def _read_whole(self, step: int, abstract: Any) -> Any:
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        return self._checkpointer.restore(index.step_path(self._uri, step), args=items).state

    def _read_part(self, step: int, abstract: Any) -> Any:
        """Returns the leaves of `abstract` alone, which Orbax's standard restore cannot."""
        restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
        wanted = ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args, partial_restore=True)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(index.step_path(self._uri, step) / "state", args=wanted)

    def _read_failed(self, step: int, error: Exception) -> Exception:
        """Tells damage from an outage; where the seal covers every byte, it cannot be damage."""
        chain = f"{error} {error.__cause__} {error.__context__}"
        checkpoint = index.step_path(self._uri, step)
        if any(mark in chain for mark in _OUTAGES) or isinstance(error, OSError) or seal.check(checkpoint):
            return errors.RecoverableError(f"cannot read {checkpoint}: {_one_line(error)}; run again")
        return errors.IntegrityError(f"{checkpoint} cannot be read: {_one_line(error)}")

    def _on_damage(self, step: int, damage: str, problems: list[str], *, keep_in_place: bool) -> None:
        problems.append(f"{step}: {damage}")
        if agreement.is_primary() and not keep_in_place:
            self._set_aside(step, damage)

    def _set_aside(self, step: int, damage: str) -> None:
        taken = set(index.survey(self._uri).set_aside)
        number = next(n for n in range(1, len(taken) + 2) if f"{step}.damaged-{n}" not in taken)
        checkpoint = index.step_path(self._uri, step)
        try:
            checkpoint.rename(checkpoint.with_name(f"{step}.damaged-{number}"))
        except OSError as error:
            raise errors.CheckpointError(
                f"checkpoint {step} is damaged ({damage}) and cannot be set aside: {_one_line(error)}; restore the "
                f"right to write in {self._uri}, or move it away yourself"
            ) from error
        progress.say(f"checkpoint {step} is damaged and set aside as {step}.damaged-{number}: {damage}")

    def _nothing_to_restore(self, step: int | None, problems: list[str]) -> errors.CheckpointError:
        which = "no usable checkpoint" if step is None else f"checkpoint {step} cannot be used"
        why = "; ".join(problems) or "there is none"
        others = ", ".join(str(s) for s in index.committed_steps(self._uri) if s != step) or "none"
        return errors.CheckpointError(f"{which} in {self._uri}: {why}; committed steps: {others}")


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/" not in record.pathname


def _one_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().splitlines()[0][:300]


def _verify(state: Any, record: CheckpointRecord, *, step: int) -> None:
    wrong = [path for path, found in digest.leaf_digests(state).items() if found != record.leaves[path].digest]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise errors.IntegrityError(f"{wrong[0]}{more} of checkpoint {step} differ from what was saved (digest)")
    recorded = {path: leaf.digest for path, leaf in record.leaves.items()}
    if record.step != step or digest.state_digest(recorded) != record.digest:
        raise errors.IntegrityError(f"the record of checkpoint {step} differs from its state")
