"""T5X's scanned layers: one array for all layers of a stack, with the layers as its second dimension.

`encoder/encoder/mlp/wo/kernel` [mlp, layers, embed] stands for `encoder/layers_<i>/mlp/wo/kernel` [mlp, embed]. Kernels
of attention have their heads apart there, [embed, layers, heads, kv] for [embed, heads * kv]; those of layers that are
not scanned may have that too. Each layer has a position bias of its own there; where all are the same, it is one that
the layers share.

Adafactor's statistics follow their parameter. A stacked kernel has row statistics over `embed` and column statistics
over the rest, by the names of its axes; one of two dimensions is factored by size, so that rows and columns may change
places. V = R C / mean(R) is the same either way.

Source: `t5x/examples/scalable_t5@cc342d4`, param_scan_axis=1; t5x/adafactor.py@cc342d4.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import numpy as np

from t5core import errors
from t5core.importers import contents
from t5core.optim.adafactor import AdafactorConfig
from t5core.optim.factored import STANDARD_FACTOR_RULES, FactorDim, factoring

Arrays = Mapping[str, np.ndarray]
LAYERS = "layers"
_STACKED = re.compile(r"(encoder|decoder)/\1/(.+)")
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(.+)")
_BIAS = "relpos_bias/rel_embedding"
_AXES = (
    (r"\w*attention/(query|key|value)/kernel", ("embed", LAYERS, "heads", "kv")),
    (r"\w*attention/out/kernel", ("heads", LAYERS, "kv", "embed")),
    (r"mlp/wi(_\d)?/kernel", ("embed", LAYERS, "mlp")),
    (r"mlp/wo/kernel", ("mlp", LAYERS, "embed")),
    (r"\w+_layer_norm/scale", ("embed", LAYERS)),
    (_BIAS, ("heads", LAYERS, "relpos_buckets")),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A parameter with its optimiser's arrays by slot: `v_row`, `v_col`, `v` and `m`, or none without state."""

    source: str
    how: str
    param: np.ndarray
    slots: Arrays


def is_scanned(names: Iterable[str]) -> bool:
    """Tells whether parameters of these names are stacked."""
    return any(_STACKED.fullmatch(name) for name in names)


def unscanned(leaves: Mapping[str, Leaf], *, source: str) -> dict[str, Leaf]:
    """Returns the parameters under the names and in the shapes that this project has.

    Raises:
      CheckpointError: an array that is not of the scanned layout, or layers that differ in number.
    """
    found: dict[str, Leaf] = {}
    depths: dict[str, int] = {}
    for name, leaf in leaves.items():
        stacked, layer = _STACKED.fullmatch(name), _LAYER.fullmatch(name)
        if stacked:
            stack, rest = stacked.groups()
            axes = _axes(rest, source=f"{source}: {name}")
            if leaf.param.ndim != len(axes):
                raise errors.CheckpointError(f"{source}: {name} has shape {list(leaf.param.shape)}, not {list(axes)}")
            depth = leaf.param.shape[1]
            if depths.setdefault(stack, depth) != depth:
                raise errors.CheckpointError(
                    f"{source}: {name} has {depth} layers, and other arrays of the {stack} {depths[stack]}; check it"
                )
            for index in range(depth):
                path = f"{stack}/layers_{index}/{rest}"
                found[path] = _one_layer(leaf, axes, index, path=path, source=source)
        elif layer and leaf.param.ndim == 3:
            axes = tuple(axis for axis in _axes(layer[3], source=f"{source}: {name}") if axis != LAYERS)
            found[name] = _one_layer(leaf, axes, None, path=name, source=source)
        else:
            found[name] = leaf
    return _with_shared_bias(found)


def _axes(rest: str, *, source: str) -> tuple[str, ...]:
    axes = next((axes for pattern, axes in _AXES if re.fullmatch(pattern, rest)), None)
    if axes is None:
        raise errors.CheckpointError(f"{source} is no parameter of a T5 layer; it cannot be imported")
    return axes


def _parts(axes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the axes of the row and of the column statistics; both empty when there are none."""
    of = {part: [axis for axis in axes if STANDARD_FACTOR_RULES[axis] is part] for part in FactorDim}
    if not of[FactorDim.ROW] or not of[FactorDim.COLUMN]:
        return (), ()
    rows = tuple(axis for axis in axes if axis not in of[FactorDim.COLUMN])
    return rows, tuple(axis for axis in axes if axis not in of[FactorDim.ROW])


def _select(array: np.ndarray, axes: tuple[str, ...], index: int | None) -> np.ndarray:
    """Returns the part of one layer (all of it for None), with heads and kv in one dimension."""
    if index is not None:
        array = np.take(array, index, axis=axes.index(LAYERS))
    left = [axis for axis in axes if axis != LAYERS]
    if "kv" in left:
        at = left.index("heads")
        array = array.reshape(*array.shape[:at], -1, *array.shape[at + 2 :])
    return np.ascontiguousarray(array)


def _one_layer(leaf: Leaf, axes: tuple[str, ...], index: int | None, *, path: str, source: str) -> Leaf:
    param = _select(leaf.param, axes, index)
    rows, columns = _parts(axes)
    of_slot = {"v": axes, "m": axes, "v_row": rows, "v_col": columns}
    slots = {}
    for name, slot in leaf.slots.items():
        if slot.shape == (1,):
            slots[name] = slot
            continue
        wanted = tuple(leaf.param.shape[axes.index(axis)] for axis in of_slot.get(name, ()))
        if not wanted or slot.shape != wanted:
            raise errors.CheckpointError(
                f"{source}: {name} of {leaf.source} has shape {list(slot.shape)}, not {list(wanted)}; "
                f"set optimizer_state to drop"
            )
        slots[name] = _select(slot, of_slot[name], index)
    if _is_factored(slots) and _swaps(param, axes, path=path, source=source):
        slots["v_row"], slots["v_col"] = slots["v_col"], slots["v_row"]
    how = "heads and kv in one dimension" if index is None else f"layer {index} of {leaf.source}"
    return Leaf(source=leaf.source, how=how, param=param, slots=slots)


def _is_factored(slots: Arrays) -> bool:
    return bool(slots) and slots["v_row"].shape != (1,)


def _swaps(param: np.ndarray, axes: tuple[str, ...], *, path: str, source: str) -> bool:
    """Returns whether what the stacked parameter has as rows is what the parameter of two dimensions has as columns.

    Raises:
      CheckpointError: the parameter of two dimensions is too small to be factored.
    """
    smallest = AdafactorConfig().min_dim_size_to_factor
    plan = factoring(path, param.shape, None, STANDARD_FACTOR_RULES, min_dim_size_to_factor=smallest)
    if not plan.is_factored:
        raise errors.CheckpointError(
            f"{source}: the statistics of {path} [{param.shape[0]}, {param.shape[1]}] are factored when stacked, not "
            f"by themselves (below {smallest}); set optimizer_state to drop"
        )
    left = [axis for axis in axes if axis not in (LAYERS, "kv")]
    return plan.rows != (left.index("embed"),)


def _with_shared_bias(leaves: dict[str, Leaf]) -> dict[str, Leaf]:
    """Returns the leaves with one position bias for each stack where all its layers have the same, state included."""
    biases: dict[str, list[Leaf]] = {}
    kept = {}
    for name, leaf in leaves.items():
        layer = _LAYER.fullmatch(name)
        if layer and layer[3] == _BIAS:
            biases.setdefault(layer[1], []).append(leaf)
        else:
            kept[name] = leaf
    if not all(_same(own[0], other) for own in biases.values() for other in own):
        return leaves
    shared = {stack: dataclasses.replace(own[0], how="of every layer the same") for stack, own in biases.items()}
    return kept | {f"{stack}/{_BIAS}": leaf for stack, leaf in shared.items()}


def _same(first: Leaf, other: Leaf) -> bool:
    pairs = [(first.param, other.param), *((array, other.slots[slot]) for slot, array in first.slots.items())]
    return all(contents.same_bits(one, two) for one, two in pairs)


def scanned(leaves: Mapping[str, Leaf], *, heads: int) -> dict[str, Leaf]:
    """Returns the parameters stacked by layer; `unscanned` gives back what came in.

    Raises:
      CheckpointError: statistics that a stacked parameter does not have.
    """
    layers: dict[tuple[str, str], dict[int, Leaf]] = {}
    found: dict[str, Leaf] = {}
    for name, leaf in leaves.items():
        layer = _LAYER.fullmatch(name)
        if layer:
            layers.setdefault((layer[1], layer[3]), {})[int(layer[2])] = leaf
        elif not name.endswith(f"/{_BIAS}"):
            found[name] = leaf
    for stack in dict.fromkeys(stack for stack, _ in layers if (stack, _BIAS) not in layers):
        depth = max(len(by_index) for (of, _), by_index in layers.items() if of == stack)
        layers[stack, _BIAS] = dict.fromkeys(range(depth), leaves[f"{stack}/{_BIAS}"])
    for (stack, rest), by_index in layers.items():
        ordered = [by_index[index] for index in range(len(by_index))]
        found[f"{stack}/{stack}/{rest}"] = _stacked(
            ordered, _axes(rest, source=rest), heads=heads, path=f"{stack}/{rest}"
        )
    return found


def _stacked(layers: list[Leaf], axes: tuple[str, ...], *, heads: int, path: str) -> Leaf:
    param = _stack([leaf.param for leaf in layers], axes, heads=heads)
    rows, columns = _parts(axes)
    of_slot = {"v": axes, "m": axes, "v_row": rows, "v_col": columns}
    first = layers[0]
    names = {name: name for name in first.slots}
    if rows and names and _swaps(first.param, axes, path=path, source="the checkpoint") and _is_factored(first.slots):
        names |= {"v_row": "v_col", "v_col": "v_row"}
    slots = {
        name: first.slots[own]
        if first.slots[own].shape == (1,)
        else _stack([leaf.slots[own] for leaf in layers], of_slot[name], heads=heads)
        for name, own in names.items()
    }
    return Leaf(source=path, how="stacked", param=param, slots=slots)


def _stack(arrays: list[np.ndarray], axes: tuple[str, ...], *, heads: int) -> np.ndarray:
    left = [axis for axis in axes if axis != LAYERS]
    if "kv" in left:
        at = left.index("heads")
        arrays = [array.reshape(*array.shape[:at], heads, -1, *array.shape[at + 1 :]) for array in arrays]
    return np.stack(arrays, axis=axes.index(LAYERS))
