"""What an evaluation of checkpoints may be told."""

from __future__ import annotations

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from t5core.config.base import StrictModel
from t5core.config.data_schema import TaskConfig
from t5core.config.infer_schema import GivenVocabularyConfig
from t5core.config.schema import ClusterConfig, EvaluateConfig, ModelConfig, RunPlace


class EvaluationPlace(RunPlace):
    """Where the table and the report lie; datasets and the evaluations themselves are shared below `root`."""

    name: str = Field(default="evaluate", description="folder of the evaluation under run.root")


class EvaluationConfig(StrictModel):
    """Which checkpoints are evaluated on what.

    Model, vocabulary, lengths and tasks are those of the checkpoints' run. Checkpoints that lie in no run's directory
    have to be told them, the model only where none was imported.
    """

    run: EvaluationPlace = EvaluationPlace()
    checkpoint: str = Field(
        default="runs/demo",
        description="a run directory or a folder of steps (all of them), the folder of one step, or published:NAME",
    )
    model: ModelConfig | None = Field(default=None, description="None: that of the run, or of the import")
    vocabulary: GivenVocabularyConfig | None = Field(default=None, description="None: that of the run")
    steps: list[NonNegativeInt] | None = Field(
        default=None, description="of a run directory or a folder of steps; None: every one there is"
    )
    tasks: list[TaskConfig] | None = Field(
        default=None, description="of which the validation splits are taken; None: the tasks of the run"
    )
    module: str | None = Field(default=None, description="Python module that registers the SeqIO tasks among `tasks`")
    seqio_cache_dirs: list[str] = Field(default=[], description="where SeqIO looks for the caches of `tasks`")
    feature_lengths: dict[str, PositiveInt] | None = Field(
        default=None, description="longest inputs and targets, in tokens; None: those of the run"
    )
    evaluate: EvaluateConfig | None = Field(default=None, description="None: as the run evaluates")
    cluster: ClusterConfig = ClusterConfig()

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> EvaluationConfig:
        if self.tasks is None:
            for name in ("module", "seqio_cache_dirs"):
                if value := getattr(self, name):
                    raise ValueError(f"{name}={value!r} has no effect without tasks; name them, or remove it")
        elif not self.tasks:
            raise ValueError("tasks is empty, and there is nothing to evaluate on; leave it out for those of the run")
        if self.steps is not None and not self.steps:
            raise ValueError("steps is empty, and there is nothing to evaluate; leave it out for every checkpoint")
        return self
