"""What travels between the stages of a run: small typed references, never the bytes themselves."""

from __future__ import annotations

from t5core.config.base import Outcome, StrictModel
from t5core.config.schema import PretrainConfig
from t5core.metrics import json_numbers


class ResolvedRun(StrictModel):
    """A run whose every setting is known; `uri` is its directory."""

    uri: str
    config: PretrainConfig
    fingerprint: str

    @property
    def seed(self) -> int:
        """The run's seed, drawn or given."""
        assert self.config.run.seed is not None, "a resolved run has a seed"
        return self.config.run.seed

    @property
    def first_step(self) -> int:
        """The step of the state that the run starts with: 0, unless it starts from another run's checkpoint."""
        first = self.config.run.init_from.first_step if self.config.run.init_from else 0
        assert first is not None, "a resolved run names the checkpoint that it starts from by its step"
        return first


class VocabularyRef(StrictModel):
    """A vocabulary by content. `size` counts pieces and sentinels, `uri` is the model file ('' for bytes)."""

    uri: str
    kind: str
    extra_ids: int
    size: int
    fingerprint: str


class TaskRequest(StrictModel):
    """The order to materialise one task of a run."""

    run: ResolvedRun
    vocabulary: VocabularyRef
    task: str


class Survey(StrictModel):
    """What a look at a task found before it is tokenised.

    `parts` is what decides the bytes of its dataset, by what it is; `source` is the state that its files were in then,
    '' where there are none. The task is to be tokenised in so many `shares`, 0 where its dataset is there already. The
    look took `seconds`.
    """

    request: TaskRequest
    parts: dict[str, str]
    source: str
    shares: int
    seconds: float


class ShareRequest(StrictModel):
    """The order to tokenise one share of a task, `index` counted from 0."""

    survey: Survey
    index: int


class TokenisedShare(StrictModel):
    """What became of a share: `made` of its parts were missing and tokenised, in `seconds`."""

    task: str
    index: int
    made: int
    seconds: float


class DatasetRef(StrictModel):
    """A committed dataset: `uri` holds a manifest and the arrays that it names."""

    name: str
    uri: str
    fingerprint: str
    rows: int
    reused: bool
    reason: str


class RunInputs(StrictModel):
    """A run and what it trains on, all verified."""

    run: ResolvedRun
    vocabulary: VocabularyRef
    tasks: list[DatasetRef]
    mixture: DatasetRef


class CheckpointRef(StrictModel):
    """A committed checkpoint; `digest` covers parameters, optimiser state and step."""

    uri: str
    step: int
    digest: str


class ParentRef(CheckpointRef):
    """The checkpoint of another run that a run was started from; '' stands for what the checkpoint does not say.

    `run` names that run, `config_fingerprint` its settings. T5X's checkpoints have no digest.
    """

    run: str = ""
    config_fingerprint: str = ""

    def __str__(self) -> str:
        run = f" of run {self.run!r}" if self.run else ""
        known = {"digest": self.digest[:12], "config": self.config_fingerprint}
        marks = ", ".join(f"{name} {mark}" for name, mark in known.items() if mark)
        return f"step {self.step}{run}" + (f" ({marks})" if marks else "")


class SegmentRecord(StrictModel):
    """What one training task did: steps [start, end), and the checkpoint at `end`."""

    start: int
    end: int
    seconds: float
    trained_steps: int
    reused: bool
    parent: CheckpointRef
    checkpoint: CheckpointRef


class Evaluation(StrictModel):
    """Metrics of one checkpoint, by task.

    `settings` names what was measured and how (16 hex digits), `uri` is the record in the run directory. Without
    metrics no evaluation was due at `step`.
    """

    step: int
    checkpoint: CheckpointRef
    metrics: dict[str, dict[str, float]]
    seconds: float
    reused: bool
    settings: str = ""
    uri: str


class Cursor(StrictModel):
    """Where a run stands between two segments.

    `halt` is sticky and `stop_reason` says why ('' while the run goes on); `action_state` is the memory of each action.
    """

    checkpoint: CheckpointRef
    halt: bool = False
    stop_reason: str = ""
    action_state: json_numbers.AnyState = {}


class Summary(Outcome):
    """How a run ended; `report` and `uri` are the files a person opens."""

    run_name: str
    final_step: int
    stop_reason: str
    state_digest: str
    report: str
