"""What a run may say of the checkpoint of another run that it starts from."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import Field

from t5core.config.base import StrictModel


class InitFromConfig(StrictModel):
    """Another run's checkpoint that a run starts from, instead of from its seed.

    What the run is told itself (learning rate, data, loss, dropout, periods) may be other than the other run's. As in
    T5X, a run that keeps the step goes on from there in the learning-rate schedule, and `train.total_steps` counts from
    step 0, so it has to be above that step.
    """

    checkpoint: str = Field(
        description="folder of one step, of a run or imported (.../checkpoints/1000) or T5X's own "
        "(.../checkpoint_1000); a run directory, for its last one; or published:NAME, for what has that name when the "
        "run begins"
    )
    optimizer_state: bool = Field(default=True, description="false: parameters alone, with a new optimiser")
    step: Literal["keep", "restart"] = Field(default="keep", description="restart: the first step is 0 again")
    restore_dataset: bool = Field(
        default=False, description="go on in the data behind the checkpoint; false: begin with the first batch"
    )
    strict: bool = Field(default=True, description="false: leave out what the checkpoint has and the model has not")
    missing: list[str] = Field(
        default=[],
        description="patterns of parameters (decoder/logits_dense/kernel) that it lacks and the seed draws",
    )
    vocabulary: Literal["same", "any"] = Field(
        default="same", description="any: take parameters that were trained with another vocabulary"
    )

    @pydantic.field_validator("checkpoint")
    @classmethod
    def _names_something(cls, checkpoint: str) -> str:
        if not checkpoint.strip("/"):
            raise ValueError(f"{checkpoint!r} names no checkpoint; give a run directory, or the folder of one step")
        return checkpoint.rstrip("/")

    @pydantic.field_validator("missing")
    @classmethod
    def _patterns(cls, missing: list[str]) -> list[str]:
        for pattern in missing:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
        return missing

    @pydantic.model_validator(mode="after")
    def _data_follow_the_step(self) -> InitFromConfig:
        if self.restore_dataset and self.step == "restart":
            raise ValueError("restore_dataset: true goes on where the step is kept; set step: keep, or leave it out")
        return self

    @property
    def first_step(self) -> int | None:
        """The step of the state that the run starts with; None: not known before the checkpoint is looked up."""
        return _step_of(self.checkpoint) if self.step == "keep" else 0

    @property
    def names_a_step(self) -> bool:
        """Whether `checkpoint` may be the folder of one step, and not a run or a publication."""
        return _step_of(self.checkpoint) is not None


def _step_of(checkpoint: str) -> int | None:
    match = re.search(r"(?:^|/)(?:checkpoint_)?(\d+)/*$", checkpoint)
    return int(match[1]) if match else None
