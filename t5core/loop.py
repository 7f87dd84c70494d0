"""The training loop between two steps: train to the next commit, commit, repeat."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

from t5core import errors
from t5core.preemption import StopRequest
from t5core.schedule import Schedule
from t5core.state import TrainState
from t5core.trainer import Batch, Metrics, Trainer

# (step, global batch or this host's rows of it), closed when training leaves them.
Batches = AbstractContextManager[Iterator[tuple[int, Batch]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Metric sums of the steps (first, last], fetched to the host, and the seconds that they took."""

    first: int
    last: int
    sums: list[dict[str, Any]]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """How a stretch of steps is trained.

    Attributes:
      batches: opens the batches of the steps [start, stop).
      commit: called with the state and its step wherever the schedule says so, and when a stop is asked for.
      report: called with the metrics of each chunk of steps; its return value True asks for a stop after the chunk.
      stats_period: steps of a chunk; chunks also end at commits and after the run's first step.
    """

    trainer: Trainer
    batches: Callable[[int, int], Batches]
    schedule: Schedule
    commit: Callable[[TrainState, int], None]
    report: Callable[[StepMetrics], bool]
    stop: StopRequest
    stats_period: int

    def run(self, state: TrainState, start: int, end: int) -> tuple[TrainState, int]:
        """Returns the state and step reached: `end`, or earlier when `report` asked to stop there.

        Raises:
          Preempted: the process was told to stop; the state of the step that it finished is committed.
        """
        step, asked = start, False
        with self.batches(start, end) as batches:
            while step < end and not asked:
                until = min(self._chunk_end(step), end)
                state, step, asked = self._chunk(state, batches, step, until)
                if self.stop:
                    self.commit(state, step)
                    raise errors.Preempted(f"told to stop; step {step} is committed, run again to go on from there")
                if asked or step == end or step == self.schedule.next_commit(step - 1):
                    self.commit(state, step)
        return state, step

    def _chunk_end(self, step: int) -> int:
        on_grid = self.stats_period * (step // self.stats_period + 1)
        return 1 if step == 0 else min(on_grid, self.schedule.next_commit(step))

    def _chunk(
        self, state: TrainState, batches: Iterator[tuple[int, Batch]], start: int, until: int
    ) -> tuple[TrainState, int, bool]:
        began = time.monotonic()
        pending: list[Metrics] = []
        step = start
        while step < until and not self.stop:
            expected, batch = next(batches)
            assert expected == step, f"batch of step {expected} came for step {step}"
            state, metrics = self.trainer.train_step(state, batch)
            pending.append(metrics)
            step += 1
        if not pending:
            return state, step, False
        # One transfer for the whole chunk: fetching each step's metrics would make the device wait for the host.
        sums = jax.device_get(pending)
        asked = self.report(StepMetrics(first=start, last=step, sums=sums, seconds=time.monotonic() - began))
        return state, step, asked
