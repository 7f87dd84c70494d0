"""The checkpoint that a run starts from, and its vocabulary, found from the way in which a person names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from t5core import errors, publishing, storage
from t5core.checkpoints import index, locating
from t5core.config import load
from t5core.config.edges import CheckpointRef
from t5core.config.schema import PARENT, PretrainConfig
from t5core.rundir import RunDirectory

_SETTING = "run.init_from.checkpoint"
IMPORTED = "imported"


def settled(config: PretrainConfig) -> PretrainConfig:
    """Returns `config` with the folder of one step in `run.init_from`; with its vocabulary and model if asked for.

    A run that was begun keeps the checkpoint that it was begun with, if the same words can have meant it: what they
    mean now may have come since, from this very run. Looks at names, records and shapes only.

    Raises:
      CheckpointError: there is no such checkpoint, or nothing says which vocabulary or model it was trained with.
      ConfigError: the checkpoint does not go with another setting.
    """
    if config.run.init_from is None:
        return config
    before = begun_with(config)
    place = _place_of(before) if before is not None else _found(config)
    changed = with_checkpoint(config, place)
    brings_vocabulary = config.data.vocabulary.kind == PARENT
    if config.model.preset == PARENT or (brings_vocabulary and config.model.vocab_size is None):
        changed = _with_model(changed, place, before)
    if not brings_vocabulary:
        return changed
    known = before.data.vocabulary.model_dump(include={"kind", "path", "extra_ids"}) if before is not None else None
    return _changed(changed, ("data", "vocabulary"), known or _vocabulary_of(place, root=_root(config)))


def _with_model(config: PretrainConfig, place: str, before: PretrainConfig | None) -> PretrainConfig:
    from t5core.starting import parent_model  # JAX

    try:
        there = parent_model.of(place, setting=_SETTING)
    except errors.CheckpointError:
        if before is None:
            raise
        there = before.model  # a run that has checkpoints of its own needs the other's no more
    return _changed(config, ("model",), parent_model.settings(config.model, there))


def with_checkpoint(config: PretrainConfig, place: str) -> PretrainConfig:
    """Returns `config` with the folder `place` in `run.init_from`, checked again.

    Raises:
      ConfigError: the step does not go with another setting.
    """
    return _changed(config, ("run", "init_from"), {"checkpoint": place})


def begun_with(config: PretrainConfig) -> PretrainConfig | None:
    """Returns the configuration that the run was begun with, None when it is new or started from something else.

    A run that has no checkpoint yet is a new one: any of its settings may change.
    """
    directory = RunDirectory(f"{_root(config)}/{config.run.name}")
    if directory.info() is None or not directory.is_begun():
        return None
    before = load.load(directory.config_uri, PretrainConfig)
    return before if before.run.init_from is not None and _may_mean(config, _place_of(before)) else None


def _may_mean(config: PretrainConfig, place: str) -> bool:
    """Tells whether `run.init_from.checkpoint` can have meant the checkpoint at `place` at some time."""
    spec, root = _place_of(config), _root(config)
    if spec.startswith(locating.PUBLISHED):
        decisions = publishing.history(root, spec.removeprefix(locating.PUBLISHED))
        return place in [decision.candidate.checkpoint.uri for decision in decisions if decision.outcome == "published"]
    there = load.absolute(spec)
    if place.startswith(f"{root}/{IMPORTED}/"):
        return _imported_from(place) == there
    return place == there or place.startswith(f"{there}/")


def _imported_from(place: str) -> str | None:
    folder, step = index.locate(place)
    if step not in index.committed_steps(folder):
        return None
    source = index.read_record(folder, step).provenance.imported_from
    return source.uri if source is not None else None


def _found(config: PretrainConfig) -> str:
    assert config.run.init_from is not None, "there is a checkpoint to find"
    spec = config.run.init_from.checkpoint
    if config.run.init_from.names_a_step and not spec.startswith(locating.PUBLISHED):
        return load.absolute(spec)  # whether it is one is seen when it is looked into
    try:
        return locating.locate(spec, root=_root(config), setting=_SETTING).uri
    except errors.CheckpointError as error:
        if (storage.path(spec) / "config.json").exists():
            raise errors.CheckpointError(
                f"{_SETTING}={spec!r} is a model of Hugging Face; workflows/finetune.py imports it"
            ) from error
        raise


def _vocabulary_of(place: str, *, root: str) -> dict[str, Any]:
    """Returns the settings that name the vocabulary of the checkpoint at `place`."""
    folder, _, name = place.rpartition("/")
    record = index.read_record(folder, int(name)) if name.isdecimal() else None
    wanted = record.provenance.vocabulary_fingerprint if record is not None else ""
    if not wanted:
        raise errors.CheckpointError(
            f"data.vocabulary.kind: parent, but {place} does not say which vocabulary it was trained with; name its "
            f"file in data.vocabulary.path"
        )
    from t5core.data import vocabulary_lookup

    run = locating.run_of(CheckpointRef(uri=place, step=int(name), digest=""))
    stages = run.stages() if run is not None else []
    models = [stage.uri for stage in stages if stage.stage == "vocabulary" and stage.uri]
    models = [model for model in models if storage.path(model).exists()]
    found = vocabulary_lookup.named(wanted, [*models, *vocabulary_lookup.models_below(f"{root}/vocabularies")])
    if found is None:
        raise errors.CheckpointError(
            f"{place} was trained with vocabulary {wanted}, which lies neither with its run nor in "
            f"{root}/vocabularies; name its file in data.vocabulary.path"
        )
    return {"kind": found.kind, "path": found.uri or None, "extra_ids": found.extra_ids}


def _place_of(config: PretrainConfig) -> str:
    assert config.run.init_from is not None, "it starts from a checkpoint"
    return config.run.init_from.checkpoint


def _root(config: PretrainConfig) -> str:
    return load.absolute(config.run.root)


def _changed(config: PretrainConfig, path: Sequence[str], values: dict[str, Any]) -> PretrainConfig:
    settings = config.model_dump(mode="json")
    section = settings
    for part in path:
        section = section[part]
    section |= values
    return load.validate(settings, PretrainConfig, origin=_SETTING)
