"""T5X's `train`, on today's JAX: the same arguments, and a run that goes on where it stopped, with the same bits.

Everything that decides when something happens counts absolute steps: an evaluation is due at the multiples of
`eval_period` and at the end, a checkpoint at those of `checkpoint_cfg.save.period`, at the listed steps, at the end and
wherever the run stops. Whatever can be known to be wrong is refused before data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5core import datasets
from t5core.actions.base import BaseAction
from t5core.actions.decision import action_set, run_actions
from t5core.checkpoint_config import CheckpointConfig
from t5core.dataset_config import DatasetConfig
from t5core.evaluation.inference import seqio_evaluator
from t5core.metrics.summary_writer import SummaryWriter
from t5core.models.base import BaseTransformerModel
from t5core.partitioning import Partitioner
from t5core.running import loading, run_start
from t5core.running.preparation import Periods, RandomNumbers, Sources, Steps, check
from t5core.starting.state_initializer import TrainStateInitializer
from t5core.state import TrainState
from t5core.trainer import Trainer

__all__ = ["run_actions", "train"]


def train(  # noqa: PLR0913 - T5X's signature
    *,
    model: BaseTransformerModel,
    train_dataset_cfg: DatasetConfig,
    train_eval_dataset_cfg: DatasetConfig | None,
    infer_eval_dataset_cfg: DatasetConfig | None,
    checkpoint_cfg: CheckpointConfig,
    partitioner: Partitioner,
    trainer_cls: Callable[..., Trainer],
    model_dir: str,
    total_steps: int,
    eval_steps: int,
    eval_period: int,
    relative_steps: int | None = None,
    stats_period: int | None = None,
    random_seed: int | None,
    use_hardware_rng: bool = False,
    summarize_config_fn: Callable[[str, SummaryWriter, int], None],
    inference_evaluator_cls: Callable[..., Any] = seqio_evaluator,
    get_dataset_fn: Callable[..., Any] = datasets.get_dataset,
    concurrent_metrics: bool = True,
    actions: Mapping[str, Sequence[BaseAction]] | None = None,
    train_eval_get_dataset_fn: Callable[..., Mapping[str, Any]] = datasets.get_training_eval_datasets,
    run_eval_before_training: bool = False,
    train_state_initializer_cls: Callable[..., Any] = TrainStateInitializer,
    use_orbax: bool = False,
    verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = datasets.verify_matching_vocabs,
    gc_period: int = 0,
) -> tuple[int, TrainState]:
    """Returns the step at which training ended and the state there.

    A run that was stopped, killed or finished goes on, or is found finished, when the same call is made again.

    Args:
      model: what is trained.
      train_dataset_cfg: what it is trained on.
      train_eval_dataset_cfg: what is evaluated teacher-forced, or None.
      infer_eval_dataset_cfg: what is evaluated by the tasks' metric functions on predictions, or None.
      checkpoint_cfg: what is saved, and what is restored when `model_dir` has no checkpoint.
      partitioner: how parameters and batches lie over the devices.
      trainer_cls: makes the trainer, called with `model`, `partitioner` and `seed`; bind the optimiser and the rate to
        `t5core.trainer.Trainer` with functools.partial.
      model_dir: where everything is written; one run each, which goes on when `train` is called again.
      total_steps: the absolute step at which the run ends.
      eval_steps: batches of a teacher-forced evaluation, for each task and at most.
      eval_period: steps between evaluations; 0 evaluates at the end.
      relative_steps: ends the run so many steps after the one at which it first stood when they were asked for,
        whatever `total_steps` is; a call that is repeated does not move the end. None or 0: not asked for.
      stats_period: steps that a line of training metrics covers at most; None or 0: those between two events.
      random_seed: of initialisation and dropout; None draws one, which the run keeps, and draws numbers as
        `use_hardware_rng` does.
      use_hardware_rng: draws random numbers by the accelerator's own generator.
      summarize_config_fn: called with `model_dir`, a writer of metrics and the step before training.
      inference_evaluator_cls: called with the arguments of `seqio.Evaluator`, which is the default.
      get_dataset_fn: called with a `DatasetConfig`, the shard, the number of shards and a feature converter class;
        returns whatever `t5core.batches.of_dataset` takes: any iterable of batches, a tf.data.Dataset, or random
        access.
      concurrent_metrics: lets the metric functions of an inference evaluation run while training goes on, unless
        actions wait for them.
      actions: by 'TRAIN', 'TRAIN_EVAL' or 'INFER_EVAL', what looks at the metrics and may stop the run.
      train_eval_get_dataset_fn: like `get_dataset_fn`, with `eval_steps` before the converter class; returns iterables
        of batches by name.
      run_eval_before_training: evaluates before the first step too.
      train_state_initializer_cls: makes the first state, called with `trainer`.
      use_orbax: keeps checkpoints as Orbax writes them instead of in T5X's native layout; either is restored.
      verify_matching_vocabs_fn: called with each `DatasetConfig` and the model; None verifies nothing.
      gc_period: steps between collections of garbage; 0 leaves it to Python.

    Raises:
      UserError: something that cannot work, said in one line.
      Preempted: the process was told to stop; the step that it finished is saved.
      RecoverableError: a failure that another call may survive.

    Source: t5x/train.py@cc342d4. docs/parity.md lists what differs, parameter by parameter.
    """
    steps = Steps(total=total_steps, relative=relative_steps)
    periods = Periods(evaluation=eval_period, statistics=stats_period, collection=gc_period)
    sources = Sources(train=train_dataset_cfg, train_eval=train_eval_dataset_cfg, infer_eval=infer_eval_dataset_cfg)
    sources = sources.with_batch_sizes(partitioner)
    random = RandomNumbers(seed=random_seed, use_hardware_rng=use_hardware_rng)
    acts = action_set(actions)
    check(steps, periods, sources, checkpoint_cfg, acts, eval_steps=eval_steps, eval_first=run_eval_before_training)
    sources.verify(verify_matching_vocabs_fn, model)
    with run_start.opened(model_dir, sources, checkpoint_cfg, acts, random=random, gc_period=gc_period) as here:
        trainer = trainer_cls(model=model, partitioner=partitioner, seed=here.seed)
        here.look_for_checkpoint(trainer, steps)
        data = loading.load(
            here.sources, trainer, get_dataset_fn, train_eval_get_dataset_fn, eval_steps=eval_steps, actions=acts
        )
        start, target = here.first_state(train_state_initializer_cls(trainer=trainer), steps)
        here.introduce(trainer, start, summarize_config_fn)
        evaluations = here.evaluations(
            trainer, data, inference_evaluator_cls, eval_steps=eval_steps, concurrent=concurrent_metrics
        )
        run = here.training_run(trainer, data, evaluations, start, target=target, periods=periods, use_orbax=use_orbax)
        run.begin(start, eval_first=run_eval_before_training, decided=here.decision_at(start.step))
        return run.run(start.state, start.step, target=target)
