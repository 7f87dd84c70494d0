"""Folders of Hugging Face's T5: `config.json` and safetensors, in one file or in shards with an index.

Nothing else is opened: `pytorch_model.bin` is a pickle, which can run code when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5core import errors, progress, storage
from t5core.checkpoints import enclosure
from t5core.config.presets import Architecture
from t5core.importers import contents, huggingface_config, huggingface_names, safetensors_file
from t5core.importers.contents import Contents, TensorMapping
from t5core.importers.huggingface_names import EMBEDDING_TENSOR, HEAD, HEAD_TENSOR, Rule

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 2 << 30
_MAX_CONFIG_BYTES, _MAX_INDEX_BYTES = 1 << 20, 64 << 20
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
_BLOCK = re.compile(r"(encoder|decoder)\.block\.(\d+)\.")

Tensors = Mapping[str, np.ndarray]


def source_files(folder: str) -> dict[str, int]:
    """Returns the files of `folder` that a model is read from, with their sizes.

    Raises:
      CheckpointError: a link leads out of the folder, there are no safetensors, or it is open which ones count.
    """
    files = enclosure.files_of(folder)
    if CONFIG_FILE not in files:
        raise errors.CheckpointError(f"{folder} has no {CONFIG_FILE}; give the folder of a Hugging Face model")
    if SINGLE_FILE in files and INDEX_FILE in files:
        raise errors.CheckpointError(f"{folder} has both {SINGLE_FILE} and {INDEX_FILE}; remove the one that is stale")
    if SINGLE_FILE in files:
        return {name: files[name] for name in (CONFIG_FILE, SINGLE_FILE)}
    if INDEX_FILE in files:
        shards = sorted(set(_weight_map(folder, files).values()))
        return {name: files[name] for name in (CONFIG_FILE, INDEX_FILE, *shards)}
    other = next((name for name in _OTHER_WEIGHTS if name in files), None)
    if other is not None:
        raise errors.CheckpointError(
            f"{folder} has {other} and no {SINGLE_FILE}; other formats are not opened (a pickle can run code): "
            f"load it with transformers and save_pretrained it again"
        )
    raise errors.CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; check the folder")


def _small_json(folder: str, name: str, files: Mapping[str, int], limit: int) -> Any:
    if files[name] > limit:
        raise errors.CheckpointError(f"{folder}/{name} has {files[name]} bytes, above {limit}; check the folder")
    try:
        return storage.read_json(f"{folder}/{name}")
    except (errors.IntegrityError, RecursionError) as error:
        raise errors.CheckpointError(f"{folder}/{name} is not JSON; copy the checkpoint again") from error


def _weight_map(folder: str, files: Mapping[str, int]) -> dict[str, str]:
    """Returns the file of each tensor, by the index.

    Raises:
      CheckpointError: the index names something that is no file of the folder.
    """
    index = _small_json(folder, INDEX_FILE, files, _MAX_INDEX_BYTES)
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not found:
        raise errors.CheckpointError(f"{folder}/{INDEX_FILE} has no weight_map; copy the checkpoint again")
    for tensor, name in found.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors", name):
            raise errors.CheckpointError(
                f"{folder}/{INDEX_FILE} looks for {tensor} in {name!r}, not in a file of its folder; do not trust it"
            )
        if name not in files:
            raise errors.CheckpointError(f"{folder} has no {name}, which its index names; copy the checkpoint again")
    return found


def read(folder: str, *, step: int = 0, model: Architecture | None = None) -> Contents:
    """Returns the parameters of the model in `folder`; such folders have no step, which is `step`, and no optimiser.

    With `model` it has to be of that architecture.

    Raises:
      CheckpointError: another kind of model, or one that is incomplete, damaged or does not do what it says.
    """
    files = source_files(folder)
    config = _small_json(folder, CONFIG_FILE, files, _MAX_CONFIG_BYTES)
    described = huggingface_config.parse(config, source=f"{folder}/{CONFIG_FILE}")
    if model is not None:
        contents.require_same_architecture(described.architecture, model, source=folder)
    tensors = _tensors(folder, files)
    _require_depths(folder, tensors, described.architecture)
    tensors, unused = _without_aliases(folder, tensors)
    tensors, notes = _with_head(folder, tensors, described)
    rules = huggingface_names.rules(described.architecture)
    _require_names(folder, tensors, rules)
    params, mapping = {}, []
    with progress.stage("read tensors", total=len(rules), unit="tensors") as bar:
        for rule in rules:
            params[rule.name], entry = _parameter(folder, rule, tensors[rule.tensor])
            mapping.append(entry)
            bar.advance()
    shapes = {name: array.shape for name, array in params.items()}
    contents.require_shapes(shapes, described.architecture, source=folder)
    return Contents(
        architecture=described.architecture,
        step=step,
        params=params,
        opt_state={},
        mapping=tuple(mapping),
        unused=unused,
        notes=notes,
    )


def _tensors(folder: str, files: Mapping[str, int]) -> dict[str, np.ndarray]:
    if INDEX_FILE not in files:
        return safetensors_file.read(f"{folder}/{SINGLE_FILE}")
    weight_map = _weight_map(folder, files)
    found: dict[str, np.ndarray] = {}
    for name in sorted(set(weight_map.values())):
        inside = safetensors_file.read(f"{folder}/{name}")
        named = {tensor for tensor, place in weight_map.items() if place == name}
        if inside.keys() != named:
            odd = sorted(inside.keys() ^ named)[0]
            raise errors.CheckpointError(
                f"{folder}: {odd} is {'not ' if odd in named else ''}in {name}, unlike the index says; "
                f"copy the checkpoint again"
            )
        found |= inside
    return found


def _require_depths(folder: str, tensors: Tensors, architecture: Architecture) -> None:
    for stack, setting in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        numbers = {int(match[2]) for name in tensors if (match := _BLOCK.match(name)) and match[1] == stack}
        depth = getattr(architecture, f"num_{stack}_layers")
        if len(numbers) != depth or max(numbers) != depth - 1:
            raise errors.CheckpointError(
                f"{folder} has {len(numbers)} {stack} blocks, and its {CONFIG_FILE} says {depth} ({setting}); "
                f"check which of them belongs there"
            )


def _without_aliases(folder: str, tensors: Tensors) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns the tensors with the embedding under one name, and without those that no model uses."""
    kept, unused = dict(tensors), []
    for alias in huggingface_names.EMBEDDING_ALIASES:
        if alias not in kept:
            continue
        copy = kept.pop(alias)
        if not contents.same_bits(copy, kept.setdefault(EMBEDDING_TENSOR, copy)):
            raise errors.CheckpointError(
                f"{folder}: {alias} differs from {EMBEDDING_TENSOR}; models here have one embedding for both stacks"
            )
        unused.append(f"{alias}: the embedding under another name")
    for leftover in huggingface_names.LEFTOVERS:
        if kept.pop(leftover, None) is not None:
            unused.append(f"{leftover}: a leftover of the first T5s, which no model uses")
    return kept, tuple(unused)


def _with_head(
    folder: str, tensors: Tensors, described: huggingface_config.Described
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns the tensors with the head that the architecture asks for.

    T5 1.0 takes scaled products with the embedding for logits; T5 1.1 has a kernel. transformers 5 also saves models
    that take products with the embedding and do not scale them: here their kernel is a copy of the embedding.
    """
    kept = dict(tensors)
    embedding, head = kept.get(EMBEDDING_TENSOR), kept.get(HEAD_TENSOR)
    if described.architecture.logits_via_embedding:
        if head is not None and (embedding is None or not contents.same_bits(head, embedding)):
            raise errors.CheckpointError(
                f"{folder}: {HEAD_TENSOR} differs from {EMBEDDING_TENSOR}, and its {CONFIG_FILE} ties them; "
                f"set tie_word_embeddings as the model was trained"
            )
        kept.pop(HEAD_TENSOR, None)
        return kept, (f"{HEAD_TENSOR} is the embedding",) if head is not None else ()
    if head is None and described.may_tie and embedding is not None:
        kept[HEAD_TENSOR] = embedding
        return kept, (f"logits are unscaled products with the embedding: {HEAD} is a copy of it",)
    return kept, ()


def _require_names(folder: str, tensors: Tensors, rules: list[Rule]) -> None:
    known = {rule.tensor for rule in rules}
    missing, unknown = sorted(known - tensors.keys()), sorted(tensors.keys() - known)
    if missing:
        raise errors.CheckpointError(
            f"{folder} has no {missing[0]}{contents.and_more(missing)}; copy the checkpoint again"
        )
    if unknown:
        raise errors.CheckpointError(
            f"{folder} has {unknown[0]}{contents.and_more(unknown)}, which no T5 of its {CONFIG_FILE} has; "
            f"it cannot be imported"
        )


def _parameter(folder: str, rule: Rule, tensor: np.ndarray) -> tuple[np.ndarray, TensorMapping]:
    array = contents.as_float32(tensor.T if rule.transposed else tensor, name=f"{folder}: {rule.tensor}")
    entry = TensorMapping(
        source=rule.tensor,
        name=rule.name,
        shape=list(array.shape),
        dtype=tensor.dtype.name,
        how="transposed" if rule.transposed else "as it is",
    )
    return array, entry


def write(folder: str, found: Contents, *, max_shard_bytes: int = MAX_SHARD_BYTES) -> list[str]:
    """Writes config and tensors into `folder`, the config last; returns what of `found` is left out.

    Raises:
      CheckpointError: there is no such model in transformers, or `folder` has one.
      RunDirectoryError: no right to write there, or no space.
    """
    config = huggingface_config.render(found.architecture)
    if (storage.path(folder) / CONFIG_FILE).exists():
        raise errors.CheckpointError(f"{folder} has a {CONFIG_FILE}; remove it, or write to another folder")
    rules = huggingface_names.rules(found.architecture)
    tensors = {rule.tensor: found.params[rule.name].T if rule.transposed else found.params[rule.name] for rule in rules}
    shards = _shards(tensors, max_shard_bytes)
    with progress.stage("write tensors", total=len(tensors), unit="tensors") as bar:
        for number, names in enumerate(shards, start=1):
            name = SINGLE_FILE if len(shards) == 1 else _shard_name(number, len(shards))
            safetensors_file.write(f"{folder}/{name}", {tensor: tensors[tensor] for tensor in names})
            bar.advance(len(names))
    if len(shards) > 1:
        places = {t: _shard_name(number, len(shards)) for number, names in enumerate(shards, start=1) for t in names}
        total = sum(tensor.nbytes for tensor in tensors.values())
        storage.write_json(f"{folder}/{INDEX_FILE}", {"metadata": {"total_size": total}, "weight_map": places})
    storage.write_json(f"{folder}/{CONFIG_FILE}", config)
    left_out = ["the optimiser's state"] if found.opt_state else []
    return [*left_out, f"the step ({found.step})"] if found.step else left_out


def _shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _shards(tensors: Tensors, max_bytes: int) -> list[list[str]]:
    """Returns the names of the tensors of each file, in order; a tensor that is too large gets one of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards
