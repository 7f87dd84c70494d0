"""What cannot work, and what hardly works as meant: each rule one line, told before anything is computed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from t5core import errors, schedule
from t5core.config.action_schema import ActionConfig, EarlyStoppingConfig, KeepBestConfig
from t5core.config.schema import PretrainConfig
from t5core.preflight import lengths
from t5core.preflight.record import DataFigures, Devices, ModelFigures

# Data that are repeated more often teach nothing new.
_MANY_EPOCHS = 100


def check_devices(config: PretrainConfig, devices: Devices) -> None:
    """Checks that batches divide over the devices.

    Raises:
      ConfigError: they do not.
    """
    train = config.train
    for setting, size, parts in (
        ("train.batch_size", train.batch_size, devices.count * train.num_microbatches),
        ("evaluate.batch_size", config.evaluate.batch_size, devices.count),
    ):
        if size % parts:
            micro = f" times {train.num_microbatches} micro-batches" if parts > devices.count else ""
            lower = f"{size // parts * parts} or " if size > parts else ""
            raise errors.ConfigError(
                f"{setting}={size} does not divide by the {devices.count} devices of {devices.name}{micro}; "
                f"use {lower}{(size // parts + 1) * parts}"
            )


def check_module(config: PretrainConfig) -> None:
    """Checks that the module of SeqIO tasks is there; it is not imported, as it would import TensorFlow.

    Raises:
      ConfigError: it is not.
    """
    module = config.data.module
    if module is None:
        return
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise errors.ConfigError(
            f"data.module={module!r} cannot be imported: {error}; check its name and PYTHONPATH"
        ) from error
    if found is None:
        raise errors.ConfigError(f"data.module={module!r} is not to be found; check its name and PYTHONPATH")


def check_rows(config: PretrainConfig, data: DataFigures | None) -> None:
    """Checks that there is a batch to train on; an estimate has to be wrong by half before it is let through.

    Raises:
      DataError: there is none.
    """
    if data is None:
        return
    batch_size = config.train.batch_size
    if data.rows < (batch_size if data.is_exact else batch_size / 1.5):
        raise errors.DataError(
            f"the tasks give {'' if data.is_exact else 'about '}{data.rows:,} rows, fewer than one batch of "
            f"{batch_size}; add data, lower train.batch_size or set data.pack=false"
        )


def check_memory(model: ModelFigures, devices: Devices, *, step_bytes: int | None) -> None:
    """Checks that a device holds the state and the least that a step needs.

    Args:
      model: what the state takes, and a step at least.
      devices: their memory.
      step_bytes: what the compiler reserves for a step on these devices; None: not known.

    Raises:
      ConfigError: it does not.
    """
    step = model.step_bytes_low if step_bytes is None else step_bytes
    if devices.memory_bytes is not None and model.state_bytes + step > devices.memory_bytes:
        least = "at least " if step_bytes is None else ""
        raise errors.ConfigError(
            f"a device of {devices.name} has {devices.memory_bytes / 1e9:,.1f} GB, and the state of "
            f"{model.state_bytes / 1e9:,.1f} GB with {least}{step / 1e9:,.1f} GB for a step does not fit; lower "
            "train.batch_size, raise train.num_microbatches, set model.remat_policy or take another cluster.pool"
        )


def memory_warnings(model: ModelFigures, devices: Devices, *, step_bytes: int | None) -> Iterator[str]:
    """Yields a line when only a compiler that computes values again makes a step fit."""
    highest = model.state_bytes + model.step_bytes_high
    lowest = model.state_bytes + model.step_bytes_low
    if step_bytes is None and devices.memory_bytes is not None and lowest <= devices.memory_bytes < highest:
        yield (
            f"a step may need {highest / 1e9:,.1f} GB with the state, and a device of {devices.name} has "
            f"{devices.memory_bytes / 1e9:,.1f} GB; raise train.num_microbatches or set model.remat_policy to be safe"
        )


def setting_warnings(config: PretrainConfig, *, sentinels: int) -> Iterator[str]:
    """Yields a line for each setting that works, but hardly as meant."""
    for action in config.train.actions:
        yield from _lost_best(config, action)
    yield from _evaluated_unkept(config)
    for task in config.data.tasks:
        if task.objective == "span_corruption" and not task.is_seqio and sentinels:
            sides = config.data.feature_lengths
            noise = lengths.noise_of(task, sentinels=sentinels)
            chunk = noise.chunk_length(inputs_length=sides["inputs"], targets_length=sides["targets"], task=task.name)
            hidden, spans = noise.counts(chunk)
            wanted = round(hidden / task.mean_noise_span_length)
            if spans == sentinels < wanted:
                yield (
                    f"task {task.name!r}: a row of inputs={sides['inputs']} would have {wanted} spans, but there is a "
                    f"sentinel for {sentinels} only, so spans grow to {hidden / spans:.1f} tokens; raise "
                    f"data.vocabulary.extra_ids"
                )


def repetition_warnings(config: PretrainConfig, data: DataFigures | None, *, first_step: int) -> Iterator[str]:
    """Yields a line when the run reads its data so often that it learns them by heart."""
    if data is None or not data.rows:
        return
    steps, batch_size = config.train.total_steps - first_step, config.train.batch_size
    times = steps * batch_size / data.rows
    if times >= _MANY_EPOCHS:
        about = "" if data.is_exact else "about "
        yield (
            f"each row is read {about}{times:,.0f} times: the tasks give {about}{data.rows:,} rows, and {steps:,} "
            f"steps of {batch_size:,} read {steps * batch_size:,}; add text, raise data.passes, or lower "
            "train.total_steps"
        )


def _lost_best(config: PretrainConfig, action: ActionConfig) -> Iterator[str]:
    """Tells when early stopping looks back further than checkpoints are kept."""
    train = config.train
    if not isinstance(action, EarlyStoppingConfig) or train.keep_checkpoints is None or _keeps_best(config, action):
        return
    back = action.patience * (train.eval_period or train.total_steps)
    kept = (train.keep_checkpoints - 1) * train.checkpoint_period
    if kept < back < train.total_steps:
        needed = -(-back // train.checkpoint_period) + 1
        yield (
            f"early stopping on {action.task}/{action.metric} stops {back} steps after the best evaluation, and "
            f"train.keep_checkpoints={train.keep_checkpoints} reaches back {kept}: the best state will be gone; "
            f"add the action keep_best, or keep {needed}"
        )


def _keeps_best(config: PretrainConfig, action: EarlyStoppingConfig) -> bool:
    keepers = [other for other in config.train.actions if isinstance(other, KeepBestConfig)]
    return any((other.watched, other.mode) == (action.watched, action.mode) for other in keepers)


def _evaluated_unkept(config: PretrainConfig) -> Iterator[str]:
    """Tells when states are evaluated whose checkpoints are off the period, and go."""
    events, train = schedule.of(config.train), config.train
    if (
        train.eval_period
        and train.eval_period % train.checkpoint_period
        and not events.is_checkpoint_due(train.eval_period)
    ):
        yield (
            f"train.eval_period={train.eval_period} is no multiple of train.checkpoint_period="
            f"{train.checkpoint_period}: the states evaluated between are not kept"
        )
