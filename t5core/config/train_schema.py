"""What a run may say of its training: rates, optimiser, loss, periods, actions. Rates are per step."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core.config.action_schema import ActionConfig, KeepBestConfig
from t5core.config.base import StrictModel


class LearningRateConfig(StrictModel):
    """T5X's learning-rate factors, multiplied from left to right."""

    factors: str = "constant * rsqrt_decay"
    base_learning_rate: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    warmup_steps: int = Field(default=10000, ge=0)
    decay_factor: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)
    steps_per_decay: PositiveInt = 20000
    steps_per_cycle: PositiveInt = 100000
    step_offset: int = Field(default=0, ge=0)
    min_learning_rate: float = Field(default=1e-8, ge=0.0, allow_inf_nan=False)


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
    clip_global_norm: float | None = Field(
        default=None, gt=0.0, allow_inf_nan=False, description="largest norm of the whole gradient"
    )


class LossConfig(StrictModel):
    """The training loss."""

    z_loss: float = Field(default=1e-4, ge=0.0, allow_inf_nan=False)
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    loss_normalizing_factor: (
        Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
        | Literal["NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]
        | None
    ) = Field(default="NUM_REAL_TARGET_TOKENS", description="None sums over tokens")


class TrainConfig(StrictModel):
    """How long, how much at a time, and what happens on the way."""

    total_steps: PositiveInt = 1000
    segment_steps: PositiveInt = Field(default=250, description="steps of one training task at most")
    batch_size: PositiveInt = Field(default=32, lt=2**31, description="rows of a global batch")
    checkpoint_period: PositiveInt = Field(
        default=250, description="steps between checkpoints; the last step always has one"
    )
    eval_period: int = Field(default=250, ge=0, description="steps between evaluations; 0 evaluates at the end only")
    stats_period: PositiveInt = Field(default=10, description="steps that one line of training metrics covers")
    weight_metrics: bool = Field(
        default=False, description="measure weights, gradients and updates of every parameter at every step"
    )
    num_microbatches: PositiveInt = 1
    keep_checkpoints: PositiveInt | None = Field(default=3, description="newest ones to keep; None keeps all")
    keep_period: PositiveInt | None = Field(
        default=None, description="keeps every checkpoint at a multiple of so many steps too; None: no such rule"
    )
    learning_rate: LearningRateConfig = LearningRateConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    actions: list[ActionConfig] = []

    @pydantic.model_validator(mode="after")
    def _whole_microbatches(self) -> TrainConfig:
        if self.batch_size % self.num_microbatches:
            raise ValueError(f"batch_size={self.batch_size} does not divide into {self.num_microbatches} micro-batches")
        return self

    @pydantic.model_validator(mode="after")
    def _keeping_counts(self) -> TrainConfig:
        keeps_best = any(isinstance(action, KeepBestConfig) for action in self.actions)
        if self.keep_checkpoints is None and self.keep_period is not None:
            raise ValueError(
                f"keep_period={self.keep_period} has no effect: keep_checkpoints=null keeps all; give it a number"
            )
        if self.keep_checkpoints is None and keeps_best and self.eval_period % self.checkpoint_period == 0:
            raise ValueError(
                "the action keep_best has no effect: keep_checkpoints=null keeps every evaluated step; give it a number"
            )
        return self
