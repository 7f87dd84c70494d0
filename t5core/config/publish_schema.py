"""What a run may say of publishing: under which name, and what a checkpoint has to be better at."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from t5core.config.base import StrictModel, require_plain


class PublishConfig(StrictModel):
    """A name that points to the best checkpoint so far; a run's own takes its place when it is better by the margin."""

    name: str = Field(description="of the pointer under <run.root>/published")
    task: str = Field(description="whose validation decides; the name of the mixture stands for all tasks")
    metric: str = "loss"
    mode: Literal["min", "max"] = Field(default="min", description="whether a small or a large value is good")
    margin: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="by how much, in the metric's unit, it must be better"
    )

    @property
    def watched(self) -> tuple[str, str]:
        """The task and the metric that decide."""
        return self.task, self.metric

    @pydantic.field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        require_plain(name, of="a file")
        return name
