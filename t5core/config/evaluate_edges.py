"""What travels between the stages of an evaluation of checkpoints."""

from __future__ import annotations

from t5core.config.base import Outcome, StrictModel
from t5core.config.edges import CheckpointRef, DatasetRef, Evaluation, ResolvedRun, VocabularyRef
from t5core.config.evaluate_schema import EvaluationConfig


class EvaluationPlan(StrictModel):
    """An evaluation whose every setting is known.

    `uri` is its folder and `trained` the directory of the run that the checkpoints are of, or the folder that they lie
    in when they are of none. `run` has the settings of that run, with the tasks that are evaluated on in the place of
    its own and `uri` as its directory.
    """

    uri: str
    config: EvaluationConfig
    trained: str
    run: ResolvedRun
    vocabulary: VocabularyRef
    checkpoints: list[CheckpointRef]


class EvaluationRequest(StrictModel):
    """The order to evaluate one checkpoint on the validation splits of `datasets`."""

    plan: EvaluationPlan
    datasets: list[DatasetRef]
    checkpoint: CheckpointRef


class EvaluatedCheckpoint(StrictModel):
    """The metrics of one checkpoint; `reason` says why they were measured, or why not again."""

    evaluation: Evaluation
    reason: str


class EvaluationSummary(Outcome):
    """How an evaluation ended; `table` (JSON), `csv` and `report` are the files that a person opens.

    `reason` says why it was skipped, '' where it was not.
    """

    name: str
    reason: str = ""
    checkpoints: int
    reused: int
    table: str
    csv: str
    report: str
