"""The kinds of checkpoints: which one lies at a place, and reading and writing each."""

from __future__ import annotations

import os

from t5core import errors, storage
from t5core.checkpoints import enclosure, t5x_native
from t5core.checkpoints.record import ImportSource
from t5core.config.convert_edges import SourceRef
from t5core.config.convert_schema import DestinationConfig, Format, SourceConfig
from t5core.importers import huggingface, own, t5x
from t5core.importers.contents import Contents

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5")


def detect(uri: str) -> Format:
    """Returns the kind of the checkpoint at `uri`.

    Raises:
      CheckpointError: there is nothing, or nothing that is read here.
    """
    path = storage.path(uri)
    if not path.is_dir():
        if path.exists() and path.suffix in _PICKLES:
            raise errors.CheckpointError(
                f"{uri} is a file of another format, and may be a pickle, which can run code when it is read; "
                f"give a folder with safetensors, or save_pretrained it with transformers"
            )
        what = "a file, not a folder" if path.exists() else "not there"
        raise errors.CheckpointError(f"{uri} is {what}; give the folder of a checkpoint")
    names = {entry.name for entry in path.iterdir()}
    if t5x_native.INDEX_FILE in names:
        return "t5x"
    if huggingface.CONFIG_FILE in names or any(name.endswith(".safetensors") for name in names):
        return "huggingface"
    try:
        own.reference(uri)
    except errors.CheckpointError:
        steps = t5x_native.t5x_checkpoint_steps(uri)
        if steps:
            raise errors.CheckpointError(
                f"{uri} holds T5X checkpoints of steps {steps}; name one, such as {uri}/checkpoint_{steps[-1]}"
            ) from None
        raise errors.CheckpointError(
            f"{uri} is no checkpoint of T5X, of Hugging Face or of this project; it holds "
            f"{', '.join(sorted(names)[:4]) or 'nothing'}"
        ) from None
    return "t5flow"


def survey(source: SourceConfig) -> SourceRef:
    """Returns what lies at the place of `source`, without looking into its arrays.

    Raises:
      CheckpointError: nothing that can be read, or a link that leads out of it.
      ConfigError: a setting that has no effect on this kind.
    """
    assert source.uri is not None, "the place is settled before"
    uri = source.uri if storage.is_remote(source.uri) else os.path.abspath(source.uri)
    kind = detect(uri) if source.format == "auto" else source.format
    if source.step is not None and kind != "huggingface":
        raise errors.ConfigError(f"source.step={source.step} has no effect on a {kind} checkpoint, which has its own")
    if source.optimizer_state == "drop" and kind == "huggingface":
        raise errors.ConfigError("source.optimizer_state=drop has no effect on a huggingface model, which has none")
    if kind == "t5flow":
        ref = own.reference(uri)
        return SourceRef(uri=ref.uri, format=kind, digest=ref.digest, size_bytes=_size(ref.uri))
    files = huggingface.source_files(uri) if kind == "huggingface" else enclosure.files_of(uri)
    if not files:
        raise errors.CheckpointError(f"there is nothing at {uri}; check the path")
    digest = enclosure.content_digest(uri, files)
    return SourceRef(uri=uri, format=kind, digest=digest, size_bytes=sum(files.values()))


def _size(uri: str) -> int:
    return sum(enclosure.files_of(uri).values())


def read(ref: SourceRef, source: SourceConfig) -> Contents:
    """Returns the content of the checkpoint `ref`.

    Raises:
      CheckpointError: it is damaged, or cannot be what the settings say.
    """
    model = None if source.model is None else source.model.architecture()
    if ref.format == "t5flow":
        return own.read(ref.uri, optimizer_state=source.optimizer_state, model=model)
    if ref.format == "t5x":
        return t5x.read(ref.uri, optimizer_state=source.optimizer_state, model=model)
    return huggingface.read(ref.uri, step=source.step or 0, model=model)


def write(folder: str, found: Contents, destination: DestinationConfig, source: SourceRef) -> tuple[str, list[str]]:
    """Writes a checkpoint below `folder`; returns its place, and what of `found` it has no room for.

    Raises:
      CheckpointError: that kind has no such model, or something else is there.
      RunDirectoryError: no right to write there, or no space.
    """
    if destination.format == "t5x":
        return t5x.write(folder, found, layout=destination.layout), []
    if destination.format == "huggingface":
        limit = destination.max_shard_bytes or huggingface.MAX_SHARD_BYTES
        return folder, huggingface.write(folder, found, max_shard_bytes=limit)
    origin = ImportSource(format=source.format, uri=source.uri, digest=source.digest, architecture=found.architecture)
    return own.write(folder, found, origin).uri, []


def written(checkpoint: str, kind: str) -> SourceRef:
    """Returns what lies at `checkpoint` now, which `write` wrote."""
    return survey(SourceConfig.model_validate({"uri": checkpoint, "format": kind}))
