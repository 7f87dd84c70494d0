"""Teacher-forced evaluation during training: every task of a mixture, and the mixture."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from t5core import agreement, batches, errors
from t5core.datasets import JoinedSplits
from t5core.evaluation import teacher_forced
from t5core.metrics import summarise
from t5core.trainer import Trainer


class TrainEvaluator:
    """Evaluates parameters on datasets by name.

    Args:
      datasets: this process's part of the batches of each; `JoinedSplits` of others among them cost nothing more.
      trainer: of the model.
      rows: those of a global batch that this process feeds to its devices.
      eval_steps: batches to read of a dataset at most; None reads all.
      keep_in_memory: whether the batches are read once and kept.
    """

    def __init__(
        self,
        datasets: Mapping[str, Iterable[Any]],
        *,
        trainer: Trainer,
        rows: slice,
        eval_steps: int | None,
        keep_in_memory: bool,
    ) -> None:
        self._datasets = dict(datasets)
        self._trainer = trainer
        self._num_rows = rows.stop - rows.start
        self._eval_steps = eval_steps
        self._keep_in_memory = keep_in_memory
        self._kept: dict[int, list[batches.HostBatch]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is evaluated."""
        return tuple(self._datasets)

    def evaluate(
        self, params: dict[str, Any], *, between_batches: Callable[[], None] = lambda: None
    ) -> dict[str, dict[str, float]]:
        """Returns the figures of every dataset, with `num_examples` and throughput.

        Raises:
          DataError: a dataset has no batches, or not as many on every process.
        """
        compiled = "eval_step" in self._trainer.compilation_seconds
        done: dict[int, tuple[list[summarise.Sums], float]] = {}
        figures: dict[str, dict[str, float]] = {}
        for name, dataset in self._datasets.items():
            parts = dataset.parts if isinstance(dataset, JoinedSplits) else (dataset,)
            for part in parts:
                if id(part) not in done:
                    done[id(part)] = self._evaluate_one(name, part, params, between_batches)
            sums = [each for part in parts for each in done[id(part)][0]]
            seconds = sum(done[id(part)][1] for part in parts)
            figures[name] = {
                **summarise.evaluation_figures(sums),
                **summarise.timing(sums, seconds=seconds, num_devices=jax.device_count()),
                "num_examples": summarise.added(sums)["num_examples"],
            }
            if not compiled:
                compiled = True
                figures[name]["timing/compilation_seconds"] = self._trainer.compilation_seconds["eval_step"]
        return figures

    def _evaluate_one(
        self, name: str, dataset: Iterable[Any], params: dict[str, Any], between_batches: Callable[[], None]
    ) -> tuple[list[summarise.Sums], float]:
        began = time.monotonic()
        paused = _with_pauses(self._batches(name, dataset), between_batches)
        sums = teacher_forced.sums(self._trainer, params, name=name, batches=paused)
        if not sums:
            raise errors.DataError(f"the evaluation dataset {name!r} has no batch; add data or leave it out")
        return sums, time.monotonic() - began

    def _batches(self, name: str, dataset: Iterable[Any]) -> Iterable[batches.HostBatch]:
        """Returns the batches of a dataset, as many on every process."""
        if id(dataset) in self._kept:
            return self._kept[id(dataset)]
        read = (
            batches.checked(batch, num_rows=self._num_rows, of=name)
            for batch in itertools.islice(batches.iterate(dataset), self._eval_steps)
        )
        can_be_read_again = not isinstance(dataset, Iterator)
        if jax.process_count() == 1 and can_be_read_again and not self._keep_in_memory:
            return read
        found = list(read)
        having = agreement.counts(len(found))
        if len(set(having)) > 1:
            raise errors.DataError(
                f"the evaluation dataset {name!r} has {having} batches on the processes; give each the same number"
            )
        if self._keep_in_memory or not can_be_read_again:
            self._kept[id(dataset)] = found
        return found


def _with_pauses(read: Iterable[batches.HostBatch], between_batches: Callable[[], None]) -> Iterator[batches.HostBatch]:
    for batch in read:
        between_batches()
        yield batch
