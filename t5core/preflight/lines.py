"""A preflight as a person reads it: a label and a sentence for each thing that it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from t5core import counting
from t5core.preflight.record import CheckpointFigures, DataFigures, Preflight
from t5core.report import figures

Line = tuple[str, str]


def lines_of(preflight: Preflight) -> Iterator[Line]:
    """Yields (label, sentence), the figures first and the refusals last."""
    yield from _model(preflight)
    if preflight.checkpoints is not None and preflight.model is not None:
        yield "checkpoints", _checkpoints(preflight.checkpoints, preflight.model.checkpoint_bytes)
    yield "steps", _steps(preflight)
    if preflight.data is not None:
        yield from _data(preflight, preflight.data)
    if preflight.probe is not None:
        yield "time", _time(preflight)
    for entry in preflight.reuse:
        yield ("reused" if entry.found else "to be made"), f"{entry.what}: {entry.reason}"
    yield from (("warning", line) for line in preflight.warnings)
    yield from (("refused", line) for line in preflight.refusals)


def headline(preflight: Preflight) -> str:
    """Returns the preflight in one short line, as a stage tells why it went as it did."""
    parts = []
    if preflight.model is not None:
        parts.append(f"{figures.number(preflight.model.parameters)} parameters")
        parts.append(f"checkpoints of {figures.size(preflight.model.checkpoint_bytes)}")
    if preflight.epochs is not None:
        parts.append(f"{_about(preflight)}{figures.number(preflight.epochs)} epochs")
    return ", ".join(parts)


def _model(preflight: Preflight) -> Iterator[Line]:
    model, devices = preflight.model, preflight.devices
    if model is None:
        return
    yield "parameters", f"{model.parameters:,}"
    room = "" if devices.memory_bytes is None else f" of {figures.size(devices.memory_bytes)}"
    step = f"{figures.size(model.step_bytes_low)} to {figures.size(model.step_bytes_high)}"
    if preflight.probe is not None and preflight.probe.step_bytes is not None:
        step = f"{figures.size(preflight.probe.step_bytes)} (as compiled here)"
    where = f"on {devices.name}" if devices.count == 1 else f"on each of {devices.count} devices of {devices.name}"
    yield "memory", f"{figures.size(model.state_bytes)} for the state and {step} for a step{room} {where}"


def _checkpoints(checkpoints: CheckpointFigures, checkpoint_bytes: int) -> str:
    whole = figures.size(checkpoints.most * checkpoint_bytes)
    room = "" if checkpoints.free_bytes is None else f" of {figures.size(checkpoints.free_bytes)} free"
    return f"{figures.size(checkpoint_bytes)} each, {checkpoints.most} at once at most: {whole}{room}"


def _about(preflight: Preflight) -> str:
    return "" if preflight.data is not None and preflight.data.is_exact else "about "


def _steps(preflight: Preflight) -> str:
    read = preflight.total_steps * preflight.batch_size
    text = f"{preflight.total_steps:,} of {preflight.batch_size:,} rows: {read:,} rows"
    if preflight.epochs is None or preflight.data is None:
        return f"{text}; how many an epoch has is known when the data are written"
    epoch = preflight.data.rows / preflight.batch_size
    return (
        f"{text}, {_about(preflight)}{figures.number(preflight.epochs)} epochs of {figures.number(epoch)} steps "
        f"({preflight.data.rows:,} rows)"
    )


def _data(preflight: Preflight, data: DataFigures) -> Iterator[Line]:
    about = _about(preflight)
    epochs = preflight.epochs or 0.0
    tokens = ", ".join(f"{figures.number(count * epochs)} of {name}" for name, count in data.tokens.items())
    yield "tokens", f"{about}{tokens} in all steps"
    yield "rows", f"{data.basis}; {_shares(data.efficiency)} are tokens, the rest is padding"
    yield "truncated", truncation(data.truncated)


def truncation(truncated: Mapping[str, Mapping[str, float]]) -> str:
    """Returns in words which share of the training examples is cut."""
    parts = [
        f"{task}: {', '.join(f'{100 * share:.2g} % of {side}' for side, share in by_side.items())}"
        for task, by_side in truncated.items()
    ]
    return "; ".join(parts) or "nothing"


def _shares(efficiency: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:.1f} % of {name}" for name, share in efficiency.items())


def _time(preflight: Preflight) -> str:
    probe, left = preflight.probe, preflight.seconds_left or 0.0
    assert probe is not None, "asked for with a probe only"
    steps = counting.count(preflight.steps_left, "step")
    return (
        f"{figures.duration(left)} for {steps} at {probe.seconds_per_step:.3g} s each here, "
        f"without evaluations ({counting.count(probe.steps, 'step')} tried, compiled in "
        f"{figures.duration(probe.compilation_seconds)})"
    )
