"""A run directory read into one frozen record.

What a run has not written yet, because it failed or stopped early, is absent from the record. What it has written and
cannot be read is an error: a report never hides damage.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etils import epath

from t5core import errors, publishing, storage
from t5core.checkpoints import index
from t5core.config import edges, yaml_text
from t5core.config.data_schema import MIXTURE
from t5core.data import manifest
from t5core.metrics import writer
from t5core.preflight import record as preflight_record
from t5core.preflight.record import Preflight
from t5core.rundir import RunDirectory, RunInfo, StageRecord

LOSS = "loss_per_nonpadding_target_token"
STAGE_ORDER = ("resolve", "preflight", "vocabulary", "materialise", "assemble", "verify", "initialise")
EXAMPLES_KEPT = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """The metrics of one stage and task (`task` is '' for training): a row for each step, in the order of steps."""

    stage: str
    task: str
    rows: tuple[Mapping[str, float], ...]

    def points(self, metric: str) -> tuple[tuple[int, float], ...]:
        """Returns (step, value) wherever `metric` was written."""
        return tuple((int(row["step"]), row[metric]) for row in self.rows if metric in row)

    def metrics(self) -> tuple[str, ...]:
        """Returns the names of all metrics in the order of their first appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row if name != "step"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """The first examples that were decoded for a task at a step; `total` counts all of them."""

    task: str
    step: int
    total: int
    examples: tuple[Mapping[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset that a stage made; `manifest` is None where it is not to be found any more."""

    stage: StageRecord
    manifest: manifest.Manifest | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything a run directory says.

    `config_text`, `identity` (run.json) and `summary` are None while they do not exist. Evaluations without any metric
    are steps at which none was due, and are left out. `checkpoint_bytes` and `parameters` are the size of the newest
    checkpoint and how many parameters it holds, `kept_steps` those whose checkpoint has not been deleted.
    """

    uri: str
    config_text: str | None
    config: Mapping[str, Any]
    identity: RunInfo | None
    summary: Mapping[str, Any] | None
    stages: tuple[StageRecord, ...]
    segments: tuple[edges.SegmentRecord, ...]
    evaluations: tuple[edges.Evaluation, ...]
    cursors: tuple[edges.Cursor, ...]
    series: tuple[Series, ...]
    predictions: tuple[Predictions, ...]
    datasets: tuple[Dataset, ...]
    preflight: Preflight | None = None
    checkpoint_bytes: int | None = None
    parameters: int | None = None
    kept_steps: frozenset[int] = frozenset()
    parent: edges.ParentRef | None = None
    publication: publishing.Decision | None = None

    @property
    def name(self) -> str:
        """The run's name: its folder's."""
        return self.uri.rsplit("/", 1)[-1]

    @property
    def total_steps(self) -> int | None:
        """The steps that the configuration asks for; None without a configuration."""
        return self.config.get("train", {}).get("total_steps")

    @property
    def first_step(self) -> int:
        """The step that the run began with: 0, unless it took up another run's checkpoint."""
        return self.segments[0].start if self.segments else 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks in the order of the configuration."""
        return tuple(task["name"] for task in self.config.get("data", {}).get("tasks", ()))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of what makes the run the run that it is; '' while that is not settled."""
        return "" if self.identity is None else self.identity.identity

    @property
    def checkpoint(self) -> edges.CheckpointRef | None:
        """The newest checkpoint that a segment left; None before the first."""
        return self.segments[-1].checkpoint if self.segments else None

    def series_of(self, stage: str) -> tuple[Series, ...]:
        """Returns the series of `stage`, one for each task."""
        return tuple(series for series in self.series if series.stage == stage)

    def stages_of(self, stage: str) -> tuple[StageRecord, ...]:
        """Returns the records of one kind of stage."""
        return tuple(record for record in self.stages if record.stage == stage)

    def segments_to(self, step: int) -> tuple[edges.SegmentRecord, ...]:
        """Returns the segments that led to `step`, the first one first.

        Records that another cutting of the run left behind overlap with these and are passed over.
        """
        chain: list[edges.SegmentRecord] = []
        for segment in reversed(self.segments):
            if segment.end <= (chain[-1].start if chain else step):
                chain.append(segment)
        return tuple(reversed(chain))

    def evaluations_to(self, step: int) -> tuple[edges.Evaluation, ...]:
        """Returns the evaluations of checkpoints up to `step`, the first one first."""
        return tuple(evaluation for evaluation in self.evaluations if evaluation.step <= step)


def in_order(names: Iterable[str], tasks: Iterable[str]) -> list[str]:
    """Returns the `names` of what was evaluated in the order of `tasks`: strange ones later, the mixture last."""
    known = {task: place for place, task in enumerate(tasks)}
    return sorted(set(names), key=lambda name: (name == MIXTURE, known.get(name, len(known)), name))


def join(uri: str, *parts: str) -> str:
    """Returns the URI of something under `uri`."""
    return "/".join((uri.rstrip("/"), *parts))


def gather(run_uri: str, *, with_summary: bool = True) -> RunRecord:
    """Returns what the run directory `run_uri` holds; its summary only `with_summary`, as that follows from the rest.

    Raises:
      RunDirectoryError: there is no such directory.
      IntegrityError: a file in it cannot be read as what it should be; the message names it.
    """
    directory = RunDirectory(run_uri)
    uri = directory.uri
    if not storage.path(uri).is_dir():
        raise errors.RunDirectoryError(f"there is no run directory at {uri}; check run.root and run.name")
    config_text = _text_or_none(directory.config_uri)
    stages = tuple(sorted(directory.stages(), key=_stage_order))
    segments = tuple(directory.segments())
    kept_steps = frozenset(index.committed_steps(directory.checkpoints_uri))
    return RunRecord(
        uri=uri,
        config_text=config_text,
        config=_mapping(directory.config_uri, config_text),
        identity=directory.info(),
        summary=_json_or_none(directory.summary_uri) if with_summary else None,
        stages=stages,
        segments=segments,
        evaluations=tuple(evaluation for evaluation in directory.evaluations() if evaluation.metrics),
        cursors=tuple(directory.cursors()),
        series=tuple(_all_series(uri)),
        predictions=tuple(_all_predictions(uri)),
        datasets=tuple(_dataset(stage) for stage in stages if stage.stage in ("materialise", "assemble")),
        preflight=preflight_record.read(uri),
        checkpoint_bytes=_bytes_in(segments[-1].checkpoint.uri) if segments else None,
        parameters=_parameters(directory.checkpoints_uri, kept_steps),
        kept_steps=kept_steps,
        parent=directory.parent(),
        publication=publishing.recorded(uri),
    )


def _bytes_in(folder: str) -> int | None:
    """Returns the bytes of all files below `folder`, None when it is gone or lies on an object store."""
    if storage.is_remote(folder) or not os.path.isdir(folder):
        return None
    return sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())


def _parameters(checkpoints: str, steps: frozenset[int]) -> int | None:
    """Returns how many parameters the newest of the checkpoints holds, None when there is none that says so."""
    if not steps:
        return None
    try:
        leaves = index.read_record(checkpoints, max(steps)).leaves.items()
    except (errors.CheckpointError, errors.IntegrityError):
        return None  # what uses the checkpoint refuses it; the report of that failure is not to fail over it
    return sum(math.prod(leaf.shape) for path, leaf in leaves if path.startswith("params/"))


def _text_or_none(uri: str) -> str | None:
    try:
        return storage.path(uri).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise errors.IntegrityError(f"{uri} is not text ({error}); delete it and run again") from error


def _mapping(uri: str, text: str | None) -> Mapping[str, Any]:
    try:
        content = yaml_text.parse(text or "{}", origin=uri)
    except errors.ConfigError as error:
        raise errors.IntegrityError(f"{error}, or delete it and run again") from error
    if not isinstance(content, dict):
        raise errors.IntegrityError(f"{uri} holds {type(content).__name__}, not sections; delete it and run again")
    return content


def _json_or_none(uri: str) -> Mapping[str, Any] | None:
    try:
        content = storage.read_json(uri)
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise errors.IntegrityError(f"{uri} holds {type(content).__name__}, not an object; delete it and run again")
    return content


def _children(folder: epath.Path) -> list[epath.Path]:
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []


def _stage_order(record: StageRecord) -> tuple[int, str, str]:
    known = record.stage in STAGE_ORDER
    return STAGE_ORDER.index(record.stage) if known else len(STAGE_ORDER), record.stage, record.name


def _dataset(stage: StageRecord) -> Dataset:
    return Dataset(stage=stage, manifest=manifest.load(stage.uri) if stage.uri else None)


def _json_lines(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSONL file; a last line that was cut off while it was written does not count."""
    text = _text_or_none(str(path)) or ""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except json.JSONDecodeError as error:
            if place == len(lines) - 1:
                return
            raise errors.IntegrityError(
                f"{path} line {place + 1} is not JSON ({error.msg}); restore the file or delete it"
            ) from error
        if not isinstance(content, dict):
            raise errors.IntegrityError(f"{path} line {place + 1} is not a JSON object; restore the file or delete it")
        yield content


def _one_series(folder: epath.Path, *, stage: str, task: str) -> Iterator[Series]:
    rows = writer.read_metrics(str(folder)) if folder.is_dir() else []
    strange = [(row["step"], name) for row in rows for name, value in row.items() if not isinstance(value, int | float)]
    if strange:
        step, name = strange[0]
        raise errors.IntegrityError(f"{folder} holds no number for {name!r} at step {step}; restore or delete the file")
    if rows:
        yield Series(stage=stage, task=task, rows=tuple(rows))


def _all_series(uri: str) -> Iterator[Series]:
    metrics = storage.path(uri) / "metrics"
    yield from _one_series(metrics / "train", stage="train", task="")
    for stage in ("training_eval", "inference_eval"):
        for folder in _children(metrics / stage):
            yield from _one_series(folder, stage=stage, task=folder.name)


def _all_predictions(uri: str) -> Iterator[Predictions]:
    for path in _children(storage.path(uri) / "predictions"):
        parts = re.fullmatch(r"(.+)-(\d{8,})\.jsonl", path.name)
        if parts is None:
            continue
        examples = [_example(line) for line in _json_lines(path)]
        yield Predictions(
            task=parts[1], step=int(parts[2]), total=len(examples), examples=tuple(examples[:EXAMPLES_KEPT])
        )


def _example(line: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields of an example as text, in the order in which a person compares them."""
    order = [key for key in ("inputs", "target", "prediction") if key in line]
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in line.items()
    }
    return {key: texts[key] for key in dict.fromkeys([*order, *texts])}
