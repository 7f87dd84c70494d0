"""The first stage of a fine-tuning: the checkpoint to start from, imported if other software wrote it."""

from __future__ import annotations

from collections.abc import Sequence

from t5core import errors, fingerprints, progress, sharing, storage
from t5core.checkpoints import index, locating
from t5core.config import load
from t5core.config.convert_schema import SourceConfig
from t5core.config.schema import PretrainConfig
from t5core.starting import parent_checkpoint

# What decides the state that comes of a foreign checkpoint.
_IMPORTERS = ("contents", "huggingface", "huggingface_config", "huggingface_names", "t5x", "t5x_scanned")


def import_parent(config: PretrainConfig, overrides: Sequence[str]) -> PretrainConfig:
    """Returns `config` with `overrides`, and with the folder of one step of ours or of T5X in `run.init_from`.

    A model of Hugging Face and T5X's stacked layers are imported to `<root>/imported/<content>/<step>`, once for all
    runs that start from the same content: those that come meanwhile wait and take it.

    Args:
      config: the recipe.
      overrides: settings put over it, `section.key=value` each.

    Raises:
      ConfigError: the run is to start from nothing.
      CheckpointError: there is no such checkpoint, or it cannot be read.
    """
    config = load.override_config(config, overrides)
    settings = config.run.init_from
    if settings is None:
        raise errors.ConfigError(
            "run.init_from is not set, and fine-tuning starts from a checkpoint; set run.init_from.checkpoint, or "
            "train from nothing with workflows/pretrain.py"
        )
    for override in overrides:
        progress.say(f"  {override} (from overrides, put over the recipe)")
    place = (
        settings.checkpoint
        if settings.checkpoint.startswith(locating.PUBLISHED)
        else load.absolute(settings.checkpoint)
    )
    if parent_checkpoint.begun_with(config) is None and _is_foreign(place):
        config = parent_checkpoint.with_checkpoint(config, _imported(place, root=load.absolute(config.run.root)))
    config = parent_checkpoint.settled(config)
    assert config.run.init_from is not None, "only its checkpoint has changed"
    progress.say(f"start from {config.run.init_from.checkpoint}")
    return config


def _is_foreign(place: str) -> bool:
    """Tells whether a run cannot start from what lies at `place` before it is imported."""
    if not storage.path(place).is_dir():
        return False
    from t5core import trees
    from t5core.importers import formats, t5x_scanned
    from t5core.starting import restore

    kind = formats.detect(place)
    if kind == "t5x":
        found = restore.specific(place, setting="run.init_from.checkpoint")
        return t5x_scanned.is_scanned(trees.flatten(restore.shapes(found)[0]["params"]))
    return kind == "huggingface"


def _imported(place: str, *, root: str) -> str:
    """Returns the folder of the imported step, and says whether it was there."""
    from t5core.checkpoints.record import ImportSource
    from t5core.importers import formats, own

    source = SourceConfig(uri=place)
    ref = formats.survey(source)
    code = fingerprints.code_fingerprint(*(f"t5core.importers.{name}" for name in _IMPORTERS))
    name = storage.fingerprint([ref.digest, code])
    folder, key = f"{root}/{parent_checkpoint.IMPORTED}/{name}", f"{parent_checkpoint.IMPORTED}-{name}"

    def find() -> tuple[str, list[str]] | None:
        step = index.latest(folder)
        if step is None:
            return None
        return str(index.step_path(folder, step)), [f"import: reused (content of {place} unchanged)"]

    def make() -> tuple[str, list[str]]:
        found = formats.read(ref, source)
        origin = ImportSource(format=ref.format, uri=ref.uri, digest=ref.digest, architecture=found.architecture)
        imported = own.write(folder, found, origin)
        done = f"import: done ({ref.format}, {ref.size_bytes / 1e6:.1f} MB, {len(found.params)} parameters{gone})"
        return imported.uri, [done, *(f"  {note}" for note in found.notes)]

    day = sharing.when_made(root, key)
    gone = "" if day is None else f"; made on {day}, and gone from {folder}"
    uri, lines = sharing.made_once(root, key, find=find, make=make)
    for line in lines:
        progress.say(line)
    return uri
