"""The configuration of a run: what a YAML file may say, section by section.

`0` and `None` switch a period or a limit off where the field says so. Steps are optimiser updates, counted from 0
over the whole life of a run; lengths are tokens; rates are per step. Sequences are lists because Flyte has no tuples;
nobody changes them.
"""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core import errors
from t5core.config.base import StrictModel
from t5core.config.presets import Architecture, Family, preset

Dtype = Literal["float32", "bfloat16"]
Objective = Literal["span_corruption", "prefix_lm", "lm", "supervised"]


class RunConfig(StrictModel):
    """Which run this is and where it lives."""

    name: str = Field(default="run", description="folder of the run under run.root")
    root: str = Field(default="runs", description="folder or gs:// prefix that holds runs and datasets")
    seed: int | None = Field(default=0, ge=0, lt=2**31, description="None draws one, prints it and stores it")

    @pydantic.field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) or name in ("datasets", "vocabularies"):
            raise ValueError(f"{name!r} cannot name a folder; use letters, digits, '.', '_' and '-'")
        return name


class ModelConfig(StrictModel):
    """A published size by name, with any dimension replaced."""

    preset: str = "t5_1_1_tiny"
    family: Family | None = None
    vocab_size: PositiveInt | None = Field(default=None, description="rows of the embedding; None takes the preset's")
    emb_dim: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    num_encoder_layers: PositiveInt | None = None
    num_decoder_layers: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    mlp_dim: PositiveInt | None = None
    mlp_activations: list[Literal["relu", "gelu", "silu", "linear"]] | None = None
    logits_via_embedding: bool | None = None
    dropout_rate: float = Field(default=0.1, ge=0.0, lt=1.0)
    dtype: Dtype = Field(default="float32", description="of activations; parameters are float32")
    inputs_bidirectional_attention: bool = Field(
        default=False, description="a decoder-only model sees all of its inputs at once (prefix LM)"
    )
    scan_layers: bool = False
    remat_policy: Literal["none", "minimal", "full"] = "none"

    @pydantic.model_validator(mode="after")
    def _preset_exists(self) -> ModelConfig:
        self.architecture()
        return self

    def architecture(self) -> Architecture:
        """Returns every dimension: the preset's, with this section's own put over them."""
        base = preset(self.preset)
        changed = {k: v for k, v in ((k, getattr(self, k, None)) for k in Architecture.model_fields) if v is not None}
        return Architecture.model_validate(base.model_dump() | changed)


class VocabularyConfig(StrictModel):
    """A SentencePiece model that exists (`path`), one to be trained on the tasks' text, or bytes."""

    kind: Literal["sentencepiece", "bytes"] = "sentencepiece"
    path: str | None = Field(default=None, description="a .model file, local or gs://; None trains one")
    size: PositiveInt = Field(default=2000, description="pieces to train when there is no path")
    extra_ids: int = Field(default=100, ge=0, description="sentinels put behind the pieces")
    character_coverage: float = Field(default=0.9995, gt=0.0, le=1.0)
    byte_fallback: bool = Field(default=True, description="spell unknown characters as bytes instead of <unk>")
    max_unknown_rate: float = Field(
        default=0.01, ge=0.0, le=1.0, description="share of <unk> tokens that is refused above"
    )


class TaskConfig(StrictModel):
    """One task of the mixture.

    The text comes from `files` (.txt: a document per line; .jsonl, .tsv, .csv, .parquet: a row each), from a `builtin`
    corpus, or, with neither, from the SeqIO task registered as `name` by `data.module`.
    """

    name: str
    rate: float | None = Field(default=None, ge=0.0, allow_inf_nan=False, description="None: in proportion to examples")
    files: list[str] = []
    validation_files: list[str] = []
    builtin: Literal["python_docs", "python_docstrings"] | None = None
    objective: Objective = "span_corruption"
    text: str = Field(default="text", description="column that holds a document (unsupervised objectives)")
    inputs: str = Field(default="{inputs}", description="template over the columns for a supervised input")
    targets: str = Field(default="{targets}", description="template over the columns for a supervised target")
    noise_density: float = Field(default=0.15, gt=0.0, lt=1.0)
    mean_noise_span_length: float = Field(default=3.0, ge=1.0)
    validation_fraction: float = Field(
        default=0.02, ge=0.0, lt=1.0, description="documents held out when no files are named"
    )
    max_validation_examples: PositiveInt | None = Field(default=256, description="None evaluates all of them")
    metrics: list[str] = Field(
        default=[], description="names or dotted functions, scored on decoded validation examples"
    )

    @pydantic.field_validator("name")
    @classmethod
    def _task_name(cls, name: str) -> str:
        if not re.fullmatch(r"[\w.:-]{1,100}", name):
            raise ValueError(f"{name!r} cannot name a task; use letters, digits, '.', ':', '_' and '-'")
        return name

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> TaskConfig:
        if self.files and self.builtin:
            raise ValueError(f"task {self.name!r} names both files and builtin={self.builtin!r}; keep one")
        if self.validation_files and not self.files:
            raise ValueError(f"task {self.name!r} names validation_files without files; add the files to train on")
        if self.metrics and self.objective != "supervised" and (self.files or self.builtin):
            raise ValueError(
                f"task {self.name!r} has metrics, but its objective is {self.objective!r}; use 'supervised'"
            )
        return self

    @property
    def is_seqio(self) -> bool:
        """Whether the task is looked up in SeqIO's registry."""
        return not self.files and self.builtin is None


class DataConfig(StrictModel):
    """What is trained on: tasks, how they are mixed, and the shape of a row."""

    tasks: list[TaskConfig] = Field(min_length=1)
    module: str | None = Field(default=None, description="Python module that registers SeqIO tasks")
    feature_lengths: dict[str, PositiveInt] = {"inputs": 128, "targets": 128}
    vocabulary: VocabularyConfig = VocabularyConfig()
    pack: bool = True
    shuffle: bool = True
    passes: PositiveInt = Field(
        default=1, description="times each corpus is written out, with its own order and noise; rows repeat after"
    )
    allow_missing_split: bool = Field(default=False, description="go on when a task lacks a validation split")

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task name {twice[0]!r} is used twice; rename one")
        if "targets" not in self.feature_lengths:
            raise ValueError("feature_lengths has no 'targets'; add it, in tokens")
        unknown = sorted(set(self.feature_lengths) - {"inputs", "targets"})
        if unknown:
            raise ValueError(errors.unknown_name("feature in feature_lengths", unknown[0], ("inputs", "targets")))
        if all(task.rate == 0 for task in self.tasks):
            raise ValueError("every task has rate 0; give at least one a rate above 0")
        if self.module is None and any(task.is_seqio for task in self.tasks):
            name = next(task.name for task in self.tasks if task.is_seqio)
            raise ValueError(f"task {name!r} names no files; add files or builtin, or data.module for a SeqIO task")
        return self


class LearningRateConfig(StrictModel):
    """T5X's learning-rate factors, multiplied from left to right."""

    factors: str = "constant * rsqrt_decay"
    base_learning_rate: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    warmup_steps: int = Field(default=10000, ge=0)
    decay_factor: float = Field(default=0.5, gt=0.0)
    steps_per_decay: PositiveInt = 20000
    steps_per_cycle: PositiveInt = 100000
    step_offset: int = Field(default=0, ge=0)
    min_learning_rate: float = Field(default=1e-8, ge=0.0)


class OptimizerGroupConfig(StrictModel):
    """An optimiser for the parameters whose whole path (`decoder/layers_0/mlp/wo/kernel`) matches `pattern`."""

    pattern: str
    name: str = "adafactor"
    arguments: dict[str, bool | int | float | str | None] = {}


class OptimizerConfig(StrictModel):
    """An optimiser by name with its arguments; `learning_rate` is the schedule's."""

    name: str = "adafactor"
    arguments: dict[str, bool | int | float | str | None] = {}
    groups: list[OptimizerGroupConfig] = Field(
        default=[], description="optimisers by parameter; what no pattern matches is frozen"
    )
    frozen: list[str] = Field(default=[], description="patterns of parameters that are not trained")
    clip_global_norm: float | None = Field(default=None, gt=0.0, description="largest norm of the whole gradient")


class LossConfig(StrictModel):
    """The training loss."""

    z_loss: float = Field(default=1e-4, ge=0.0)
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    loss_normalizing_factor: (
        float | Literal["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"] | None
    ) = Field(default="NUM_REAL_TARGET_TOKENS", description="None sums over tokens")


class ActionConfig(StrictModel):
    """Something that looks at the metrics after an evaluation and may stop the run."""

    name: Literal["early_stopping", "terminate_on_nan"]
    task: str
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    patience: PositiveInt = 3
    atol: float = Field(default=0.0, ge=0.0)
    rtol: float = Field(default=0.0, ge=0.0)


class TrainConfig(StrictModel):
    """How long, how much at a time, and what happens on the way."""

    total_steps: PositiveInt = 1000
    segment_steps: PositiveInt = Field(default=250, description="steps of one training task at most")
    batch_size: PositiveInt = Field(default=32, description="rows of a global batch")
    checkpoint_period: PositiveInt = Field(
        default=250, description="steps between checkpoints; the last step always has one"
    )
    eval_period: int = Field(default=250, ge=0, description="steps between evaluations; 0 evaluates at the end only")
    stats_period: PositiveInt = Field(default=10, description="steps that one line of training metrics covers")
    num_microbatches: PositiveInt = 1
    keep_checkpoints: PositiveInt | None = Field(default=3, description="newest ones to keep; None keeps all")
    learning_rate: LearningRateConfig = LearningRateConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    actions: list[ActionConfig] = []

    @pydantic.model_validator(mode="after")
    def _whole_microbatches(self) -> TrainConfig:
        if self.batch_size % self.num_microbatches:
            raise ValueError(f"batch_size={self.batch_size} does not divide into {self.num_microbatches} micro-batches")
        return self


class DecodeConfig(StrictModel):
    """How predictions are made for the metrics of a task."""

    strategy: Literal["greedy", "beam", "sample"] = "greedy"
    beam_size: PositiveInt = 4
    alpha: float = 0.6
    temperature: float = Field(default=1.0, ge=0.0)
    topk: int = Field(default=0, ge=0)
    topp: float = Field(default=0.0, ge=0.0, le=1.0)
    max_examples: PositiveInt | None = Field(
        default=64, description="validation examples to decode per task; None: all"
    )

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> DecodeConfig:
        belongs = {"beam_size": "beam", "alpha": "beam", "temperature": "sample", "topk": "sample", "topp": "sample"}
        for name, strategy in belongs.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and self.strategy != strategy:
                raise ValueError(f"{name}={value} has no effect on {self.strategy} decoding; set strategy: {strategy}")
        if self.topk and self.topp:
            raise ValueError(f"topk={self.topk} and topp={self.topp} exclude each other; keep one")
        return self


class EvaluateConfig(StrictModel):
    """Evaluation on the validation splits."""

    batch_size: PositiveInt = 32
    decode: DecodeConfig = DecodeConfig()


class ClusterConfig(StrictModel):
    """Where the heavy tasks run; a local run takes the devices of this machine."""

    pool: Literal["cpu", "gpu_1", "tpu_v5e_8", "tpu_v6e_8"] = Field(default="cpu", description="node pool of training")


class PretrainConfig(StrictModel):
    """Everything a pre-training run needs."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    cluster: ClusterConfig = ClusterConfig()

    @pydantic.model_validator(mode="after")
    def _sections_fit(self) -> PretrainConfig:
        family = self.model.architecture().family
        if family == "encoder_decoder" and "inputs" not in self.data.feature_lengths:
            raise ValueError("data.feature_lengths has no 'inputs', which an encoder-decoder needs; add it, in tokens")
        if self.model.inputs_bidirectional_attention and (
            family == "encoder_decoder" or "inputs" not in self.data.feature_lengths
        ):
            raise ValueError(
                "model.inputs_bidirectional_attention has no effect without a decoder-only model that has inputs; "
                "set model.family: decoder_only and data.feature_lengths.inputs, or remove it"
            )
        tasks = [task.name for task in self.data.tasks]
        for action in self.train.actions:
            if action.task not in tasks:
                raise ValueError(f"train.actions: {errors.unknown_name('task', action.task, tasks)}")
        return self
