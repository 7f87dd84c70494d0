"""Inference evaluation: the metric functions of SeqIO tasks on what the model predicts, or on its scores of targets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from t5core import agreement, batches, errors, progress
from t5core.dataset_config import DatasetConfig
from t5core.evaluation.results import PredictionsLogger
from t5core.models.decoding import cut_at_eos
from t5core.trainer import Trainer

Example = Mapping[str, np.ndarray]
Indexed = list[tuple[int, Any]]


class Evaluator(Protocol):
    """What an `inference_evaluator_cls` makes; the interface of `seqio.Evaluator`."""

    @property
    def eval_tasks(self) -> Any: ...  # noqa: D102 - those with the split and metrics, each with its name
    @property
    def evaluate(self) -> Callable[..., tuple[Any, Any]]: ...  # noqa: D102 - a future of metrics, and the outputs


def seqio_evaluator(**arguments: Any) -> Evaluator:
    """Returns a `seqio.Evaluator`, T5X's default, that writes each example's prediction; imports SeqIO.

    Args:
      **arguments: of `seqio.Evaluator`; `logger_cls` replaces the logger of predictions.
    """
    from t5core.data.seqio_pipelines import seqio

    return seqio.Evaluator(**{"logger_cls": [PredictionsLogger], **arguments})


class InferenceEvaluator:
    """Runs an evaluator of SeqIO's interface with the model's ways of predicting.

    Every process reads all examples, in batches of one size, and feeds its part of each to its devices: each example is
    decoded exactly once, in order, whatever the batch size and the number of processes. The first process computes the
    metrics.

    Args:
      cfg: what to evaluate; with a batch size.
      evaluator_cls: called with the arguments of `seqio.Evaluator`.
      trainer: of the model.
      feature_converter_cls: makes the converter of the model.
      log_dir: where the evaluator writes.
    """

    def __init__(
        self,
        cfg: DatasetConfig,
        *,
        evaluator_cls: Callable[..., Evaluator],
        trainer: Trainer,
        feature_converter_cls: Callable[..., Any],
        log_dir: str,
    ) -> None:
        assert cfg.batch_size, "a resolved configuration has a batch size"
        self._batch_size = cfg.batch_size
        self._trainer = trainer
        self._rows = trainer.partitioner.process_rows(cfg.batch_size)
        self._evaluator = evaluator_cls(
            mixture_or_task_name=cfg.mixture_or_task_name,
            feature_converter=feature_converter_cls(pack=False),
            eval_split=cfg.split,
            use_cached=cfg.use_cached,
            seed=cfg.seed,
            sequence_length=cfg.task_feature_lengths,
            log_dir=log_dir,
            use_memory_cache=cfg.use_memory_cache,
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have both the split and a metric function."""
        return tuple(task.name for task in self._evaluator.eval_tasks)

    def evaluate(
        self, params: dict[str, Any], step: int, *, between_batches: Callable[[], None] = lambda: None
    ) -> PendingMetrics:
        """Returns the metrics of all tasks, which the evaluator may still be computing."""

        def of(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(dataset: Any, model_feature_shapes: Any = None) -> Any:
                del model_feature_shapes
                return call(self._outputs(name, params, dataset, between_batches))

            return run

        future, outputs = self._evaluator.evaluate(
            compute_metrics=agreement.is_primary(),
            step=step,
            predict_fn=of("predict_batch", lambda found: found),
            score_fn=of("score_batch", lambda found: [(index, float(score)) for index, score in found]),
            predict_with_aux_fn=of("predict_batch_with_aux", _with_aux),
        )
        limits = _length_limit_fractions(outputs, eos_id=self._trainer.model.eos_id)
        return PendingMetrics(step=step, future=future, more=limits)

    def close(self) -> None:
        """Frees the threads of the evaluator."""
        close = getattr(self._evaluator, "close", None)
        if close is not None:
            close()

    def _outputs(
        self, method: str, params: dict[str, Any], dataset: Any, between_batches: Callable[[], None]
    ) -> Indexed:
        """Returns (index, output) of every example of an enumerated dataset."""
        found: Indexed = []
        with progress.stage(method.replace("_", " "), total=None, unit="examples") as bar:
            for indices, batch in self._batches(dataset):
                between_batches()
                output = jax.device_get(self._trainer.inference_step(method, params, *self._drawing(indices, batch)))
                rows = [jax.tree.map(lambda leaf, i=i: leaf[i], output) for i in range(len(indices))]
                found += zip(indices, rows, strict=True)
                bar.advance(len(indices))
        if not found:
            raise errors.DataError("a task of the inference evaluation has no examples in its split; leave it out")
        return found

    def _drawing(self, indices: list[int], batch: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], jax.Array]:
        """Returns a batch and the key to draw samples with: the same ones for an example at each evaluation.

        A model that can tell its rows apart is told their indices: then samples do not depend on the batch size either.
        """
        key = jax.random.PRNGKey(0)
        if not getattr(self._trainer.model, "draws_by_row", False):
            return batch, jax.random.fold_in(key, indices[0])
        row_ids = np.zeros(self._batch_size, np.int32)
        row_ids[: len(indices)] = indices
        return {**batch, "row_ids": row_ids[self._rows]}, key

    def _batches(self, dataset: Any) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """Yields the indices of a global batch's examples, and this process's rows of it."""
        examples = batches.iterate(dataset)
        while chunk := list(itertools.islice(examples, self._batch_size)):
            yield (
                [int(index) for index, _ in chunk],
                _stacked([example for _, example in chunk], self._batch_size, self._rows),
            )


class PendingMetrics:
    """Metrics by task that may still be computed."""

    def __init__(self, *, step: int, future: Any, more: Mapping[str, Mapping[str, float]]) -> None:
        self.step = step
        self._future = future
        self._more = more

    def result(self) -> dict[str, dict[str, Any]] | None:
        """Returns the metrics by task, those of any other type than numbers too; None where none were computed.

        Raises:
          Exception: whatever a metric function raised.
        """
        found = self._future.result()
        if found is None:
            return None
        return {task: {**metrics, **self._more.get(task, {})} for task, metrics in found.items()}


def _stacked(examples: Iterable[Example], batch_size: int, rows: slice) -> dict[str, np.ndarray]:
    """Returns `rows` of a batch of examples, filled up with zeros."""
    examples = list(examples)
    stacked = {name: np.stack([np.asarray(example[name]) for example in examples]) for name in examples[0]}
    missing = batch_size - len(examples)
    return {n: np.pad(v, ((0, missing), *[(0, 0)] * (v.ndim - 1)))[rows] for n, v in stacked.items()}


def _with_aux(found: Indexed) -> tuple[Indexed, dict[str, list[Any]]]:
    """Returns (index, tokens) and, aligned with them, the auxiliary values by name."""
    names = found[0][1][1] if found else {}
    return [(i, tokens) for i, (tokens, _) in found], {name: [aux[name] for _, (_, aux) in found] for name in names}


def _length_limit_fractions(outputs: Any, *, eos_id: int) -> dict[str, dict[str, float]]:
    """Returns, by task, the share of predictions, all decodes of them, that ended by length instead of by EOS."""
    fractions: dict[str, dict[str, float]] = {}
    for task, by_type in outputs.items() if isinstance(outputs, Mapping) else ():
        for kind, found in by_type.items() if isinstance(by_type, Mapping) else ():
            if "PREDICTION" in getattr(kind, "name", kind):
                tokens = found[0] if isinstance(found, tuple) else found
                rows = [row for decodes in tokens for row in np.atleast_2d(decodes)]
                cut = [cut_at_eos(row.tolist(), eos_id=eos_id) for row in rows]
                fractions[task] = {"length_limit_fraction": np.mean([not c.reached_eos for c in cut]).item()}
    return fractions
