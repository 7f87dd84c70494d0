"""The data of a run, opened by the functions that `train` was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from t5core import batches, progress
from t5core.actions.base import ActionMode
from t5core.actions.decision import ActionSet
from t5core.datasets import FeatureConverterOf
from t5core.partitioning import Partitioner
from t5core.running import preparation
from t5core.running.preparation import Sources
from t5core.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on and what is evaluated teacher-forced, by name; nothing where that was not asked for."""

    train: Any
    evaluations: Mapping[str, Iterable[Any]]


def load(
    sources: Sources,
    trainer: Trainer,
    get_dataset_fn: Callable[..., Any],
    train_eval_get_dataset_fn: Callable[..., Mapping[str, Iterable[Any]]],
    *,
    eval_steps: int,
    actions: ActionSet,
) -> Data:
    """Returns the data, opened in T5X's order: the training set, then the evaluation sets.

    Raises:
      DataError: it is of a kind that cannot be trained on.
      ConfigError: an action watches an evaluation that there will not be.
    """
    converter_cls, partitioner = FeatureConverterOf(trainer.model), trainer.partitioner
    shard_id, num_shards = _shard_of(sources.train.batch_size, partitioner)
    train = get_dataset_fn(sources.train, shard_id, num_shards, converter_cls)
    batches.check(train)
    evaluations: Mapping[str, Iterable[Any]] = {}
    if sources.train_eval is not None:
        shard_id, num_shards = _shard_of(sources.train_eval.batch_size, partitioner)
        evaluations = train_eval_get_dataset_fn(sources.train_eval, shard_id, num_shards, eval_steps, converter_cls)
        if not evaluations:
            progress.say(
                f"  {sources.train_eval.name!r} has nothing to evaluate: no split {sources.train_eval.split!r}"
            )
    preparation.check_watched(actions, ActionMode.TRAIN_EVAL, evaluations, preparation.EVALUATED)
    return Data(train=train, evaluations=evaluations)


def _shard_of(batch_size: int | None, partitioner: Partitioner) -> tuple[int, int]:
    """Returns which part of a batch this process feeds to its devices, and how many parts there are."""
    assert batch_size, "a resolved configuration has a batch size"
    rows = partitioner.process_rows(batch_size)
    share = rows.stop - rows.start
    return rows.start // share, batch_size // share
