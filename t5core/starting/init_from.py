"""A run that starts from a checkpoint of another: whether the two fit, and the state to begin with."""

from __future__ import annotations

import dataclasses
import re

from t5core import build, errors, trees
from t5core.checkpoints import index, pins
from t5core.checkpoints.record import CheckpointRecord
from t5core.config.edges import ParentRef, RunInputs, VocabularyRef
from t5core.config.init_schema import InitFromConfig
from t5core.config.presets import Architecture
from t5core.config.schema import PretrainConfig
from t5core.rundir import RunDirectory
from t5core.starting import fitting, parent_model, restore
from t5core.starting.fitting import Terms, Tree
from t5core.starting.restore import Found
from t5core.state import TrainState
from t5core.trainer import Trainer

# What the shapes of the parameters do not always tell.
_UNSEEN = ("family", "num_heads", "head_dim", "mlp_activations", "logits_via_embedding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beginning:
    """The state that a run begins with, where it comes from, and the step that reads the first batch of its data."""

    state: TrainState
    parent: ParentRef
    data_start: int


def check(config: PretrainConfig, run_uri: str) -> None:
    """Refuses a checkpoint that is not there or does not fit, before anything is computed; reads no array.

    A run that has a checkpoint of its own needs the other's no more, which may be gone.

    Raises:
      CheckpointError: what does not fit, by name.
    """
    settings = config.run.init_from
    if settings is None or index.latest(RunDirectory(run_uri).checkpoints_uri) is not None:
        return
    found = _found(settings)
    stored, record = restore.shapes(found)
    stored = _asked_for(stored, settings)
    wanted = _asked_for(build.abstract_state(config).as_tree(), settings)
    _check_architecture(found, record, config.model.architecture())
    _check_patterns(found, settings, stored, wanted)
    fitting.check_fit(stored, wanted, terms=_terms(settings), where=found.where)
    vocabulary = config.data.vocabulary
    if vocabulary.kind == "bytes" and record is not None:
        from t5core.data.vocabulary import ByteVocabulary

        _check_vocabulary(found, settings, record, ByteVocabulary(extra_ids=vocabulary.extra_ids).fingerprint)


def check_vocabulary(config: PretrainConfig, run_uri: str, vocabulary: VocabularyRef) -> None:
    """Refuses parameters that were trained with another vocabulary, once the run's own is known.

    Raises:
      CheckpointError: the checkpoint says that it was trained with another.
    """
    settings = config.run.init_from
    if settings is None or index.latest(RunDirectory(run_uri).checkpoints_uri) is not None:
        return
    found = _found(settings)
    record = restore.shapes(found)[1]
    if record is not None:
        _check_vocabulary(found, settings, record, vocabulary.fingerprint)


def start(inputs: RunInputs, settings: InitFromConfig, trainer: Trainer) -> Beginning:
    """Returns the beginning of a run that starts from the checkpoint that `settings` name, verified by its digests.

    Raises:
      CheckpointError: it cannot be read, or does not fit.
    """
    found = _found(settings)
    wanted = trainer.abstract_state.as_tree()
    if found.kind == "orbax":
        with pins.reading(found.folder, found.step):
            stored, record = restore.read(found, wanted, params_only=not settings.optimizer_state)
    else:
        stored, record = restore.read(found, wanted, params_only=not settings.optimizer_state)
    if record is not None:
        _check_vocabulary(found, settings, record, inputs.vocabulary.fingerprint)
    _check_step(found, stored)
    wanted = _asked_for(wanted, settings)
    fitted = fitting.fit(
        _asked_for(stored, settings),
        wanted,
        terms=_terms(settings),
        draw=lambda: trainer.initial_state().as_tree(),
        where=found.where,
    )
    return Beginning(
        state=trainer.state_of(fitted["params"], fitted.get("opt_state"), step=inputs.run.first_step),
        parent=restore.parent_of(found, record),
        data_start=_data_start(found, settings, record, inputs),
    )


def _found(settings: InitFromConfig) -> Found:
    return restore.specific(settings.checkpoint, setting="run.init_from.checkpoint")


def _asked_for(state: Tree, settings: InitFromConfig) -> Tree:
    """Returns the parts of a state that are taken from the checkpoint; its step stands in its name."""
    parts = ("params", "opt_state") if settings.optimizer_state else ("params",)
    return {part: state.get(part, {}) for part in parts}


def _terms(settings: InitFromConfig) -> Terms:
    return Terms(
        strict=settings.strict,
        may_draw=lambda path: _is_listed(path, settings),
        dtype="float32",  # which holds every parameter that is stored in fewer bits
        if_missing="list the parameter in run.init_from.missing, or set run.init_from.optimizer_state: false if it is "
        "the optimiser's state that is missing",
        if_extra="set run.init_from.strict: false, which leaves it out",
        same="set model: {preset: parent}, which is that of the checkpoint, and the optimizer it was trained with",
        another="another checkpoint in run.init_from",
    )


def _is_listed(path: str, settings: InitFromConfig) -> bool:
    """Tells whether a leaf is a parameter that `missing` lists, or the optimiser's state of one."""
    names = [path.removeprefix("params/")] if path.startswith("params/") else trees.paths_within(path)
    return any(re.fullmatch(pattern, name) for pattern in settings.missing for name in names)


def _check_patterns(found: Found, settings: InitFromConfig, stored: Tree, wanted: Tree) -> None:
    there, here = trees.flatten(stored["params"]), trees.flatten(wanted["params"])
    lacking = [path for path in here if path not in there]
    for pattern in settings.missing:
        if not any(re.fullmatch(pattern, path) for path in lacking):
            raise errors.CheckpointError(
                f"run.init_from.missing: {pattern!r} matches nothing that {found.where} lacks "
                f"({', '.join(lacking) or 'it lacks no parameter'}); remove it, or write it as the whole name"
            )


def _check_architecture(found: Found, record: CheckpointRecord | None, here: Architecture) -> None:
    """Compares what shapes do not tell."""
    there = parent_model.known(found, record)
    if there is None:
        return
    for name in _UNSEEN:
        before, now = getattr(there.architecture(), name), getattr(here, name)
        if before != now:
            raise errors.CheckpointError(
                f"{found.where} is of a model with {name}={before}, and this run has {now}; set model: "
                f"{{preset: parent}}, which is that model, or another checkpoint in run.init_from"
            )


def _check_vocabulary(found: Found, settings: InitFromConfig, record: CheckpointRecord, now: str) -> None:
    before = record.provenance.vocabulary_fingerprint
    if settings.vocabulary == "same" and before and before != now:
        raise errors.CheckpointError(
            f"{found.where} was trained with vocabulary {before}, and this run has {now}; set data.vocabulary.kind: "
            f"parent, which takes that one, or run.init_from.vocabulary: any"
        )


def _check_step(found: Found, stored: Tree) -> None:
    step = stored.get("step")
    if step is not None and int(step) != found.step:
        raise errors.CheckpointError(f"{found.where} holds the state of step {int(step)}; name its folder after that")


def _data_start(found: Found, settings: InitFromConfig, record: CheckpointRecord | None, inputs: RunInputs) -> int:
    """Returns the step that reads the first batch.

    Raises:
      CheckpointError: the data shall go on, and are not those of the checkpoint.
    """
    if not settings.restore_dataset:
        return inputs.run.first_step
    trained_on = record.provenance if record is not None else None
    before = (trained_on.dataset_fingerprint, trained_on.schedule.batch_size) if trained_on else ("unknown", "?")
    now = (inputs.mixture.fingerprint, inputs.run.config.train.batch_size)
    if trained_on is None or before != now:
        raise errors.CheckpointError(
            f"run.init_from.restore_dataset: {found.where} was trained on dataset {before[0]} in batches of "
            f"{before[1]}, and this run has {now[0]} in batches of {now[1]}; set restore_dataset: false"
        )
    return trained_on.schedule.data_start
