"""T5X's native checkpoints: which model they are of, and their state under this project's names.

T5X stores arrays alone. Every dimension follows from their shapes; what does not is said in the notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from t5core import errors, trees
from t5core.checkpoints import t5x_native
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x
from t5core.config.presets import Architecture
from t5core.importers import contents, t5x_scanned
from t5core.importers.contents import Contents, TensorMapping
from t5core.importers.t5x_scanned import Leaf
from t5core.optim.factored import STANDARD_FACTOR_RULES, factoring

OptimizerState = Literal["keep", "drop"]
Layout = Literal["unscanned", "scanned"]
_SLOTS = ("v_row", "v_col", "v", "m")
# What T5 1.0 and 1.1 compute in their feed-forward blocks, by the number of kernels that take the block's input.
_PUBLISHED_ACTIVATIONS = {1: ("relu",), 2: ("gelu", "linear")}
_MAX_DISTANCE = 128


def read(folder: str, *, optimizer_state: OptimizerState = "keep", model: Architecture | None = None) -> Contents:
    """Returns the state in the checkpoint `folder`, `.../checkpoint_<step>`.

    Args:
      folder: of one step.
      optimizer_state: whether Adafactor's statistics are read.
      model: the architecture that it has to have; None finds it, and takes the published models' activations.

    Raises:
      CheckpointError: no such checkpoint, a damaged one, or one that is of no T5 as models here are.
    """
    select = None if optimizer_state == "keep" else lambda path: path.startswith("target/") or path == "state/step"
    state = from_t5x(_known_parts(t5x_native.read_t5x_checkpoint(folder, select=select), folder))
    leaves = _leaves(state, folder, optimizer_state)
    layout = "scanned" if t5x_scanned.is_scanned(leaves) else "unscanned"
    leaves = t5x_scanned.unscanned(leaves, source=folder)
    architecture, notes = architecture_of({name: leaf.param.shape for name, leaf in leaves.items()}, folder, model)
    contents.require_shapes(
        {name: leaf.param.shape for name, leaf in leaves.items()}, architecture, source=f"{folder} (target)"
    )
    return Contents(
        architecture=architecture,
        step=int(state["step"]),
        params={name: contents.as_float32(leaf.param, name=f"{folder}: {name}") for name, leaf in leaves.items()},
        opt_state=_optimizer_state(leaves),
        mapping=tuple(_entry(name, leaf) for name, leaf in leaves.items()),
        notes=(f"layers are {layout}", *notes, *_notes_on_state(leaves, optimizer_state)),
    )


def _known_parts(content: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    unknown = [name for name in content if name not in ("target", "state")]
    unknown += [f"state/{name}" for name in content.get("state", {}) if name not in ("step", "param_states")]
    if unknown:
        raise errors.CheckpointError(
            f"{folder} has {unknown[0]!r}, which models here do not have; it cannot be imported"
        )
    step = content.get("state", {}).get("step")
    if not isinstance(step, np.ndarray) or step.shape != () or step.dtype.kind not in "iu" or step < 0:
        raise errors.CheckpointError(f"{folder} has no step; copy the checkpoint again")
    return content


def _leaves(state: Mapping[str, Any], folder: str, optimizer_state: OptimizerState) -> dict[str, Leaf]:
    """Returns the parameters with their slots, under the source's names."""
    params = trees.flatten(state["params"])
    slots: dict[str, dict[str, np.ndarray]] = {name: {} for name in params}
    for path, array in trees.flatten(state["opt_state"].get("param_states", {})).items():
        owner, _, slot = path.rpartition("/")
        if owner not in params and slot in _SLOTS:
            raise errors.CheckpointError(
                f"{folder} has no target/{owner}, whose optimiser's state it has; copy the checkpoint again"
            )
        if slot not in _SLOTS:
            raise errors.CheckpointError(
                f"{folder}: state/param_states/{path} is not of Adafactor; set optimizer_state to drop"
            )
        slots[owner][slot] = array
    for name, of in slots.items():
        if of and of.keys() != set(_SLOTS) and optimizer_state == "keep":
            lacking = next(slot for slot in _SLOTS if slot not in of)
            raise errors.CheckpointError(
                f"{folder}: {name} has no {lacking} in the optimiser's state; set optimizer_state to drop"
            )
    return {
        name: Leaf(source=f"target/{name}", how="as it is", param=param, slots=slots[name])
        for name, param in params.items()
    }


def architecture_of(
    shapes: Mapping[str, tuple[int, ...]], folder: str, model: Architecture | None
) -> tuple[Architecture, tuple[str, ...]]:
    """Returns the architecture that the shapes are of, and what was taken from the published models.

    Args:
      shapes: of the parameters, by name, layers not stacked.
      folder: that holds them, for messages.
      model: the architecture that it has to be; None finds it.

    Raises:
      CheckpointError: they are of no T5 as models here are.
    """

    def shape(name: str, dims: int) -> tuple[int, ...]:
        if name not in shapes:
            raise errors.CheckpointError(f"{folder} has no target/{name}; it is not of a T5, or not whole")
        if len(shapes[name]) != dims:
            raise errors.CheckpointError(f"{folder}: target/{name} has shape {list(shapes[name])}; check the model")
        return shapes[name]

    family = "encoder_decoder" if any(name.startswith("encoder/") for name in shapes) else "decoder_only"
    embedder = "token_embedder" if family == "encoder_decoder" else "decoder/token_embedder"
    vocab_size, emb_dim = shape(f"{embedder}/embedding", 2)
    own_bias = "decoder/layers_0/relpos_bias/rel_embedding"
    heads, buckets = shape(own_bias if own_bias in shapes else "decoder/relpos_bias/rel_embedding", 2)
    joined = shape("decoder/layers_0/self_attention/query/kernel", 2)[1]
    if heads < 1 or joined % heads:
        raise errors.CheckpointError(f"{folder}: {joined} columns of queries do not divide into {heads} heads")
    branches = sum(name.startswith("decoder/layers_0/mlp/wi") for name in shapes)
    activations = _PUBLISHED_ACTIVATIONS.get(branches) if model is None else model.mlp_activations
    if activations is None:
        raise errors.CheckpointError(f"{folder} has feed-forward blocks of {branches} branches; name the model it is")
    found = Architecture(
        family=family,
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=heads,
        num_encoder_layers=_depth(shapes, "encoder", folder),
        num_decoder_layers=_depth(shapes, "decoder", folder),
        head_dim=joined // heads,
        mlp_dim=shape("decoder/layers_0/mlp/wo/kernel", 2)[0],
        mlp_activations=activations,
        logits_via_embedding="decoder/logits_dense/kernel" not in shapes,
        relative_position_bias="per_layer" if own_bias in shapes else "shared",
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=_MAX_DISTANCE if model is None else model.relative_attention_max_distance,
    )
    if model is not None:
        contents.require_same_architecture(found, model, source=folder)
        return found, ()
    assumed = f"mlp_activations={list(activations)} and relative_attention_max_distance={_MAX_DISTANCE}"
    return found, (f"{assumed} are those of the published models: T5X does not store them",)


def _depth(shapes: Mapping[str, tuple[int, ...]], stack: str, folder: str) -> int:
    """Returns the number of layers of a stack.

    Raises:
      CheckpointError: a layer is missing in between.
    """
    numbers = {int(match[1]) for name in shapes if (match := re.match(rf"{stack}/layers_(\d+)/", name))}
    if numbers and max(numbers) != len(numbers) - 1:
        missing = next(number for number in range(len(numbers)) if number not in numbers)
        raise errors.CheckpointError(f"{folder} has no target/{stack}/layers_{missing}; copy the checkpoint again")
    return len(numbers)


def _optimizer_state(leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Returns Adafactor's state.

    Raises:
      CheckpointError: a slot that does not go with its parameter.
    """
    flat = {}
    for name, leaf in leaves.items():
        plan = factoring(name, leaf.param.shape, None, STANDARD_FACTOR_RULES, min_dim_size_to_factor=1)
        fitting = {"v": leaf.param.shape, "m": leaf.param.shape}
        if plan.is_factored:
            fitting |= {"v_row": plan.row_shape(leaf.param.shape), "v_col": plan.column_shape(leaf.param.shape)}
        for slot, array in leaf.slots.items():
            if array.shape not in ((1,), fitting.get(slot)):
                raise errors.CheckpointError(
                    f"{leaf.source}: {slot} has shape {list(array.shape)}, which does not go with a parameter of "
                    f"{list(leaf.param.shape)}; set optimizer_state to drop"
                )
            flat[f"{name}/{slot}"] = array
    return {"param_states": trees.unflatten(flat)} if flat else {}


def _notes_on_state(leaves: Mapping[str, Leaf], optimizer_state: OptimizerState) -> tuple[str, ...]:
    if optimizer_state == "drop":
        return ("the optimiser's state was left out, as asked",)
    without = sorted(name for name, leaf in leaves.items() if not leaf.slots)
    if len(without) == len(leaves):
        return ("the source has no optimiser's state",)
    return (f"{len(without)} parameters have no optimiser's state, {without[0]} first",) if without else ()


def _entry(name: str, leaf: Leaf) -> TensorMapping:
    return TensorMapping(
        source=leaf.source, name=name, shape=list(leaf.param.shape), dtype=leaf.param.dtype.name, how=leaf.how
    )


def write(uri: str, found: Contents, *, layout: Layout = "unscanned") -> str:
    """Writes a checkpoint that T5X reads and returns its folder, `<uri>/checkpoint_<step>`.

    Raises:
      CheckpointError: that step has a checkpoint, or the layout has no place for the optimiser's state.
      RunDirectoryError: no right to write there, or no space.
    """
    state = found.as_tree()
    if layout == "scanned":
        state = _scanned(state, found.architecture)
    return t5x_native.write_t5x_checkpoint(uri, found.step, to_t5x(state))


def _scanned(state: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    leaves = t5x_scanned.scanned(_leaves(state, "the checkpoint", "keep"), heads=architecture.num_heads)
    slots = {f"{name}/{slot}": array for name, leaf in leaves.items() for slot, array in leaf.slots.items()}
    return {
        "step": state["step"],
        "params": trees.unflatten({name: leaf.param for name, leaf in leaves.items()}),
        "opt_state": {"param_states": trees.unflatten(slots)} if slots else {},
    }
