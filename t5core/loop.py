"""The training loop between two steps: train to the next commit, commit, repeat."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

from t5core import agreement, errors
from t5core.metrics import summarise, weights
from t5core.preemption import StopRequest
from t5core.schedule import Schedule
from t5core.state import TrainState
from t5core.trainer import Batch, Metrics, Trainer

# (step, global batch or this host's rows of it), closed when training leaves them.
Batches = AbstractContextManager[Iterator[tuple[int, Batch]]]


# Metrics of older steps are fetched in passing, so that a long chunk neither piles them up nor lets the host run ahead.
_FETCHED_TOGETHER = 64
# Processes are told to stop at different moments and have to stop at one step; asking them all makes each wait for its
# devices.
_STEPS_BETWEEN_AGREEMENTS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Metric sums of the steps (first, last], fetched to the host, and the seconds that they took.

    `state` is the one after them; the next step consumes it.
    """

    first: int
    last: int
    sums: list[dict[str, Any]]
    seconds: float
    state: TrainState

    def figures(self) -> dict[str, float]:
        """Returns what T5X writes of training, under its names: loss, accuracy, throughput, rates and weights."""
        rates = [float(step["learning_rate"]) for step in self.sums]
        return {
            **summarise.summarise(self.sums),
            **summarise.timing(self.sums, seconds=self.seconds, num_devices=jax.device_count()),
            "learning_rate": sum(rates) / len(rates),
            "learning_rate/current": rates[-1],
            **weights.averaged(self.sums),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """How a stretch of steps is trained.

    Attributes:
      batches: opens the batches of the steps [start, stop).
      first_step: at which the run began, wherever this stretch starts.
      commit: called with the state and its step wherever the schedule says so, where the run ends, and when a stop is
        asked for.
      report: called with the metrics of each chunk of steps; its return value True asks for a stop after the chunk.
      stats_period: steps of a chunk; chunks also end at commits and after the run's first step.
      pause_periods: chunks end at the multiples of these too.
      emergency: called instead of `commit` when the process was told to stop; None: `commit` is.
    """

    trainer: Trainer
    batches: Callable[[int, int], Batches]
    first_step: int
    schedule: Schedule
    commit: Callable[[TrainState, int], None]
    report: Callable[[StepMetrics], bool]
    stop: StopRequest
    stats_period: int
    pause_periods: tuple[int, ...] = ()
    emergency: Callable[[TrainState, int], None] | None = None

    def run(self, state: TrainState, start: int, end: int) -> tuple[TrainState, int]:
        """Returns the state and step reached: `end`, or earlier when `report` asked to stop there.

        Raises:
          Preempted: the process was told to stop; the state of the step that it finished is committed.
        """
        step, asked = start, False
        with self.batches(start, end) as batches:
            while step < end and not asked:
                told = self._is_told_to_stop(step)
                if not told:
                    until = min(self._chunk_end(step), end)
                    state, step, asked = self._chunk(state, batches, step, until)
                    told = self._is_told_to_stop(step)
                if told:
                    (self.emergency or self.commit)(state, step)
                    raise errors.Preempted(f"told to stop; step {step} is committed, run again to go on from there")
                if asked or step == end or step == self.schedule.next_commit(step - 1):
                    self.commit(state, step)
        return state, step

    def _chunk_end(self, step: int) -> int:
        on_grid = [period * (step // period + 1) for period in (self.stats_period, *self.pause_periods)]
        return step + 1 if step == self.first_step else min(*on_grid, self.schedule.next_commit(step))

    def _is_told_to_stop(self, step: int) -> bool:
        """Tells whether some process was asked to stop, at a step that is the same for all of them."""
        if jax.process_count() > 1 and step % _STEPS_BETWEEN_AGREEMENTS == 0 and any(agreement.counts(bool(self.stop))):
            self.stop.set()
            return True
        return jax.process_count() == 1 and bool(self.stop)

    def _chunk(
        self, state: TrainState, batches: Iterator[tuple[int, Batch]], start: int, until: int
    ) -> tuple[TrainState, int, bool]:
        began = time.monotonic()
        sums: list[dict[str, Any]] = []
        pending: list[Metrics] = []
        step = start
        while step < until:
            expected, batch = next(batches)
            assert expected == step, f"batch of step {expected} came for step {step}"
            state, metrics = self.trainer.train_step(state, batch)
            pending.append(metrics)
            step += 1
            if len(pending) == 2 * _FETCHED_TOGETHER:
                sums += jax.device_get(pending[:_FETCHED_TOGETHER])
                del pending[:_FETCHED_TOGETHER]
            if self._is_told_to_stop(step):
                break
        # One transfer for many steps: fetching each step's metrics would make the device wait for the host.
        sums += jax.device_get(pending)
        seconds = time.monotonic() - began
        asked = self.report(StepMetrics(first=start, last=step, sums=sums, seconds=seconds, state=state))
        return state, step, asked
