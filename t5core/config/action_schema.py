"""What a run may say of its actions, which look at it between two segments; each kind has settings of its own."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core.config.base import StrictModel


class _AnyAction(StrictModel):
    @property
    def watched(self) -> tuple[str, str] | None:
        """The task and the metric of an evaluation that the action looks at, None when it looks at no certain one."""
        return None


class _Watching(_AnyAction):
    task: str
    metric: str = "loss"

    @property
    def watched(self) -> tuple[str, str]:
        """The task and the metric."""
        return self.task, self.metric


class EarlyStoppingConfig(_Watching):
    """Stops when a metric has not improved on its best for `patience` evaluations in a row."""

    name: Literal["early_stopping"]
    mode: Literal["min", "max"] = "min"
    patience: PositiveInt = 3
    atol: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="an improvement is larger, in the metric's unit"
    )
    rtol: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="an improvement is larger, relative to the best value"
    )


class TerminateOnNanConfig(_Watching):
    """Stops when a metric is NaN or infinite."""

    name: Literal["terminate_on_nan"]


class BudgetConfig(_AnyAction):
    """Stops after the first segment at whose end the run has spent its time or its tokens, evaluated or not."""

    name: Literal["budget"]
    seconds: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=False,
        description="of training and evaluation, over all starts of the run; what was lost to a kill is not counted",
    )
    target_tokens: PositiveInt | None = Field(default=None, description="trained on, without padding")

    @pydantic.model_validator(mode="after")
    def _has_a_limit(self) -> BudgetConfig:
        if self.seconds is None and self.target_tokens is None:
            raise ValueError("a budget of nothing stops nothing; give seconds, target_tokens or both")
        return self


class KeepBestConfig(_Watching):
    """Never stops; keeps the best evaluated checkpoints, beside the newest `train.keep_checkpoints`."""

    name: Literal["keep_best"]
    mode: Literal["min", "max"] = "min"
    keep: PositiveInt = Field(default=1, description="checkpoints; of equally good ones the later")


class CallConfig(_AnyAction):
    """Stops when a function of one's own says so, or a `BaseAction` of one's own, which may have a memory."""

    name: Literal["call"]
    function: str = Field(
        description="dotted name of a function(checkpoint, metrics_by_task, **arguments) -> bool, or of a class "
        "derived from BaseAction that is made with the arguments"
    )
    arguments: dict[str, bool | int | float | str | None] = {}


ActionConfig = Annotated[
    EarlyStoppingConfig | TerminateOnNanConfig | BudgetConfig | KeepBestConfig | CallConfig,
    Field(discriminator="name"),
]
