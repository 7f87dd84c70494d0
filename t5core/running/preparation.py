"""What `train` was asked for, checked before any data is read or anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from t5core import errors, storage, trees
from t5core.actions import keeping
from t5core.actions.base import TRAIN_TASK, ActionMode
from t5core.actions.decision import ActionSet
from t5core.checkpoint_config import CheckpointConfig
from t5core.data import stored
from t5core.dataset_config import DatasetConfig
from t5core.metrics.summarise import BY_FEATURE, EVALUATION_METRICS
from t5core.partitioning import Partitioner
from t5core.schedule import Schedule
from t5core.trainer import Trainer

# Metrics that training gives beside those of a teacher-forced evaluation.
_RATES = ("learning_rate", "learning_rate/current")
_THROUGHPUT = tuple(
    f"timing/{name}"
    for name in (
        "seconds",
        "steps_per_second",
        "seconds_per_step",
        "seqs",
        "seqs_per_second",
        "seqs_per_second_per_core",
        "target_tokens_per_second",
        "target_tokens_per_second_per_core",
    )
)
EVALUATED = (*EVALUATION_METRICS, *_THROUGHPUT, "num_examples")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """How far to train: up to the step `total`, or `relative` steps (None or 0: not asked for) whatever `total` is."""

    total: int
    relative: int | None

    def target(self, counted_from: int) -> int:
        """Returns the step at which the run ends; `counted_from` is where relative steps begin."""
        return counted_from + self.relative if self.relative else self.total


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomNumbers:
    """The seed of a run (None: one is drawn), and whether `use_hardware_rng` was asked for."""

    seed: int | None
    use_hardware_rng: bool

    @property
    def from_hardware(self) -> bool:
        """Whether numbers come from the accelerator's generator; without a seed they do, as in T5X."""
        return self.use_hardware_rng or self.seed is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Periods:
    """How often things happen, in steps; None or 0: at the end only, or never where that makes sense."""

    evaluation: int
    statistics: int | None
    collection: int

    def schedule(self, checkpoint_cfg: CheckpointConfig, *, target: int, evaluates: bool) -> Schedule:
        """Returns when a run up to `target` is evaluated and saved."""
        save = checkpoint_cfg.save
        return Schedule(
            total_steps=max(target, 1),
            segment_steps=max(target, 1),
            checkpoint_period=(save.period if save else 0) or 0,
            checkpoint_steps=(save.checkpoint_steps if save else None) or (),
            eval_period=self.evaluation if evaluates else 0,
        )

    def stretch(self, schedule: Schedule) -> int:
        """Returns the steps that one line of training metrics covers at most."""
        candidates = (self.statistics, schedule.eval_period, schedule.checkpoint_period, self.collection)
        return next((steps for steps in candidates if steps), schedule.total_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The datasets of a run; those of evaluation may be missing."""

    train: DatasetConfig
    train_eval: DatasetConfig | None
    infer_eval: DatasetConfig | None

    def _all(self) -> dict[str, DatasetConfig]:
        named = {name: getattr(self, name) for name in ("train", "train_eval", "infer_eval")}
        return {name: cfg for name, cfg in named.items() if cfg is not None}

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate."""
        return len(self._all()) > 1

    def with_batch_sizes(self, partitioner: Partitioner) -> Sources:
        """Returns the sources with a batch size each: where none is given, a row for each data shard.

        Raises:
          ConfigError: a batch size that does not divide over the mesh.
        """
        sized = {}
        for name, cfg in self._all().items():
            batch_size = cfg.batch_size or partitioner.num_data_shards
            partitioner.check_batch_size(batch_size)
            sized[name] = cfg.model_copy(update={"batch_size": batch_size})
        return dataclasses.replace(self, **sized)

    def with_seeds(self, seed: int) -> Sources:
        """Returns the sources with `seed` where none is given; a stored dataset has its own."""
        open_ones = {n: cfg for n, cfg in self._all().items() if cfg.seed is None and not stored.uris(cfg)}
        seeded = {name: cfg.model_copy(update={"seed": seed}) for name, cfg in open_ones.items()}
        return dataclasses.replace(self, **seeded)

    def verify(self, verify_fn: Callable[[DatasetConfig, Any], None] | None, model: Any) -> None:
        """Lets `verify_fn` refuse a dataset whose vocabulary is not the model's; None verifies nothing."""
        if verify_fn is None:
            return
        for cfg in self._all().values():
            verify_fn(cfg, model)

    @property
    def dataset_fingerprint(self) -> str:
        """Names the training data."""
        uris = stored.uris(self.train)
        return stored.fingerprint(uris[0]) if uris else storage.fingerprint(self.settings())

    @property
    def vocabulary_fingerprint(self) -> str:
        """Names the vocabulary that a stored dataset was written with; '' where that is not known."""
        uris = stored.uris(self.train)
        return (stored.vocabulary_fingerprint(uris[0]) if uris else None) or ""

    def settings(self) -> dict[str, str]:
        """Returns what two starts of a run have to have in common: whatever decides the batches."""
        cfg = self.train
        decides = {
            "batch_size": cfg.batch_size,
            "dataset": stored.fingerprint(uris[0]) if (uris := stored.uris(cfg)) else cfg.name,
            "split": cfg.split,
            "task_feature_lengths": dict(sorted((cfg.task_feature_lengths or {}).items())),
            "pack": cfg.pack,
            "shuffle": cfg.shuffle,
            "dataset seed": "drawn" if cfg.seed is None else cfg.seed,
        }
        return {f"train_dataset_cfg.{name}": str(value) for name, value in decides.items()}


def check(
    steps: Steps,
    periods: Periods,
    sources: Sources,
    checkpoint_cfg: CheckpointConfig,
    actions: ActionSet,
    *,
    eval_steps: int,
    eval_first: bool,
) -> None:
    """Refuses what cannot work, or would have no effect.

    Raises:
      ConfigError: the first such setting.
    """
    _check_numbers(steps, periods)
    _check_evaluation(sources, actions, eval_steps=eval_steps, eval_first=eval_first)
    check_watched(actions, ActionMode.TRAIN, [TRAIN_TASK], [*EVALUATION_METRICS, *_RATES, *_THROUGHPUT])
    keeping.check(actions, checkpoint_cfg.save)
    restore = checkpoint_cfg.restore
    if restore is not None and restore.mode == "all":
        raise errors.ConfigError("restore.mode='all' is not supported in training; use 'latest' or 'specific'")
    if restore is not None and restore.path and not isinstance(restore.path, str):
        raise errors.ConfigError(f"restore.path={restore.path} may only be a single path in training; give it as text")


def _check_evaluation(sources: Sources, actions: ActionSet, *, eval_steps: int, eval_first: bool) -> None:
    if sources.train_eval is not None and eval_steps < 1:
        raise errors.ConfigError(f"eval_steps={eval_steps} evaluates nothing; give 1 or more, or no train_eval config")
    if eval_first and not sources.evaluates:
        raise errors.ConfigError("run_eval_before_training=True has no effect without an evaluation; give its config")
    for mode, cfg in ((ActionMode.TRAIN_EVAL, sources.train_eval), (ActionMode.INFER_EVAL, sources.infer_eval)):
        if actions.of(mode) and cfg is None:
            raise errors.ConfigError(f"actions[{mode.name!r}] would never run: there is no {mode.name.lower()} config")
    if sources.infer_eval is not None and stored.uris(sources.infer_eval):
        raise errors.ConfigError(
            f"infer_eval_dataset_cfg names the dataset {sources.infer_eval.name}, which has no metric functions; name "
            f"a SeqIO task"
        )


def _check_numbers(steps: Steps, periods: Periods) -> None:
    given = {
        "total_steps": steps.total,
        "relative_steps": steps.relative,
        "eval_period": periods.evaluation,
        "stats_period": periods.statistics,
        "gc_period": periods.collection,
    }
    for name, value in given.items():
        if value is not None and value < 0:
            raise errors.ConfigError(f"{name}={value} is negative; give 0 or more")


def check_watched(
    actions: ActionSet, mode: ActionMode, tasks: Iterable[str], metrics: Iterable[str] | None = None
) -> None:
    """Refuses actions that watch a task that there will not be, or a metric (None: any may come).

    Raises:
      ConfigError: the message lists the names that there are.
    """
    known_tasks, known_metrics = list(tasks), None if metrics is None else list(metrics)
    for key, action in actions.of(mode).items():
        if action.watched is None:
            continue
        task, metric = action.watched
        if task not in known_tasks:
            raise errors.ConfigError(f"action {key}: {errors.unknown_name('task', task, known_tasks)}")
        if known_metrics is not None and metric not in known_metrics and not metric.startswith(BY_FEATURE):
            raise errors.ConfigError(f"action {key}: {errors.unknown_name('metric', metric, known_metrics)}")


def check_target(target: int, step: int) -> None:
    """Refuses a run that has gone further than it shall.

    Raises:
      ConfigError: it has.
    """
    if target < step:
        raise errors.ConfigError(
            f"total_steps={target} is below the checkpoint's step {step}; raise it, use relative_steps, or choose "
            f"another model_dir"
        )


def model_settings(trainer: Trainer, checkpoint_cfg: CheckpointConfig) -> dict[str, str]:
    """Returns what two starts of a run have to have in common of the model, and where it was restored from.

    Raises:
      ConfigError: `restore.dtype` is not the dtype of the parameters.
    """
    params = trees.flatten(trainer.abstract_state.params)
    restore = checkpoint_cfg.restore
    if restore is not None and restore.dtype is not None:
        other = [p for p, leaf in params.items() if jnp.issubdtype(leaf.dtype, jnp.floating)]
        other = [p for p in other if params[p].dtype != jnp.dtype(restore.dtype)]
        if other:
            raise errors.ConfigError(
                f"restore.dtype={restore.dtype!r} cannot be the dtype of {other[0]}, which is "
                f"{np.dtype(params[other[0]].dtype).name}; set that, or None"
            )
    shapes = {path: [list(leaf.shape), np.dtype(leaf.dtype).name] for path, leaf in params.items()}
    size = sum(leaf.size for leaf in params.values())
    return {
        "parameters": f"{size} in {len(params)} arrays ({storage.fingerprint(shapes)[:8]})",
        "restore.path": str(restore.path) if restore is not None and restore.path else "",
    }
