"""What lies in a folder of checkpoints, read without JAX: which steps are whole, which are not, and their records."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pydantic
from etils import epath

from t5core import errors, storage
from t5core.checkpoints import record, seal
from t5core.config import edges

RECORD_FILE = "record/metadata"
UNFINISHED_MARK = ".orbax-checkpoint-tmp"  # how Orbax names a folder that it is still writing
# On a disk a checkpoint takes its final name when it is whole; in an object store it is written in place, and one that
# was never finished has to be told from one that is damaged.
_NEVER_COMMITTED = "never committed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The content of a folder of checkpoints.

    `committed` are the steps that can be restored as far as a look at the folder tells, ascending. `broken` says what
    is wrong with each of the other steps. `unfinished` are what saves and deletions that were killed have left, and
    `set_aside` the damaged checkpoints that were put out of the way; both are names of folders.
    """

    committed: tuple[int, ...]
    broken: dict[int, str]
    unfinished: tuple[str, ...]
    set_aside: tuple[str, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was ever committed here, so that a start from scratch loses nothing."""
        return not (self.committed or self.broken or self.set_aside)


def step_path(uri: str, step: int) -> epath.Path:
    """Returns where the checkpoint of `step` lies in the folder `uri`."""
    return storage.path(uri) / str(step)


def survey(uri: str) -> Survey:
    """Returns what lies in the folder `uri`; nothing at all when there is no such folder."""
    folder = storage.path(uri)
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    steps = sorted(int(name) for name in names if re.fullmatch(r"0|[1-9]\d*", name))
    problems = {step: _problem(step_path(uri, step)) for step in steps}
    killed_uploads = [str(step) for step, problem in problems.items() if problem == _NEVER_COMMITTED]
    return Survey(
        committed=tuple(step for step in steps if problems[step] is None),
        broken={s: p for s, p in problems.items() if p is not None and p != _NEVER_COMMITTED},
        unfinished=(*(name for name in names if UNFINISHED_MARK in name), *killed_uploads),
        set_aside=tuple(name for name in names if re.fullmatch(r"\d+\.damaged-\d+", name)),
    )


def _problem(checkpoint: epath.Path) -> str | None:
    """Returns what a checkpoint lacks, or None; looks at names only."""
    try:
        names = {entry.name for entry in checkpoint.iterdir()}
    except FileNotFoundError:
        return _NEVER_COMMITTED  # deleted a moment ago
    except NotADirectoryError:
        return f"{checkpoint} is not a folder"
    if storage.is_remote(str(checkpoint)) and not names & {seal.FILE, seal.COMMIT_FILE}:
        return _NEVER_COMMITTED
    missing = [
        name for name in (seal.COMMIT_FILE, seal.METADATA_FILE, seal.FILE, "record", "state") if name not in names
    ]
    return f"{checkpoint / missing[0]} is missing" if missing else None


def committed_steps(uri: str) -> tuple[int, ...]:
    """Returns the steps of the whole checkpoints in the folder `uri`, ascending."""
    return survey(uri).committed


def latest(uri: str) -> int | None:
    """Returns the last committed step in the folder `uri`, or None."""
    steps = committed_steps(uri)
    return steps[-1] if steps else None


def read_record(uri: str, step: int) -> record.CheckpointRecord:
    """Returns the record of the checkpoint of `step` in the folder `uri`.

    Raises:
      CheckpointError: there is no such checkpoint, or a later version of this software wrote it.
      IntegrityError: the record is damaged.
    """
    source = step_path(uri, step) / RECORD_FILE
    try:
        content = storage.read_json(source)
    except FileNotFoundError as error:
        steps = ", ".join(map(str, committed_steps(uri))) or "none"
        raise errors.CheckpointError(f"no checkpoint of step {step} in {uri}; committed steps: {steps}") from error
    except UnicodeDecodeError as error:
        raise errors.IntegrityError(f"{source} is not text ({error})") from error
    return _parse(content, source)


def _parse(content: Any, source: epath.Path) -> record.CheckpointRecord:
    version = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > record.FORMAT_VERSION:
        raise errors.CheckpointError(
            f"{source} has format version {version}, above the {record.FORMAT_VERSION} that can be read; update t5flow"
        )
    try:
        return record.CheckpointRecord.model_validate(content)
    except pydantic.ValidationError as error:
        raise errors.IntegrityError(f"{source} is not the record of a checkpoint") from error


def reference(uri: str, step: int) -> edges.CheckpointRef:
    """Returns the reference to the checkpoint of `step` in the folder `uri`, by which other stages find it."""
    found = read_record(uri, step)
    return edges.CheckpointRef(uri=str(step_path(uri, step)), step=step, digest=found.digest)


def locate(checkpoint_uri: str) -> tuple[str, int]:
    """Returns the folder and the step of a checkpoint's own URI, the one in a reference.

    Raises:
      CheckpointError: the URI does not end in a step.
    """
    location = storage.path(checkpoint_uri)
    if not location.name.isdecimal():
        raise errors.CheckpointError(
            f"{checkpoint_uri} is not a checkpoint; give the folder of a step, such as {location / '1000'}"
        )
    return str(location.parent), int(location.name)
