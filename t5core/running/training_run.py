"""A run under way: stretches of training between evaluations, and what happens where they meet."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t5core import agreement, errors, progress
from t5core.actions import keeping
from t5core.actions.base import TRAIN_TASK, ActionMode
from t5core.actions.decision import ActionSet
from t5core.evaluation.during_training import Evaluations
from t5core.loop import Batches, Loop, StepMetrics
from t5core.metrics.summary_writer import SummaryWriter
from t5core.preemption import StopRequest
from t5core.running import run_record
from t5core.running.run_record import Decision
from t5core.running.saving import Saver
from t5core.schedule import Schedule
from t5core.starting.restore import Start
from t5core.state import TrainState
from t5core.trainer import Batch, Trainer

_IMPORTED_AT = time.monotonic()


@dataclasses.dataclass(kw_only=True)
class TrainingRun:
    """Trains a state up to the end of the schedule, or to where an action or the system asks for a stop.

    At a step of the schedule the order is: the metrics of the steps before are written and the TRAIN actions look at
    them, the state is saved, it is evaluated, and the actions look at that. A stop holds from then on, and the step at
    which it was asked for has a checkpoint; so has one that an action wants to keep for its evaluation.

    Attributes:
      batches: opens the batches of the steps [start, stop).
      first_step: at which the run began, in whatever call.
      stop: what the system asks for.
      stats_period: steps that a line of metrics covers at most.
      gc_period: steps between two collections of garbage; 0: Python decides.
    """

    model_dir: str
    trainer: Trainer
    batches: Callable[[int, int], Batches]
    first_step: int
    schedule: Schedule
    saver: Saver
    evaluations: Evaluations
    actions: ActionSet
    writer: SummaryWriter
    stop: StopRequest
    stats_period: int
    gc_period: int

    def __post_init__(self) -> None:
        self._bar: progress.Bar | None = None
        self._compiled = set(self.trainer.compilation_seconds)
        self._is_warm = False
        self._loop = Loop(
            trainer=self.trainer,
            batches=self._opened,
            first_step=self.first_step,
            schedule=self.schedule,
            commit=self._commit,
            report=self._report,
            stop=self.stop,
            stats_period=self.stats_period,
            pause_periods=(self.gc_period,) if self.gc_period else (),
            emergency=self._save_now,
        )

    def begin(self, start: Start, *, eval_first: bool, decided: Decision | None) -> None:
        """Does what comes before the first step of this call: an evaluation, then a checkpoint.

        Args:
          start: the state to begin with.
          eval_first: whether an evaluation is asked for.
          decided: what an earlier call, which may have ended before its evaluation, decided at this step.
        """
        have_looked = decided is not None and decided.evaluated
        is_resumed = start.found is not None and start.found.is_own and start.step > self.first_step
        is_left = is_resumed and self.schedule.is_evaluation_due(start.step) and not have_looked
        if self.evaluations and (eval_first or is_left):
            self.evaluate(start.state, start.step, actions_look=not have_looked)
        if self.schedule.checkpoint_period:
            self.saver.save(start.state, start.step)

    def run(self, state: TrainState, step: int, *, target: int) -> tuple[int, TrainState]:
        """Returns the step at which the run ended and the state there, which is saved."""
        if step == target:
            progress.say(f"{self.model_dir} stands at step {step}: there is nothing left to train")
        try:
            for _, end in self.schedule.segments(step) if step < target else ():
                if self.actions.stop:
                    break
                with progress.stage(f"train {step} -> {end}", total=target, unit="steps", start=step) as self._bar:
                    state, step = self._loop.run(state, step, end)
                if self.evaluations and self.schedule.is_evaluation_due(step):
                    self.evaluate(state, step)
        except errors.Preempted:
            self.evaluations.finish()
            raise
        self._save_now(state, step)
        self.evaluations.finish()
        return step, state

    def evaluate(self, state: TrainState, step: int, *, actions_look: bool = True) -> None:
        """Evaluates the state of `step`; what the actions decide is kept."""
        self.evaluations.evaluate(
            state, step, actions_look=actions_look, between_batches=lambda: self._leave_if_told(state, step)
        )
        if actions_look:
            self._remember(step, evaluated=True)
            if keeping.is_among_the_best(self.actions, step):
                self.saver.save(state, step)

    @contextlib.contextmanager
    def _opened(self, start: int, stop: int) -> Iterator[Iterator[tuple[int, Batch]]]:
        """Opens batches; of the first one it is written how long it took."""
        began = time.monotonic()
        with self.batches(start, stop) as read:
            first = [] if self._is_warm else list(itertools.islice(read, 1))
            if first:
                self._is_warm = True
                uptime = time.monotonic() - _IMPORTED_AT
                jax.monitoring.record_event_duration_secs("/jax/t5x/train/time_before_first_step_secs", uptime)
                self.writer.write_scalars(start, {"timing/train_iter_warmup": time.monotonic() - began})
            yield itertools.chain(first, read)

    def _leave_if_told(self, state: TrainState, step: int) -> None:
        """Saves and ends the process's run in the middle of an evaluation; among several processes they train on."""
        if self.stop and jax.process_count() == 1:
            self._save_now(state, step)
            raise errors.Preempted(f"told to stop; step {step} is committed, run again to evaluate it and go on")

    def _commit(self, state: TrainState, step: int) -> None:
        """Saves where the schedule says so or a stop was asked for; elsewhere a stretch only ends for an evaluation."""
        if self.schedule.is_checkpoint_due(step) or self.actions.stop:
            self.saver.save(state, step)

    def _save_now(self, state: TrainState, step: int) -> None:
        self.saver.save(state, step)
        self.saver.wait()

    def _report(self, chunk: StepMetrics) -> bool:
        figures = chunk.figures()
        more = {"timing/uptime": time.monotonic() - _IMPORTED_AT}
        if "train_step" not in self._compiled:
            self._compiled.add("train_step")
            more["timing/compilation_seconds"] = self.trainer.compilation_seconds["train_step"]
        self.writer.write_training(chunk.last, figures | more)
        if self._bar is not None:
            self._bar.advance(chunk.last - chunk.first, loss=figures["loss_per_nonpadding_target_token"])
        if self.gc_period and (chunk.last % self.gc_period == 0 or chunk.last == self.schedule.total_steps):
            gc.collect()
        asked_before = self.actions.stop
        asked = self.actions.look(ActionMode.TRAIN, chunk.state, {TRAIN_TASK: figures})
        if asked and not asked_before:
            self._remember(chunk.last, evaluated=False)
        return asked

    def _remember(self, step: int, *, evaluated: bool) -> None:
        reasons: dict[str, Any] = self.actions.asked
        decision = Decision(
            step=step,
            evaluated=evaluated,
            asked=tuple(reasons),
            reasons=tuple(reasons.values()),
            action_state=self.actions.memory(),
        )
        run_record.write_decision(self.model_dir, decision)
        if self.actions.stop and agreement.is_primary():
            progress.say(f"stop at step {step}: {'; '.join(decision.reasons)}")
