"""What `train` writes of a run while it trains, for people and for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from t5core.metrics.writer import MetricWriter


class SummaryWriter:
    """Writes the metrics of a run; the interface that `summarize_config_fn` sees is that of T5X's metric writers.

    `train/` has a line for each stretch of training, `timing/` one for each step at which something else happened:
    what restoring, warming up, saving and evaluating took. What is written for one step there is one line, which is
    complete when a later step begins or the writer is closed. Without a folder nothing is written: all but one process
    have such a writer.

    Args:
      model_dir: of the run; None writes nothing.
      resume_step: lines of later steps are dropped.
    """

    def __init__(self, model_dir: str | None, *, resume_step: int) -> None:
        self._model_dir = model_dir
        self._train: MetricWriter | None = None
        self._timing: MetricWriter | None = None
        self._texts: Any = None
        self._pending: tuple[int, dict[str, float]] = (resume_step, {})
        if model_dir is not None:
            self._train = MetricWriter(f"{model_dir}/train", resume_step)
            self._timing = MetricWriter(f"{model_dir}/timing", resume_step - 1)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write_training(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the line of the stretch of training that ends at `step`."""
        if self._train is not None:
            self._train.write(step, figures)

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Adds scalars to the line of `step` among those of what happens between stretches of training."""
        if step != self._pending[0]:
            self._write_pending()
            self._pending = (step, {})
        self._pending[1].update({name: float(value) for name, value in scalars.items()})

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Writes texts for TensorBoard."""
        if self._model_dir is None:
            return
        if self._texts is None:
            from tensorboardX import SummaryWriter as EventWriter

            self._texts = EventWriter(f"{self._model_dir}/train", filename_suffix=".texts")
        for name, text in texts.items():
            self._texts.add_text(name, text, global_step=step)

    def _write_pending(self) -> None:
        step, scalars = self._pending
        if self._timing is not None and scalars:
            self._timing.write(step, scalars)
        self._pending = (step, {})

    def flush(self) -> None:
        """Returns when every complete line is stored."""
        for writer in (self._train, self._timing, self._texts):
            if writer is not None:
                writer.flush()

    def close(self) -> None:
        """Writes what is left and closes the files."""
        self._write_pending()
        for writer in (self._train, self._timing, self._texts):
            if writer is not None:
                writer.close()
