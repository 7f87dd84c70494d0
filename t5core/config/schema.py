"""The configuration of a run: what a YAML file may say, section by section.

`0` and `None` switch a period or a limit off where the field says so. Steps are optimiser updates, counted from 0
over the whole life of a run; lengths are tokens; rates are per step. Sequences are lists because Flyte has no tuples;
nobody changes them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core import errors
from t5core.config.base import StrictModel, require_plain
from t5core.config.data_schema import DataConfig
from t5core.config.init_schema import InitFromConfig
from t5core.config.presets import Architecture, Family, PositionBias, preset
from t5core.config.publish_schema import PublishConfig
from t5core.config.train_schema import TrainConfig

Dtype = Literal["float32", "bfloat16"]
Dimension = Annotated[int, Field(gt=0, lt=2**31)]

# What is to be as in the checkpoint that the run starts from.
PARENT = "parent"

# Folders under run.root that belong to no run.
_SHARED = ("datasets", "vocabularies", "evaluations", "made", "imported", "published", "schedules", "compilation-cache")


class RunPlace(StrictModel):
    """Where a run lives."""

    name: str = Field(default="run", description="folder of the run under run.root")
    root: str = Field(default="runs", description="folder or gs:// prefix that holds runs and datasets")

    @pydantic.field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        require_plain(name, of="a folder", longest=100)
        if name in _SHARED:
            raise ValueError(f"{name!r} is a folder that runs share; choose another name")
        return name

    @pydantic.field_validator("root")
    @classmethod
    def _root_is_a_place(cls, root: str) -> str:
        if not re.fullmatch(r"[^\0-\x1f]+", root):
            raise ValueError(f"{root!r} names no folder; give one, or a gs:// prefix")
        if "://" in root and not re.match(r"(gs|s3)://[^/]", root):
            raise ValueError(f"{root!r} is no place for runs; give a folder, or a prefix as gs://bucket/runs")
        return root


class RunConfig(RunPlace):
    """Which run this is and where it lives."""

    seed: int | None = Field(default=0, ge=0, lt=2**31, description="None draws one, prints it and stores it")
    init_from: InitFromConfig | None = Field(
        default=None, description="another run's checkpoint to start from; None draws the parameters from the seed"
    )


class ModelConfig(StrictModel):
    """A published size by name, with any dimension replaced."""

    preset: str = Field(
        default="t5_1_1_tiny",
        description="a size in presets.py; or parent: the model of the checkpoint in run.init_from",
    )
    family: Family | None = None
    vocab_size: Dimension | None = Field(
        default=None,
        description="rows of the embedding; None: what the run's vocabulary needs, pieces and extra_ids rounded up to "
        "a multiple of 128, or the rows of the checkpoint that brings it. Where there is no run, the preset's",
    )
    emb_dim: Dimension | None = None
    num_heads: Dimension | None = None
    num_encoder_layers: Dimension | None = None
    num_decoder_layers: Dimension | None = None
    head_dim: Dimension | None = None
    mlp_dim: Dimension | None = None
    mlp_activations: list[Literal["relu", "gelu", "silu", "linear"]] | None = Field(default=None, min_length=1)
    logits_via_embedding: bool | None = None
    relative_position_bias: PositionBias | None = Field(
        default=None, description="one for all layers of a stack, as in T5, or one for each layer, as in umT5"
    )
    dropout_rate: float = Field(default=0.1, ge=0.0, lt=1.0)
    dtype: Dtype = Field(default="float32", description="of activations; parameters are float32")
    inputs_bidirectional_attention: bool = Field(
        default=False, description="a decoder-only model sees all of its inputs at once (prefix LM)"
    )
    scan_layers: bool = False
    remat_policy: Literal["none", "minimal", "full"] = "none"

    @pydantic.model_validator(mode="after")
    def _preset_exists(self) -> ModelConfig:
        if self.preset != PARENT:
            self.architecture()
        return self

    def architecture(self) -> Architecture:
        """Returns every dimension: the preset's, with this section's own put over them.

        Before a run is resolved its `vocab_size` may still be the preset's.

        Raises:
          ConfigError: there is no such preset, or it is `parent`, which is known when a run is resolved.
        """
        if self.preset == PARENT:
            raise errors.ConfigError(
                "model.preset: parent is the model of the checkpoint in run.init_from, which there is not here; "
                "name a size"
            )
        base = preset(self.preset)
        changed = {k: v for k, v in ((k, getattr(self, k, None)) for k in Architecture.model_fields) if v is not None}
        return Architecture.model_validate(base.model_dump() | changed)


class DecodingConfig(StrictModel):
    """How predictions are made."""

    strategy: Literal["greedy", "beam", "sample"] = "greedy"
    beam_size: PositiveInt = 4
    alpha: float = Field(default=0.6, allow_inf_nan=False)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    topk: int = Field(default=0, ge=0, lt=2**31)
    topp: float = Field(default=0.0, ge=0.0, le=1.0)

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> DecodingConfig:
        belongs = {"beam_size": "beam", "alpha": "beam", "temperature": "sample", "topk": "sample", "topp": "sample"}
        for name, strategy in belongs.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and self.strategy != strategy:
                raise ValueError(f"{name}={value} has no effect on {self.strategy} decoding; set strategy: {strategy}")
        if self.topk and self.topp:
            raise ValueError(f"topk={self.topk} and topp={self.topp} exclude each other; keep one")
        return self


class DecodeConfig(DecodingConfig):
    """How predictions are made for the metrics of a task."""

    max_examples: PositiveInt | None = Field(
        default=64, description="validation examples to decode per task; None: all"
    )


class EvaluateConfig(StrictModel):
    """Evaluation on the validation splits."""

    batch_size: PositiveInt = 32
    decode: DecodeConfig = DecodeConfig()


class ClusterConfig(StrictModel):
    """Where the heavy tasks run; a local run takes the devices of this machine."""

    pool: Literal["cpu", "gpu_1", "tpu_v5e_8", "tpu_v6e_8"] = Field(default="cpu", description="node pool of training")
    compilation_cache: str | None = Field(
        default=None, description="folder or gs:// prefix for compiled programs; None: under run.root"
    )


class PretrainConfig(StrictModel):
    """Everything a pre-training run needs."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    cluster: ClusterConfig = ClusterConfig()
    publish: PublishConfig | None = Field(
        default=None, description="the name that the run's best checkpoint may take; None publishes nothing"
    )

    @pydantic.model_validator(mode="after")
    def _sections_fit(self) -> PretrainConfig:
        # What `parent` is comes to light when the run is resolved, and these are looked at again.
        family = self.model.architecture().family if self.model.preset != PARENT else self.model.family
        if family == "encoder_decoder" and "inputs" not in self.data.feature_lengths:
            raise ValueError("data.feature_lengths has no 'inputs', which an encoder-decoder needs; add it, in tokens")
        if self.model.inputs_bidirectional_attention and (
            family == "encoder_decoder" or "inputs" not in self.data.feature_lengths
        ):
            raise ValueError(
                "model.inputs_bidirectional_attention has no effect without a decoder-only model that has inputs; "
                "set model.family: decoder_only and data.feature_lengths.inputs, or remove it"
            )
        init_from = self.run.init_from
        first = init_from.first_step if init_from is not None else None
        if init_from is not None and first is not None and self.train.total_steps <= first:
            raise ValueError(
                f"train.total_steps={self.train.total_steps} is not above step {first}, at which "
                f"run.init_from starts; raise it (it counts from step 0), or set run.init_from.step: restart"
            )
        may_be_mixtures = any(task.is_seqio for task in self.data.tasks)  # whose tasks are known once it is imported
        for action in self.train.actions:
            if action.watched is None or may_be_mixtures:
                continue
            if action.watched[0] not in self.data.evaluated:
                raise ValueError(
                    f"train.actions: {errors.unknown_name('task', action.watched[0], self.data.evaluated)}"
                )
        if self.publish is not None and self.publish.task not in self.data.evaluated and not may_be_mixtures:
            raise ValueError(f"publish.task: {errors.unknown_name('task', self.publish.task, self.data.evaluated)}")
        for setting, value in (
            ("data.vocabulary.kind", self.data.vocabulary.kind),
            ("model.preset", self.model.preset),
        ):
            if value == PARENT and init_from is None:
                raise ValueError(f"{setting}: parent is that of run.init_from, which is not set; set it")
        return self
