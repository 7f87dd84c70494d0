"""The model of the checkpoint that a run starts from, as settings of that run."""

from __future__ import annotations

from typing import Any

from t5core import errors, progress, trees
from t5core.checkpoints.record import CheckpointRecord
from t5core.config import load
from t5core.config.presets import PRESETS, Architecture
from t5core.config.schema import PARENT, ModelConfig, PretrainConfig
from t5core.importers import contents, t5x
from t5core.rundir import RunDirectory
from t5core.starting import restore
from t5core.starting.restore import Found


def known(found: Found, record: CheckpointRecord | None) -> ModelConfig | None:
    """Returns what the record of an import says, or else the configuration of its run; None: neither is there."""
    if record is not None and record.provenance.imported_from is not None:
        return contents.model_config(record.provenance.imported_from.architecture)
    directory = RunDirectory(found.run_uri)
    if found.kind != "orbax" or directory.info() is None:
        return None
    return load.load(directory.config_uri, PretrainConfig).model


def of(place: str, *, setting: str) -> ModelConfig:
    """Returns the model of the checkpoint in the folder `place`, the value of `setting`; reads no array.

    Where neither an import nor a run says which it is, it is told from the shapes of its parameters, and what these do
    not tell is that of the published models, which is said.

    Raises:
      CheckpointError: there is no checkpoint, or it is of no T5 as models here are.
    """
    found = restore.specific(place, setting=setting)
    stored, record = restore.shapes(found)
    told = known(found, record)
    if told is not None:
        return told
    shapes = {path: tuple(leaf.shape) for path, leaf in trees.flatten(stored["params"]).items()}
    architecture, notes = t5x.architecture_of(shapes, found.where, None)
    for note in notes:
        progress.say(f"model of {found.where}: {note}")
    return contents.model_config(architecture)


def settings(own: ModelConfig, parent: ModelConfig) -> dict[str, Any]:
    """Returns the settings of a model of the run with those of its parent put in, as far as that is asked for.

    Args:
      own: the run's; `preset: parent` asks for every dimension. Otherwise the embedding rows count alone.
      parent: of the checkpoint.

    Raises:
      ConfigError: the run's own dimensions contradict those of the checkpoint.
    """
    there = parent.architecture()
    if own.preset != PARENT:
        return {"vocab_size": own.vocab_size or there.vocab_size}
    dimensions = _dimensions(there)
    for name, value in dimensions.items():
        given = getattr(own, name)
        if given is not None and given != value:
            raise errors.ConfigError(
                f"model.{name}={given} contradicts model.preset: parent, whose checkpoint has {value}; remove it"
            )
    sees_all = own.inputs_bidirectional_attention or parent.inputs_bidirectional_attention
    return {"preset": _preset(parent), **dimensions, "inputs_bidirectional_attention": sees_all}


def _dimensions(architecture: Architecture) -> dict[str, Any]:
    """Returns the dimensions that settings may have."""
    values = architecture.model_dump(mode="json")
    if architecture.family == "decoder_only":
        values.pop("num_encoder_layers")  # it has none
    return {name: value for name, value in values.items() if name in ModelConfig.model_fields}


def _preset(model: ModelConfig) -> str:
    """Returns the published size that the model is, whatever its vocabulary; its own preset when it is none."""
    here = model.architecture()
    same = (name for name, size in PRESETS.items() if size.model_copy(update={"vocab_size": here.vocab_size}) == here)
    return next(same, model.preset)
