"""The directory of a run: where everything lies, whose it is, and the records that the stages leave there."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from typing import Any, TypeVar

import yaml

from t5core import errors, records, storage
from t5core.checkpoints import index
from t5core.config.base import StrictModel
from t5core.config.edges import CheckpointRef, Cursor, Evaluation, ParentRef, ResolvedRun, SegmentRecord

_Record = TypeVar("_Record", bound=StrictModel)
_OfCheckpoint = TypeVar("_OfCheckpoint", SegmentRecord, Evaluation, Cursor)
_MOST_DIFFERENCES = 3


class RunInfo(StrictModel):
    """Whose directory it is. `identity` names what may not change between two starts of one run.

    `workflow` is the one that began the run, '' where that is not known.
    """

    name: str
    identity: str
    seed: int
    created: str
    workflow: str = ""


class StageRecord(StrictModel):
    """What became of one stage; `name` tells several of a stage apart ('' when there is one), `uri` is its result.

    `seconds` are those of all the tasks of the DAG together that worked on it.
    """

    stage: str
    name: str = ""
    reused: bool
    reason: str
    seconds: float
    fingerprint: str
    uri: str


class RunDirectory:
    """The run directory at `uri`, local or gs://. Paths are strings; nothing is made before something is written."""

    def __init__(self, uri: str) -> None:
        self.uri = str(uri).rstrip("/")

    def __repr__(self) -> str:
        return f"RunDirectory({self.uri!r})"

    # Paths

    @property
    def config_uri(self) -> str:
        """The resolved configuration."""
        return f"{self.uri}/config.yaml"

    @property
    def info_uri(self) -> str:
        """The file that says whose directory it is."""
        return f"{self.uri}/run.json"

    @property
    def lock_uri(self) -> str:
        """The lock file."""
        return f"{self.uri}/lock.json"

    @property
    def checkpoints_uri(self) -> str:
        """The folder of checkpoints."""
        return f"{self.uri}/checkpoints"

    @property
    def summary_uri(self) -> str:
        """The summary of the run."""
        return f"{self.uri}/summary.json"

    @property
    def report_uri(self) -> str:
        """The report for people."""
        return f"{self.uri}/report.html"

    @property
    def preflight_uri(self) -> str:
        """What was computed of the run before anything heavy."""
        return self._record_uri("preflight")

    @property
    def incumbent_uri(self) -> str:
        """What was published before, measured as this run is."""
        return self._record_uri("incumbent")

    @property
    def publication_uri(self) -> str:
        """What became of the run's best checkpoint, when it was to be published."""
        return self._record_uri("publication")

    def metrics_uri(self, kind: str, task: str = "") -> str:
        """Returns the folder of metrics of `kind`: 'train', or 'training_eval' or 'inference_eval' with a task."""
        return f"{self.uri}/metrics/{kind}/{task}".rstrip("/")

    def predictions_uri(self, task: str, step: int) -> str:
        """Returns the file of the predictions for `task` with the checkpoint of `step`."""
        return f"{self.uri}/predictions/{task}-{step:08d}.jsonl"

    def _record_uri(self, name: str) -> str:
        return f"{self.uri}/records/{name}.json"

    # Ownership

    def info(self) -> RunInfo | None:
        """Returns whose directory it is, or None while it is nobody's."""
        # Without it the directory is nobody's, and the checkpoints in it could not be gone on from.
        remedy = "does not say whose run this is; bring it back from a copy, or choose another run.name"
        return records.read(self.info_uri, RunInfo, otherwise=remedy)

    def is_begun(self) -> bool:
        """Whether there is something to lose: a checkpoint, be it damaged, or what training and evaluation left."""
        if not index.survey(self.checkpoints_uri).is_fresh or storage.path(f"{self.uri}/metrics").exists():
            return True
        return any(name.startswith(("segment-", "evaluation-", "actions-")) for name in self._record_names())

    def claim(
        self,
        resolved: ResolvedRun,
        *,
        identity: str,
        config_text: str,
        may_differ: Collection[str] = (),
        workflow: str = "",
    ) -> RunInfo:
        """Returns whose directory it is: this run's, from before or from now on; brings `config.yaml` up to date.

        A run of the same name that never began is taken over, and what it recorded is deleted; the caller holds the
        lock. `identity` is what two starts of one run have in common, `may_differ` the dotted keys of settings and
        sections that play no part in it, `workflow` the name of the one that asks.

        Raises:
          RunDirectoryError: the directory is another run's that has begun, or holds something that no run has made.
        """
        info = self.check_claim(resolved, identity=identity, may_differ=may_differ)
        if info is None or info.identity != identity:
            if info is not None:
                self._delete_records()
            info = RunInfo(
                name=resolved.config.run.name,
                identity=identity,
                seed=resolved.seed,
                created=_now(),
                workflow=workflow,
            )
            storage.write_text(self.config_uri, config_text)
            records.write(self.info_uri, info)  # last: from here on the directory is taken
        elif self._stored_text() != config_text.encode("utf-8"):
            storage.write_text(self.config_uri, config_text)
        return info

    def check_claim(self, resolved: ResolvedRun, *, identity: str, may_differ: Collection[str] = ()) -> RunInfo | None:
        """Returns whose directory it is if `claim` would not refuse it, None while it is nobody's; writes nothing.

        Raises:
          RunDirectoryError: as `claim`.
        """
        info = self.info()
        if info is None:
            self._refuse_foreign()
        elif info.identity != identity and self.is_begun():
            raise errors.RunDirectoryError(self._other_run(info, resolved, identity=identity, may_differ=may_differ))
        return info

    def check_identity(self, identity: str) -> None:
        """Returns unless another run has taken the directory over since this one claimed it.

        Raises:
          RunDirectoryError: it has.
        """
        info = self.info()
        if info is not None and info.identity != identity:
            raise errors.RunDirectoryError(
                f"{self.uri} is that of run {info.identity} by now, which was started after this one ({identity}) and "
                f"before it had a checkpoint; choose another run.name"
            )

    def _delete_records(self) -> None:
        """Deletes what a run that never began said of itself."""
        folder = storage.path(f"{self.uri}/records")
        try:
            for uri in (self.summary_uri, self.report_uri):
                storage.path(uri).unlink(missing_ok=True)
            if folder.is_dir():
                folder.rmtree()
        except OSError as error:
            raise storage.write_refused(self.uri, error) from error

    def _refuse_foreign(self) -> None:
        folder = storage.path(self.uri)
        names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
        # A claim that was killed leaves a configuration, and files that were not finished.
        foreign = [name for name in names if not re.match(r"config\.yaml$|lock\.json|\..*\.tmp$", name)]
        if foreign:
            raise errors.RunDirectoryError(
                f"{self.uri} is not empty ({', '.join(foreign[:3])}) and belongs to no run; choose another run.name"
            )

    def _other_run(self, info: RunInfo, resolved: ResolvedRun, *, identity: str, may_differ: Collection[str]) -> str:
        stored = _flat(self._stored_config())
        here = _flat(resolved.config.model_dump(mode="json"))
        free = tuple(f"{key}." for key in may_differ)
        keys = [key for key in sorted(stored.keys() | here.keys()) if not f"{key}.".startswith(free)]
        changed = [key for key in keys if stored.get(key, _ABSENT) != here.get(key, _ABSENT)]
        shown = [f"{key} is {stored.get(key, _ABSENT)} there and {here.get(key, _ABSENT)} here" for key in changed]
        what = "; ".join(shown[:_MOST_DIFFERENCES]) or "config.yaml shows no difference"
        more = f" (and {len(shown) - _MOST_DIFFERENCES} more)" if len(shown) > _MOST_DIFFERENCES else ""
        return (
            f"{self.uri} belongs to run {info.identity}, not to {identity}: {what}{more}; "
            f"choose another run.name, or set it back"
        )

    def _stored_text(self) -> bytes:
        """Returns `config.yaml` as it is, even if it was damaged; nothing when it is gone."""
        try:
            return storage.path(self.config_uri).read_bytes()
        except FileNotFoundError:
            return b""

    def _stored_config(self) -> Any:
        try:
            return yaml.safe_load(self._stored_text().decode("utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise errors.IntegrityError(f"{self.config_uri} is not YAML; delete it and run again") from error

    def last_sign_of_life(self) -> int | None:
        """Returns when a stage ended or a holder of the lock was heard of last, in seconds of the epoch, or None."""
        folder = storage.path(f"{self.uri}/records")
        files = [self.lock_uri, *(str(entry) for entry in (folder.iterdir() if folder.is_dir() else []))]
        return max((at for at in map(storage.modified, files) if at is not None), default=None)

    # Records

    def write_stage(self, record: StageRecord) -> None:
        """Writes the record of a stage."""
        self._write(_stage_name(record), record)

    def stages(self) -> list[StageRecord]:
        """Returns the records of all stages, by file name."""
        return self._read_all("stage-", StageRecord)

    def write_parent(self, parent: ParentRef) -> None:
        """Writes which checkpoint of another run this run was started from."""
        self._write("parent", parent)

    def parent(self) -> ParentRef | None:
        """Returns the checkpoint of another run that this run was started from, or None."""
        return records.read(self._record_uri("parent"), ParentRef)

    def write_segment(self, record: SegmentRecord) -> None:
        """Writes the record of the segment that ends at `record.end`."""
        self._write(f"segment-{record.end:08d}", record)

    def segment(self, end: int) -> SegmentRecord | None:
        """Returns the record of the segment that ends at `end`, or None while it is not finished."""
        found = records.read(self._record_uri(f"segment-{end:08d}"), SegmentRecord)
        return None if found is None else self._with_places(found)

    def segments(self) -> list[SegmentRecord]:
        """Returns the records of the finished segments, by their end."""
        return [self._with_places(record) for record in self._read_all("segment-", SegmentRecord)]

    def evaluation_uri(self, step: int) -> str:
        """Returns where the evaluation of `step` is recorded."""
        return self._record_uri(f"evaluation-{step:08d}")

    def write_evaluation(self, record: Evaluation) -> None:
        """Writes the evaluation of `record.step`."""
        self._write(f"evaluation-{record.step:08d}", record)

    def evaluation(self, step: int) -> Evaluation | None:
        """Returns the evaluation of `step`, or None when there is none."""
        found = records.read(self.evaluation_uri(step), Evaluation)
        return None if found is None else self._with_places(found)

    def evaluations(self) -> list[Evaluation]:
        """Returns all evaluations, by step."""
        return [self._with_places(record) for record in self._read_all("evaluation-", Evaluation)]

    def write_cursor(self, cursor: Cursor) -> None:
        """Writes where the run stands after the actions have looked at the evaluation of the cursor's checkpoint."""
        self._write(f"actions-{cursor.checkpoint.step:08d}", cursor)

    def cursors(self) -> list[Cursor]:
        """Returns what the actions decided after each evaluation, by step."""
        return [self._with_places(record) for record in self._read_all("actions-", Cursor)]

    def _with_places(self, record: _OfCheckpoint) -> _OfCheckpoint:
        """Returns a record as of here: its directory may have been moved or copied since it was written."""
        named = {name: value for name, value in record if isinstance(value, CheckpointRef)}
        places: dict[str, Any] = {
            name: reference.model_copy(update={"uri": f"{self.checkpoints_uri}/{reference.step}"})
            for name, reference in named.items()
        }
        if isinstance(record, Evaluation):
            places["uri"] = self.evaluation_uri(record.step)
        return record.model_copy(update=places)

    def _write(self, name: str, record: StrictModel) -> None:
        records.write(self._record_uri(name), record)

    def _read_all(self, prefix: str, model: type[_Record]) -> list[_Record]:
        names = [name for name in self._record_names() if name.startswith(prefix) and name.endswith(".json")]
        found = [records.read(f"{self.uri}/records/{name}", model) for name in names]
        return [record for record in found if record is not None]

    def _record_names(self) -> list[str]:
        folder = storage.path(f"{self.uri}/records")
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


_ABSENT = "not set"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _stage_name(record: StageRecord) -> str:
    return f"stage-{record.stage}-{record.name}" if record.name else f"stage-{record.stage}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the settings inside nested dicts and lists by dotted key."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple) and value:
        inner = ((str(index), item) for index, item in enumerate(value))
    else:
        return {prefix: value}
    return {
        key: setting
        for name, item in inner
        for key, setting in _flat(item, f"{prefix}.{name}" if prefix else name).items()
    }
