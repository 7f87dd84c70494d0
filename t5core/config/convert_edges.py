"""What travels between the stages of a conversion."""

from __future__ import annotations

from t5core.config.base import Outcome, StrictModel
from t5core.config.convert_schema import ConvertConfig


class SourceRef(StrictModel):
    """A checkpoint to be read, by content: `digest` covers its files, or for one of ours its state."""

    uri: str
    format: str
    digest: str
    size_bytes: int


class ConversionPlan(StrictModel):
    """What is to be converted into what.

    `uri` is the folder of the reports, `destination` that of the new checkpoint; `fingerprint` names source and
    settings together.
    """

    uri: str
    config: ConvertConfig
    source: SourceRef
    destination: str
    fingerprint: str


class Conversion(StrictModel):
    """A conversion that was made: `checkpoint` is what it wrote, `digest` covers its files or its state."""

    plan: ConversionPlan
    checkpoint: str
    step: int
    digest: str
    left_out: list[str]
    reused: bool
    reason: str


class ConversionSummary(Outcome):
    """How a conversion ended; `report` and `parity` are the files a person opens."""

    name: str
    source: str
    checkpoint: str
    step: int
    tensors: int
    largest_logits_difference: float
    report: str
    parity: str
