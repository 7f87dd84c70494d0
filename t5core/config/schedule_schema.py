"""What a schedule may say: when its pipeline runs, and what becomes of a tick that comes at a bad time."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field

from t5core import cron
from t5core.config.base import StrictModel, require_plain


class ScheduleConfig(StrictModel):
    """When a pipeline runs by itself. Each tick is a run of its own, named `<name>-<date>T<time>`."""

    name: str = Field(description="of the schedule; its runs are named after it")
    cron: str = Field(description="minute, hour, day of month, month, day of week, on the clocks of UTC")
    overlap: Literal["skip", "refuse", "wait"] = Field(
        default="skip", description="what a tick does that finds the previous one still going"
    )
    wait_minutes: float = Field(default=20.0, gt=0.0, le=25.0, description="how long `wait` waits in one attempt")
    backfill: bool = Field(
        default=False, description="run a tick that comes late: whose next one is due already. Off, it is skipped"
    )
    abandoned_hours: float = Field(
        default=48.0, gt=0.0, description="an execution without a sign of life for so long no longer counts as going"
    )

    @pydantic.field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        require_plain(name, of="runs")
        return name

    @pydantic.field_validator("cron")
    @classmethod
    def _fires(cls, expression: str) -> str:
        cron.check(expression)
        return expression

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> ScheduleConfig:
        if self.overlap != "wait" and "wait_minutes" in self.model_fields_set and self.wait_minutes != 20.0:
            raise ValueError(f"wait_minutes={self.wait_minutes} has no effect with overlap: {self.overlap}; set wait")
        return self
