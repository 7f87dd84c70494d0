"""What a name points to, measured on the data of a run that may take its place."""

from __future__ import annotations

from t5core import errors, progress, publishing, records
from t5core.checkpoints import index
from t5core.config import load
from t5core.config.edges import RunInputs
from t5core.config.schema import PretrainConfig
from t5core.publishing import Candidate, Remeasured
from t5core.rundir import RunDirectory


def measure(inputs: RunInputs, *, settings: str) -> None:
    """Records the value of what `publish.name` points to, as this run's checkpoints are measured.

    Nothing is done when nothing is to be published, when nothing was, when its own value was measured in the same way,
    or when it is recorded already.

    Args:
      inputs: of the run.
      settings: what names the data and the settings of its evaluations.

    Raises:
      CheckpointError: the incumbent is damaged.
    """
    rule = inputs.run.config.publish
    decision = publishing.current(inputs.run.config.run.root, rule.name) if rule is not None else None
    if rule is None or decision is None or decision.candidate.measured_on == settings:
        return
    candidate = decision.candidate
    digest = candidate.checkpoint.digest
    known = recorded(inputs.run.uri)
    if known is not None and (known.digest, known.settings) == (digest, settings):
        return
    obstacle = _obstacle(inputs, candidate)
    value = None if obstacle else _value(inputs, candidate, watched=rule.watched)
    if value is None and not obstacle:
        obstacle = f"it gives no {rule.task}/{rule.metric} here"
    found = Remeasured(digest=digest, settings=settings, value=value, obstacle=obstacle)
    uri = RunDirectory(inputs.run.uri).incumbent_uri
    from t5core import agreement  # imports JAX

    agreement.on_primary(lambda: records.write(uri, found))
    told = f"{rule.task}/{rule.metric} {value:.6g} on this run's data" if value is not None else obstacle
    progress.say(f"incumbent of {rule.name!r}: step {candidate.checkpoint.step} of {candidate.run_name}, {told}")


def recorded(run_uri: str) -> Remeasured | None:
    """Returns what `measure` has recorded last, None when it had nothing to do."""
    return records.read(RunDirectory(run_uri).incumbent_uri, Remeasured)


def _obstacle(inputs: RunInputs, candidate: Candidate) -> str:
    """Returns why the incumbent cannot be measured here, '' when it can."""
    folder, step = index.locate(candidate.checkpoint.uri)
    if step not in index.committed_steps(folder):
        return f"{candidate.checkpoint.uri} is gone"
    vocabulary = index.read_record(folder, step).provenance.vocabulary_fingerprint
    if vocabulary != inputs.vocabulary.fingerprint:
        return f"it was trained with vocabulary {vocabulary}, and this run with {inputs.vocabulary.fingerprint}"
    try:
        there = load.load(RunDirectory(candidate.run_uri).config_uri, PretrainConfig).model
    except errors.ConfigError as error:
        return f"its configuration cannot be read ({error})"
    here = inputs.run.config.model
    pairs = {
        **{name: (value, getattr(here.architecture(), name)) for name, value in there.architecture()},
        "inputs_bidirectional_attention": (there.inputs_bidirectional_attention, here.inputs_bidirectional_attention),
    }
    differing = [f"{name}={before}, and this run {now}" for name, (before, now) in pairs.items() if before != now]
    return f"its model has {differing[0]}" if differing else ""


def _value(inputs: RunInputs, candidate: Candidate, *, watched: tuple[str, str]) -> float | None:
    from t5core import build
    from t5core.checkpoints import parameters
    from t5core.evaluation import checkpoint

    task, metric = watched
    params = parameters.read(candidate.checkpoint, build.trainer_of(inputs).abstract_state.params)
    return checkpoint.measure(inputs, params).get(task, {}).get(metric)
