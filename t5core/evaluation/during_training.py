"""The evaluations of a run at one of its steps, their files, and what the actions make of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from t5core import agreement, progress
from t5core.actions.base import ActionMode
from t5core.actions.decision import ActionSet
from t5core.evaluation import results
from t5core.evaluation.inference import InferenceEvaluator, PendingMetrics
from t5core.evaluation.training_eval import TrainEvaluator
from t5core.metrics.summary_writer import SummaryWriter
from t5core.metrics.writer import MetricWriter
from t5core.state import TrainState

_LONGEST_NAME = 113


class Evaluations:
    """Evaluates a state teacher-forced, then by inference; either may be missing.

    Args:
      model_dir: metrics go to `training_eval/<name>` and `inference_eval/<task>` below it.
      teacher_forced: None: no such evaluation.
      inference: None: no such evaluation.
      actions: look at the metrics.
      writer: of the seconds.
      concurrent: whether metric functions may go on while training does; those that actions wait for never do.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        teacher_forced: TrainEvaluator | None,
        inference: InferenceEvaluator | None,
        actions: ActionSet,
        writer: SummaryWriter,
        concurrent: bool,
    ) -> None:
        self._model_dir = model_dir
        self._teacher_forced, self._inference = teacher_forced, inference
        self._actions = actions
        self._writer = writer
        self._waits = not concurrent or bool(actions.of(ActionMode.INFER_EVAL))
        self._pending: PendingMetrics | None = None

    def __bool__(self) -> bool:
        return self._teacher_forced is not None or self._inference is not None

    def evaluate(
        self, state: TrainState, step: int, *, actions_look: bool, between_batches: Callable[[], None]
    ) -> None:
        """Evaluates the state of `step`, writes the metrics and lets the actions look at them.

        Args:
          state: stays as it is.
          step: of the state.
          actions_look: False when they have looked at this step before.
          between_batches: called before each batch; may raise to end the evaluation.
        """
        if self._teacher_forced is not None:
            figures = self._teacher_forced.evaluate(state.params, between_batches=between_batches)
            self._write(step, figures)
            if actions_look:
                self._actions.look(ActionMode.TRAIN_EVAL, state, figures)
        if self._inference is not None:
            began = time.monotonic()
            self.finish()
            self._pending = self._inference.evaluate(state.params, step, between_batches=between_batches)
            found = self.finish() if self._waits else None
            self._writer.write_scalars(step, {"timing/evaluate_seconds": time.monotonic() - began})
            if self._waits and actions_look:
                self._actions.look(ActionMode.INFER_EVAL, state, found)

    def finish(self) -> dict[str, dict[str, float]] | None:
        """Writes the metrics that are still being computed, when they are there, and returns them.

        Raises:
          Exception: whatever a metric function raised.
        """
        pending, self._pending = self._pending, None
        found = pending.result() if pending is not None else None
        if pending is None or found is None:
            return None
        results.write_metrics(f"{self._model_dir}/inference_eval", pending.step, found)
        for task, metrics in found.items():
            shown = "  ".join(f"{name} {value:.4g}" for name, value in results.scalars(metrics).items())
            progress.say(f"  inference_eval {task} at step {pending.step}: {shown}")
        return found

    def close(self) -> None:
        """Frees what the evaluators hold."""
        if self._inference is not None:
            self._inference.close()

    def _write(self, step: int, figures: Mapping[str, Mapping[str, float]]) -> None:
        if not agreement.is_primary():
            return
        for name, values in figures.items():
            folder = f"{self._model_dir}/training_eval/{name[:_LONGEST_NAME]}"
            with MetricWriter(folder, resume_step=step - 1) as writer:
                writer.write(step, values)
