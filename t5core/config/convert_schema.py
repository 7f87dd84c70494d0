"""What a conversion of a checkpoint may be told."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core.config.base import StrictModel
from t5core.config.schema import ModelConfig, RunPlace

Format = Literal["t5flow", "t5x", "huggingface"]


class ConversionPlace(RunPlace):
    """Where the conversion and its report lie."""

    name: str = Field(default="convert", description="folder of the conversion under run.root")


class SourceConfig(StrictModel):
    """The checkpoint that is read."""

    uri: str | None = Field(
        default=None,
        description="checkpoint, run directory or folder of a model; None: the last checkpoint of <root>/demo, or a "
        "tiny model made for the purpose",
    )
    format: Literal["auto", "t5flow", "t5x", "huggingface"] = "auto"
    optimizer_state: Literal["keep", "drop"] = Field(default="keep", description="whether it is carried over")
    step: int | None = Field(default=None, ge=0, description="given to a Hugging Face model, which has none; None: 0")
    model: ModelConfig | None = Field(default=None, description="the model that it has to be; None takes what it is")


class DestinationConfig(StrictModel):
    """The checkpoint that is written."""

    format: Format = "huggingface"
    uri: str | None = Field(default=None, description="folder to write to; None: a folder of the conversion's own")
    layout: Literal["unscanned", "scanned"] = Field(
        default="unscanned", description="of the layers of a T5X checkpoint"
    )
    max_shard_bytes: PositiveInt | None = Field(
        default=None, description="largest file of a Hugging Face model; None: 2 GiB"
    )

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> DestinationConfig:
        if self.layout != "unscanned" and self.format != "t5x":
            raise ValueError(f"layout={self.layout} has no effect on format {self.format}; set format: t5x")
        if self.max_shard_bytes is not None and self.format != "huggingface":
            raise ValueError(f"max_shard_bytes={self.max_shard_bytes} has no effect on format {self.format}; remove it")
        return self


class ConvertConfig(StrictModel):
    """Everything that a conversion needs."""

    run: ConversionPlace = ConversionPlace()
    source: SourceConfig = SourceConfig()
    destination: DestinationConfig = DestinationConfig()
