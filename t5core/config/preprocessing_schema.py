"""What a run may say of the text of a task: which documents are left out, and how the others are corrupted."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import Field, NonNegativeInt

from t5core.config.base import StrictModel

_CRITERIA = (
    "min_characters",
    "max_characters",
    "min_tokens",
    "max_tokens",
    "must_match",
    "must_not_match",
    "function",
)


class FilterConfig(StrictModel):
    """One criterion that every document has to meet; the others are left out, and counted under the filter's name.

    Characters, expressions and functions look at the columns that the task reads, tokens at its features before they
    are cut or corrupted.
    """

    name: str | None = Field(default=None, description="the reason in the manifest; None spells the criterion")
    min_characters: NonNegativeInt | None = None
    max_characters: NonNegativeInt | None = None
    min_tokens: NonNegativeInt | None = Field(default=None, description="without EOS")
    max_tokens: NonNegativeInt | None = None
    must_match: str | None = Field(default=None, description="regular expression that occurs somewhere in the text")
    must_not_match: str | None = None
    function: str | None = Field(
        default=None,
        description="module.function of the columns that its parameters name (all for **columns), true for what stays",
    )
    column: str | None = Field(
        default=None, description="column, or for tokens the feature, that is looked at; None: each has to pass"
    )

    @pydantic.model_validator(mode="after")
    def _one_criterion(self) -> FilterConfig:
        given = [name for name in _CRITERIA if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a filter has one criterion, this one has {', '.join(given) or 'none'}; write one of "
                f"{', '.join(_CRITERIA)} in each"
            )
        if self.function is not None and self.column is not None:
            raise ValueError(
                f"column={self.column!r} has no effect on a function, which gets the columns that it names; remove it"
            )
        if self.counts_tokens and self.column not in (None, "inputs", "targets"):
            raise ValueError(f"column={self.column!r} is not a feature; tokens are counted in 'inputs' or 'targets'")
        for name in ("must_match", "must_not_match"):
            self._check_expression(name, getattr(self, name))
        return self

    @staticmethod
    def _check_expression(name: str, expression: str | None) -> None:
        try:
            re.compile(expression or "")
        except re.error as error:
            raise ValueError(f"{name}={expression!r} is not a regular expression: {error}") from error

    @property
    def counts_tokens(self) -> bool:
        """Whether it needs the vocabulary."""
        return self.min_tokens is not None or self.max_tokens is not None

    @property
    def reason(self) -> str:
        """What its drops are counted under."""
        if self.name is not None:
            return self.name
        criterion = next(name for name in _CRITERIA if getattr(self, name) is not None)
        where = f"{self.column}: " if self.column else ""
        return f"{where}{criterion}={getattr(self, criterion)}"


class DenoiserConfig(StrictModel):
    """One way to corrupt text, and how often it is taken relative to the other denoisers of the task."""

    mode_token: str = Field(default="", description="put before the inputs, spelt by the vocabulary; '': nothing")
    noise: Literal["spans", "suffix"] = Field(
        default="spans", description="spans anywhere, as in span corruption, or the end of the text, as in prefix LM"
    )
    noise_density: float = Field(gt=0.0, lt=1.0, description="share of the tokens that the targets give back")
    mean_noise_span_length: float | None = Field(default=None, ge=1.0, description="tokens; of spans only")
    rate: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> DenoiserConfig:
        if self.noise == "suffix" and self.mean_noise_span_length is not None:
            raise ValueError(
                f"mean_noise_span_length={self.mean_noise_span_length} has no effect on a suffix; remove it"
            )
        if self.noise == "spans" and self.mean_noise_span_length is None:
            raise ValueError("a denoiser of spans has no mean_noise_span_length; give it, in tokens")
        return self


def _spans(mode_token: str, noise_density: float, mean_noise_span_length: float) -> DenoiserConfig:
    return DenoiserConfig(
        mode_token=mode_token, noise_density=noise_density, mean_noise_span_length=mean_noise_span_length
    )


# The seven denoisers of UL2 (arXiv:2205.05131, table 1), each as often as any other.
UL2_DENOISERS = (
    _spans("[R]", 0.15, 3.0),
    _spans("[R]", 0.15, 8.0),
    DenoiserConfig(mode_token="[S]", noise="suffix", noise_density=0.25),
    _spans("[X]", 0.5, 3.0),
    _spans("[X]", 0.5, 8.0),
    _spans("[X]", 0.15, 64.0),
    _spans("[X]", 0.5, 64.0),
)
