"""When things happen: events on absolute steps, so that a resume changes nothing.

Step n means "n updates done". All functions are pure; nobody else decides when.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from t5core import errors
from t5core.config.train_schema import TrainConfig

_MOST_SEGMENTS = 10000  # all of them are laid out before the first is trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The events of a run of `total_steps` updates. A period of 0 means "at the end only".

    Difference from T5X: events lie on multiples of their period counted from step 0, not from the step at which this
    process happened to start.
    """

    total_steps: int
    segment_steps: int
    checkpoint_period: int
    eval_period: int
    checkpoint_steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what cannot be a schedule."""
        for name in ("total_steps", "segment_steps"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name}={getattr(self, name)} trains nothing; give at least 1")
        for name in ("checkpoint_period", "eval_period"):
            if getattr(self, name) < 0:
                raise errors.ConfigError(f"{name}={getattr(self, name)} is negative; give 0 for the end only")

    def is_checkpoint_due(self, step: int) -> bool:
        """Tells whether the checkpoint of `step` belongs to the run (others only hand over between segments)."""
        return step == self.total_steps or step in self.checkpoint_steps or _on_grid(step, self.checkpoint_period)

    def is_evaluation_due(self, step: int) -> bool:
        """Tells whether `step` is evaluated."""
        return step == self.total_steps or _on_grid(step, self.eval_period)

    def is_segment_end(self, step: int) -> bool:
        """Tells whether a segment ends at `step`: a segment is cut at evaluations too, which run between segments."""
        return _on_grid(step, self.segment_steps) or self.is_evaluation_due(step)

    def next_commit(self, step: int) -> int:
        """Returns the first step after `step` at which the state is committed."""
        return next(s for s in self._steps_after(step) if self.is_checkpoint_due(s) or self.is_segment_end(s))

    def segments(self, start: int = 0) -> tuple[tuple[int, int], ...]:
        """Returns the (start, end) of every segment that is left from step `start` on."""
        ends = [step for step in self._steps_after(start) if self.is_segment_end(step)]
        return tuple(zip([start, *ends[:-1]], ends, strict=True)) if ends else ()

    def _steps_after(self, step: int) -> Iterator[int]:
        """Yields the candidates: only multiples of a period or listed steps can be events."""
        while step < self.total_steps:
            later = [period * (step // period + 1) for period in self._periods()]
            listed = [s for s in self.checkpoint_steps if s > step]
            step = min([*later, *listed, self.total_steps])
            yield step

    def _periods(self) -> list[int]:
        return [p for p in (self.segment_steps, self.checkpoint_period, self.eval_period) if p]


def of(config: TrainConfig) -> Schedule:
    """Returns the schedule that a run's configuration asks for.

    Raises:
      ConfigError: it cannot be one, or has more segments than can be chained.
    """
    apart = min(config.segment_steps, config.eval_period or config.segment_steps)
    if config.total_steps > _MOST_SEGMENTS * apart:
        raise errors.ConfigError(
            f"train.total_steps={config.total_steps} in segments of {apart} are more than {_MOST_SEGMENTS} segments; "
            "raise train.segment_steps and train.eval_period"
        )
    return Schedule(
        total_steps=config.total_steps,
        segment_steps=config.segment_steps,
        checkpoint_period=config.checkpoint_period,
        eval_period=config.eval_period,
    )


def _on_grid(step: int, period: int) -> bool:
    return period > 0 and step > 0 and step % period == 0
