"""One call of `train`: what it holds while it lasts, and the steps from a claimed folder to a run that can begin."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from t5core import agreement, batches, errors, model_info, preemption, process_settings, progress, storage
from t5core.actions import keeping
from t5core.actions.base import ActionMode
from t5core.actions.decision import ActionSet
from t5core.checkpoint_config import CheckpointConfig
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.config.edges import ParentRef
from t5core.datasets import FeatureConverterOf
from t5core.evaluation.during_training import Evaluations
from t5core.evaluation.inference import InferenceEvaluator
from t5core.evaluation.training_eval import TrainEvaluator
from t5core.metrics.summary_writer import SummaryWriter
from t5core.preemption import StopRequest
from t5core.rundir import RunDirectory
from t5core.running import preparation, run_record
from t5core.running.loading import Data
from t5core.running.preparation import Periods, RandomNumbers, Sources, Steps
from t5core.running.run_record import Decision, RunRecord
from t5core.running.saving import Saver
from t5core.running.training_run import TrainingRun
from t5core.starting import restore
from t5core.starting.restore import Found, Start
from t5core.trainer import Trainer


@dataclasses.dataclass(kw_only=True)
class RunStart:
    """A run directory that is locked for this call, and whatever is open in it.

    Attributes:
      sources: with a seed each.
      record: of the run.
      stop: what the system asks for.
      exits: closes what is opened, however the call ends.
      still_ours: raises when another execution has taken the directory over.
      writer: of metrics; writes nothing until the first state is known.
      found: the checkpoint that the run starts from.
    """

    model_dir: str
    sources: Sources
    checkpoint_cfg: CheckpointConfig
    actions: ActionSet
    record: RunRecord
    stop: StopRequest
    exits: contextlib.ExitStack
    still_ours: Callable[[], None]
    writer: SummaryWriter
    found: Found | None = None

    @property
    def seed(self) -> int:
        """Of initialisation and dropout."""
        return self.record.random_seed

    def look_for_checkpoint(self, trainer: Trainer, steps: Steps) -> None:
        """Finds out where the run starts, and refuses early what cannot end well.

        Raises:
          RunDirectoryError: the folder belongs to a run of another model, or restored from elsewhere.
          CheckpointError: there is nothing where a checkpoint was promised.
          ConfigError: the run is further than it shall go.
        """
        settings = preparation.model_settings(trainer, self.checkpoint_cfg)
        agreement.on_primary(lambda: run_record.claim(self.model_dir, random_seed=self.seed, settings=settings))
        self.record = run_record.read(self.model_dir)
        self.found = found = restore.find(self.model_dir, self.checkpoint_cfg.restore)
        restore_cfg = self.checkpoint_cfg.restore
        may_change = found is not None and not found.is_own and restore_cfg is not None and restore_cfg.transformations
        if not may_change:  # a transformation may set the step; then it is looked at when the state is known
            step = found.step if found else 0
            from_here = step if self.record.relative_from is None else self.record.relative_from
            preparation.check_target(steps.target(from_here), step)

    def first_state(self, initializer: Any, steps: Steps) -> tuple[Start, int]:
        """Returns the state to begin with, and the step at which the run ends; the actions remember what they knew.

        Raises:
          CheckpointError: the checkpoint cannot be read, or does not fit.
          ConfigError: the run is further than it shall go.
        """
        restore_cfg = self.checkpoint_cfg.restore
        start = restore.start(self.found, restore_cfg, initializer, checkpointer_cls=self._reader_cls())
        self._check_origin(start)
        is_anothers = start.found is not None and not start.found.is_own
        self._check_record(start)
        continues_data = not is_anothers or (restore_cfg is not None and restore_cfg.restore_dataset)
        self.record = run_record.begun(
            self.model_dir,
            self.record,
            step=start.step,
            data_start=start.data_start if continues_data else start.step,
            counts_from_here=bool(steps.relative),
        )
        target = steps.target(self.record.relative_from or 0)
        preparation.check_target(target, start.step)
        self._recall(start)
        return start, target

    def _check_record(self, start: Start) -> None:
        """Refuses to guess where the data of a run of `train` began; the stages' data begin with the first step."""
        is_of_stages = RunDirectory(self.model_dir).info() is not None
        is_ours = start.found is not None and start.found.is_own and start.record is not None and not is_of_stages
        if is_ours and self.record.first_step is None:
            raise errors.RunDirectoryError(
                f"{self.model_dir}/train.json is missing, which says where the data of the run began; restore it from "
                f"a copy, or choose another model_dir"
            )

    def _check_origin(self, start: Start) -> None:
        """Refuses to go on with another seed or other data than the run's own checkpoint was trained with."""
        if start.record is None or start.found is None or not start.found.is_own:
            return
        trained_with = start.record.provenance
        pairs = {
            "random_seed": (trained_with.seed, self.seed),
            "dataset": (trained_with.dataset_fingerprint, self.sources.dataset_fingerprint),
        }
        for what, (before, now) in pairs.items():
            if before != now:
                raise errors.RunDirectoryError(
                    f"checkpoint {start.step} in {self.model_dir} was trained with {what} {before}, and this run has "
                    f"{now}; choose another model_dir, or set it back"
                )

    def _reader_cls(self) -> Any:
        if self.found is None:
            return None
        cfg = self.checkpoint_cfg.save if self.found.is_own else self.checkpoint_cfg.restore
        return cfg.checkpointer_cls if cfg is not None else None

    def decision_at(self, step: int) -> Decision | None:
        """Returns what was decided at `step` by the call before, None when nothing was."""
        decision = run_record.last_decision(self.model_dir, step)
        return decision if decision is not None and decision.step == step else None

    def _recall(self, start: Start) -> None:
        """Gives the actions their memory, and the stop that one of them asked for if it is still there."""
        if start.found is None or not start.found.is_own:
            return
        decision = self.decision_at(start.step)
        if decision is not None:
            self.actions.load(decision.action_state)
        elif start.record is not None:
            self.actions.load(start.record.provenance.action_state)
        asking = self.actions.still_asking(decision.asked) if decision is not None else set()
        if agreement.primary_decides(lambda: bool(asking)):
            assert decision is not None, "it is the decision that asked"
            self.actions.stop = True
            reasons = zip(decision.asked, decision.reasons, strict=True)
            self.actions.asked = {key: reason for key, reason in reasons if key in asking}
            why = "; ".join(self.actions.asked.values())
            progress.say(f"{self.model_dir} was stopped at step {start.step}: {why}; take that action away to go on")

    def introduce(self, trainer: Trainer, start: Start, summarize_config_fn: Callable[..., None]) -> None:
        """Writes what the run consists of: `model-info.txt`, and the configuration as the caller likes to see it."""
        folder = self.model_dir if agreement.is_primary() else None
        self.writer = self.exits.enter_context(SummaryWriter(folder, resume_step=start.step))
        if agreement.is_primary():
            text = model_info.describe(trainer.abstract_state, trainer.logical_axes)
            storage.write_text(f"{self.model_dir}/{model_info.FILE}", text)
        summarize_config_fn(self.model_dir, self.writer, start.step)
        self.writer.write_scalars(start.step, {"timing/init_or_restore_seconds": start.seconds})

    def training_run(
        self,
        trainer: Trainer,
        data: Data,
        evaluations: Evaluations,
        start: Start,
        *,
        target: int,
        periods: Periods,
        use_orbax: bool,
    ) -> TrainingRun:
        """Returns the run, which begins at `start` and ends at the step `target`."""
        schedule = periods.schedule(self.checkpoint_cfg, target=target, evaluates=bool(evaluations))
        rows = trainer.partitioner.process_rows(self.sources.train.batch_size or 0)
        return TrainingRun(
            model_dir=self.model_dir,
            trainer=trainer,
            batches=batches.of_dataset(data.train, rows=rows, first=self.record.data_start),
            first_step=self.record.first_step or 0,
            schedule=schedule,
            saver=self._open_saver(start, total_steps=target, use_orbax=use_orbax),
            evaluations=evaluations,
            actions=self.actions,
            writer=self.writer,
            stop=self.stop,
            stats_period=periods.stretch(schedule),
            gc_period=periods.collection,
        )

    def _open_saver(self, start: Start, *, total_steps: int, use_orbax: bool) -> Saver:
        cfg = self.checkpoint_cfg.save
        constant = Provenance(
            seed=self.seed,
            config_fingerprint=storage.fingerprint(self.record.settings),
            dataset_fingerprint=self.sources.dataset_fingerprint,
            vocabulary_fingerprint=self.sources.vocabulary_fingerprint,
            schedule=SchedulePosition(
                total_steps=total_steps,
                batch_size=self.sources.train.batch_size or 0,
                data_start=self.record.data_start,
            ),
            parent=_parent(start),
        )

        def provenance() -> Provenance:
            return constant.model_copy(update={"action_state": self.actions.memory()})

        store, saved_step = None, None
        if cfg is not None:
            kind = "orbax" if use_orbax else "native"
            folder = f"{self.model_dir}/{restore.ORBAX_FOLDER}" if use_orbax else self.model_dir
            store_cls = cfg.checkpointer_cls or (CheckpointStore if use_orbax else NativeCheckpointStore)
            policy = keeping.policy_with(self.actions, keep=cfg.keep, keep_period=cfg.keep_period)
            known = {"metrics": lambda: keeping.known(self.actions)} if policy.needs_metrics else {}
            store = self.exits.enter_context(store_cls(folder, retention=policy, **known))
            is_saved = start.found is not None and start.found.is_own and start.found.kind == kind
            saved_step = start.step if is_saved else None
        return Saver(
            store, cfg=cfg, provenance=provenance, writer=self.writer, still_ours=self.still_ours, saved_step=saved_step
        )

    def evaluations(
        self,
        trainer: Trainer,
        data: Data,
        inference_evaluator_cls: Callable[..., Any],
        *,
        eval_steps: int,
        concurrent: bool,
    ) -> Evaluations:
        """Returns what evaluates the run's states.

        Raises:
          ConfigError: an action watches a task that is not evaluated.
        """
        teacher_forced = inference = None
        cfg = self.sources.train_eval
        if data.evaluations and cfg is not None:
            teacher_forced = TrainEvaluator(
                data.evaluations,
                trainer=trainer,
                rows=trainer.partitioner.process_rows(cfg.batch_size or 0),
                eval_steps=eval_steps,
                keep_in_memory=cfg.use_memory_cache,
            )
        if self.sources.infer_eval is not None:
            inference = InferenceEvaluator(
                self.sources.infer_eval,
                evaluator_cls=inference_evaluator_cls,
                trainer=trainer,
                feature_converter_cls=FeatureConverterOf(trainer.model),
                log_dir=f"{self.model_dir}/inference_eval",
            )
            self.exits.callback(inference.close)
            preparation.check_watched(self.actions, ActionMode.INFER_EVAL, inference.tasks)
            if not inference.tasks:
                progress.say(f"  no task of {self.sources.infer_eval.name!r} has the split and metrics: not decoded")
                inference = None
        return Evaluations(
            self.model_dir,
            teacher_forced=teacher_forced,
            inference=inference,
            actions=self.actions,
            writer=self.writer,
            concurrent=concurrent,
        )


def _parent(start: Start) -> ParentRef | None:
    """Returns the checkpoint of another run that this run was started from."""
    if start.found is None or start.found.is_own:
        return start.record.provenance.parent if start.record is not None else None
    return restore.parent_of(start.found, start.record)


@contextlib.contextmanager
def opened(
    model_dir: str,
    sources: Sources,
    checkpoint_cfg: CheckpointConfig,
    actions: ActionSet,
    *,
    random: RandomNumbers,
    gc_period: int,
) -> Iterator[RunStart]:
    """Gives the start of one call of `train`; everything it opened or changed is put back at its end.

    Raises:
      RunDirectoryError: `model_dir` is another run's, is in use, or cannot be written.
    """
    settings = {**sources.settings(), "random numbers": "hardware" if random.from_hardware else "threefry"}
    with contextlib.ExitStack() as exits:
        jax.monitoring.record_event("/jax/t5x/train/beacon")
        stop = exits.enter_context(preemption.listening())
        exits.enter_context(process_settings.random_numbers(from_hardware=random.from_hardware))
        exits.enter_context(process_settings.garbage_collection(paused=gc_period > 0))
        record, still_ours = exits.enter_context(
            run_record.opened(model_dir, random_seed=random.seed, settings=settings)
        )
        if random.seed is None and agreement.is_primary():
            progress.say(f"random_seed=None: run {record.run_id} has drawn {record.random_seed} and keeps it")
        yield RunStart(
            model_dir=model_dir,
            sources=sources.with_seeds(record.dataset_seed),
            checkpoint_cfg=checkpoint_cfg,
            actions=actions,
            record=record,
            stop=stop,
            exits=exits,
            still_ours=still_ours,
            writer=SummaryWriter(None, resume_step=0),
        )
