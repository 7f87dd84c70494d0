"""What travels between the stages of a batch prediction."""

from __future__ import annotations

from t5core.config.base import Outcome, StrictModel
from t5core.config.edges import CheckpointRef, VocabularyRef
from t5core.config.infer_schema import InferConfig
from t5core.config.schema import ModelConfig


class TrainedModel(StrictModel):
    """A checkpoint with what is needed to use it; `feature_lengths` are the longest inputs and targets, in tokens."""

    checkpoint: CheckpointRef
    model: ModelConfig
    vocabulary: VocabularyRef
    feature_lengths: dict[str, int]


class InferJob(StrictModel):
    """A batch prediction whose every setting is known; `uri` is its folder, `files` those that hold its rows."""

    uri: str
    config: InferConfig
    trained: TrainedModel
    files: list[str]


class RowPosition(StrictModel):
    """Where a row begins: in which of the files, at which byte and in which line (of Parquet: which row)."""

    file: int = 0
    offset: int = 0
    line: int = 1


class ShardRequest(StrictModel):
    """The order to work through rows [start, stop) of a job; `content` names what they hold (16 hex digits)."""

    job: InferJob
    start: int
    stop: int
    begin: RowPosition
    content: str


class FieldKinds(StrictModel):
    """The kinds of values that a field of the results has."""

    name: str
    kinds: list[str]


class ShardRef(StrictModel):
    """A committed shard: one line of JSON at `uri` for each row in [start, stop).

    `parts` are fingerprints of everything that decides the lines, `digest` covers the file. `bad` rows have an error
    instead of a prediction; `cut` ones had longer inputs than the model reads, and `unended` predictions met the length
    limit before they ended.
    """

    uri: str
    start: int
    stop: int
    parts: dict[str, str]
    digest: str
    fields: list[FieldKinds]
    bad: int
    cut: int
    unended: int
    first_error: str
    seconds: float
    reused: bool
    reason: str


class InferSummary(Outcome):
    """How a batch prediction ended; `predictions`, `parquet` and `report` are the files a person opens."""

    name: str
    rows: int
    bad_rows: int
    shards: int
    reused_shards: int
    checkpoint: CheckpointRef
    report: str
    predictions: str
    parquet: str
