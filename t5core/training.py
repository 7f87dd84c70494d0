"""Training of a run as its directory holds it: restore, train to a step, commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from t5core import agreement, batches, build, errors, preemption, progress, schedule
from t5core.actions import keeping
from t5core.checkpoints import index
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.config.edges import CheckpointRef, ParentRef, RunInputs
from t5core.data.reader import BatchReader
from t5core.loop import Batches, Loop, StepMetrics
from t5core.metrics.writer import MetricWriter
from t5core.rundir import RunDirectory
from t5core.starting import init_from
from t5core.state import TrainState
from t5core.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """Where training took the run up, and the checkpoint to which it brought it."""

    resumed_from: CheckpointRef
    checkpoint: CheckpointRef


def initialise(inputs: RunInputs) -> CheckpointRef:
    """Commits the state before the first step and returns its checkpoint.

    Raises:
      CheckpointError: the checkpoint that the run is to start from cannot be read, or does not fit.
    """
    directory = RunDirectory(inputs.run.uri)
    settings, trainer = inputs.run.config.run.init_from, build.trainer_of(inputs)
    with _open_store(inputs, directory) as store:
        if settings is None:
            state, provenance = trainer.initial_state(), _provenance(inputs, {})
        else:
            beginning = init_from.start(inputs, settings, trainer)
            state = beginning.state
            provenance = _provenance(inputs, {}, parent=beginning.parent, data_start=beginning.data_start)
        store.save(inputs.run.first_step, state.as_tree(), provenance, wait=True)
    return index.reference(directory.checkpoints_uri, inputs.run.first_step)


def train_to(inputs: RunInputs, end: int, *, action_state: dict[str, Any], still_ours: Callable[[], None]) -> Trained:
    """Trains from the last committed step to step `end` and commits it.

    Args:
      inputs: the run and what it trains on.
      end: absolute step.
      action_state: what the actions remember at this point of the run; it goes into the checkpoints.
      still_ours: called before anything is committed; raises when the run is another execution's by now.
    """
    directory = RunDirectory(inputs.run.uri)
    trainer = build.trainer_of(inputs)
    with preemption.listening() as stop, _open_store(inputs, directory) as store:
        restored = store.restore(trainer.abstract_state.as_tree())
        _check_inputs(inputs, restored.record.provenance)
        before = restored.record.provenance
        provenance = _provenance(inputs, action_state, parent=before.parent, data_start=before.schedule.data_start)
        start = restored.record.step
        resumed_from = index.reference(directory.checkpoints_uri, start)
        train_metrics = MetricWriter(directory.metrics_uri("train"), resume_step=start)
        label = f"train {start} -> {end}"
        with (
            train_metrics as writer,
            progress.stage(label, total=inputs.run.config.train.total_steps, unit="steps", start=start) as bar,
        ):

            def commit(state: TrainState, step: int) -> None:
                agreement.on_primary(still_ours)
                writer.flush()
                store.save(step, state.as_tree(), provenance)

            def report(chunk: StepMetrics) -> bool:
                figures = chunk.figures()
                writer.write(chunk.last, figures)
                bar.advance(chunk.last - chunk.first, loss=figures["loss_per_nonpadding_target_token"])
                return False

            loop = Loop(
                trainer=trainer,
                batches=_batches(inputs, trainer, first=before.schedule.data_start),
                first_step=inputs.run.first_step,
                schedule=schedule.of(inputs.run.config.train),
                commit=commit,
                report=report,
                stop=stop,
                stats_period=inputs.run.config.train.stats_period,
            )
            loop.run(TrainState.from_tree(restored.state), start, end)
        store.wait()
    return Trained(resumed_from=resumed_from, checkpoint=index.reference(directory.checkpoints_uri, end))


def _batches(inputs: RunInputs, trainer: Trainer, *, first: int) -> Callable[[int, int], Batches]:
    """Returns what opens the batches of some steps: the rows of them that this process feeds to its devices.

    The step `first` takes the first batch.
    """
    batch_size = inputs.run.config.train.batch_size
    reader = BatchReader(inputs.mixture.uri, batch_size=batch_size, converter=build.converter_of(inputs))
    return batches.of_reader(reader, rows=trainer.partitioner.process_rows(batch_size), first=first)


def _open_store(inputs: RunInputs, directory: RunDirectory) -> CheckpointStore:
    return CheckpointStore(
        directory.checkpoints_uri,
        retention=keeping.policy_of(inputs.run.config.train, inputs.run.config.publish),
        metrics=lambda: keeping.evaluated(directory),
    )


def _provenance(
    inputs: RunInputs, action_state: dict[str, Any], *, parent: ParentRef | None = None, data_start: int = 0
) -> Provenance:
    train = inputs.run.config.train
    return Provenance(
        seed=inputs.run.seed,
        config_fingerprint=inputs.run.fingerprint,
        dataset_fingerprint=inputs.mixture.fingerprint,
        vocabulary_fingerprint=inputs.vocabulary.fingerprint,
        schedule=SchedulePosition(total_steps=train.total_steps, batch_size=train.batch_size, data_start=data_start),
        action_state=action_state,
        parent=parent,
    )


def _check_inputs(inputs: RunInputs, trained_on: Provenance) -> None:
    """Refuses to go on with other data or another vocabulary than the checkpoint was trained on."""
    pairs = {
        "dataset": (trained_on.dataset_fingerprint, inputs.mixture.fingerprint),
        "vocabulary": (trained_on.vocabulary_fingerprint, inputs.vocabulary.fingerprint),
    }
    for what, (before, now) in pairs.items():
        if before != now:
            raise errors.RunDirectoryError(
                f"{inputs.run.uri} was trained on {what} {before}, and the {what} is now {now} (see its stage above); "
                f"bring the text and the code that made it back, or choose another run.name"
            )
