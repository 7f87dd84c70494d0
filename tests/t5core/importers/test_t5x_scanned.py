"""The scanned layout against arrays stacked by hand, and its statistics against Adafactor on stacked parameters."""

import dataclasses

import numpy as np
import pytest

from t5core import errors, trees
from t5core.checkpoints import t5x_native
from t5core.importers import t5x, t5x_scanned
from t5core.importers.t5x_scanned import Leaf
from t5core.optim.adafactor import Adafactor
from tests.t5core.importers.making import made

SLOTS = ("v_row", "v_col", "v", "m")
EMBED, HEADS, KV, MLP, LAYERS = 160, 4, 33, 130, 2  # heads * kv and mlp below embed: rows and columns change places
WIDE = {"EMBED": 130, "MLP": 200}  # and here they do not


def stacked_by_hand(found):
    """Returns T5X's scanned arrays for a model of ours, written down axis by axis."""
    heads, head_dim = found.architecture.num_heads, found.architecture.head_dim
    layers, out = {}, {}
    for name, array in found.params.items():
        parts = name.split("/")
        if parts[1].startswith("layers_"):
            layers.setdefault((parts[0], "/".join(parts[2:])), []).append(array)
        elif "relpos_bias" not in name:
            out[name] = array
    for (stack, rest), arrays in layers.items():
        if "attention/out" in rest:
            apart = [array.reshape(heads, head_dim, -1) for array in arrays]
        elif "attention/" in rest:
            apart = [array.reshape(-1, heads, head_dim) for array in arrays]
        else:
            apart = arrays
        out[f"{stack}/{stack}/{rest}"] = np.stack(apart, axis=1)
    for stack, depth in (("encoder", found.architecture.num_encoder_layers), ("decoder", 3)):
        bias = found.params.get(f"{stack}/relpos_bias/rel_embedding")
        if bias is None:
            continue  # each layer has its own
        out[f"{stack}/{stack}/relpos_bias/rel_embedding"] = np.stack([bias] * depth, axis=1)
    return out


def written(tmp_path, flat, step=0):
    tree = {"target": trees.unflatten(flat), "state": {"step": np.int32(step)}}
    return t5x_native.write_t5x_checkpoint(str(tmp_path), step, tree)


@pytest.mark.parametrize("relative_position_bias", ["shared", "per_layer"])
def test_arrays_stacked_by_hand_are_read_as_the_layers_and_written_so(relative_position_bias, tmp_path):
    found = made(relative_position_bias=relative_position_bias)
    by_hand = stacked_by_hand(found)
    read = t5x.read(written(tmp_path, by_hand))
    assert read.digest() == found.digest()
    assert read.architecture == found.architecture
    entry = next(e for e in read.mapping if e.name == "decoder/layers_2/mlp/wo/kernel")
    assert (entry.source, entry.how) == (
        "target/decoder/decoder/mlp/wo/kernel",
        "layer 2 of target/decoder/decoder/mlp/wo/kernel",
    )
    folder = t5x.write(str(tmp_path / "again"), found, layout="scanned")
    rewritten = trees.flatten(t5x_native.read_t5x_checkpoint(folder)["target"])
    assert rewritten.keys() == by_hand.keys()
    for name, array in by_hand.items():
        np.testing.assert_array_equal(rewritten[name], array, strict=True, err_msg=name)


def test_layers_that_are_not_scanned_may_have_heads_and_biases_apart(tmp_path):
    found = made()
    flat = dict(found.params)
    for stack, depth in (("encoder", 2), ("decoder", 3)):
        bias = flat.pop(f"{stack}/relpos_bias/rel_embedding")
        flat |= {f"{stack}/layers_{index}/relpos_bias/rel_embedding": bias for index in range(depth)}
    name = "encoder/layers_0/attention/query/kernel"
    flat[name] = flat[name].reshape(6, 2, 5)
    assert t5x.read(written(tmp_path, flat)).digest() == found.digest()


def shapes(rest, dims):
    embed, mlp = dims.get("EMBED", EMBED), dims.get("MLP", MLP)
    return {
        "attention/query/kernel": ((embed, LAYERS, HEADS, KV), ("embed", "layers", "heads", "kv"), (embed, HEADS * KV)),
        "attention/out/kernel": ((HEADS, LAYERS, KV, embed), ("heads", "layers", "kv", "embed"), (HEADS * KV, embed)),
        "mlp/wi_0/kernel": ((embed, LAYERS, mlp), ("embed", "layers", "mlp"), (embed, mlp)),
        "mlp/wo/kernel": ((mlp, LAYERS, embed), ("mlp", "layers", "embed"), (mlp, embed)),
        "pre_mlp_layer_norm/scale": ((embed, LAYERS), ("embed", "layers"), (embed,)),
    }[rest]


def updated(name, param, grad, axes=None):
    """Returns the slots of one parameter after one step of Adafactor, and the parameter."""
    tree = trees.unflatten({name: param})
    optimizer = Adafactor(param_axes=None if axes is None else boxed(name, param, axes))
    state = optimizer.init(tree)
    params, state = optimizer.apply_gradient(
        trees.unflatten({name: grad}), tree, state, step=0, learning_rate=np.float32(0.1)
    )
    slots = trees.flatten(state["param_states"])
    return np.asarray(trees.flatten(params)[name]), {slot: np.asarray(slots[f"{name}/{slot}"]) for slot in SLOTS}


def boxed(name, param, axes):
    from flax import linen as nn

    return trees.unflatten({name: nn.LogicallyPartitioned(param, axes)})


@pytest.mark.parametrize("dims", [{}, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    "rest",
    ["attention/query/kernel", "attention/out/kernel", "mlp/wi_0/kernel", "mlp/wo/kernel", "pre_mlp_layer_norm/scale"],
)
def test_statistics_of_stacked_parameters_are_those_of_each_layer(rest, dims):
    """Adafactor takes the same step either way, and its statistics are converted into one another."""
    stacked_shape, axes, shape = shapes(rest, dims)
    random = np.random.default_rng(0)
    param, grad = (random.normal(size=stacked_shape).astype(np.float32) for _ in range(2))
    name = f"encoder/encoder/{rest}"
    stepped, slots = updated(name, param, grad, axes)
    leaves = {
        name: Leaf(source=name, how="", param=stepped, slots=slots),
        "encoder/layers_0/relpos_bias/rel_embedding": Leaf(source="", how="", param=np.ones((HEADS, 2)), slots={}),
    }
    found = t5x_scanned.unscanned(leaves, source="the checkpoint")
    for index in range(LAYERS):
        before, gradient = (np.take(array, index, axes.index("layers")).reshape(shape) for array in (param, grad))
        own, own_slots = updated("x", before, gradient)
        leaf = found[f"encoder/layers_{index}/{rest}"]
        np.testing.assert_allclose(leaf.param, own, rtol=1e-5, atol=1e-6)
        for slot in SLOTS:
            assert leaf.slots[slot].shape == own_slots[slot].shape, slot
            np.testing.assert_allclose(leaf.slots[slot], own_slots[slot], rtol=1e-5, atol=1e-9, err_msg=slot)
    back = t5x_scanned.scanned(found, heads=HEADS)[name]
    np.testing.assert_array_equal(back.param, stepped, strict=True)
    for slot in SLOTS:
        np.testing.assert_array_equal(back.slots[slot], slots[slot], strict=True, err_msg=slot)


def test_biases_that_differ_in_one_layer_stay_apart_in_both_stacks(tmp_path):
    by_hand = stacked_by_hand(made())
    bias = by_hand["decoder/decoder/relpos_bias/rel_embedding"].copy()
    bias[0, 1, 0] += 1
    read = t5x.read(written(tmp_path, {**by_hand, "decoder/decoder/relpos_bias/rel_embedding": bias}))
    assert read.architecture.relative_position_bias == "per_layer"
    np.testing.assert_array_equal(read.params["decoder/layers_1/relpos_bias/rel_embedding"], bias[:, 1])
    encoder = by_hand["encoder/encoder/relpos_bias/rel_embedding"]
    np.testing.assert_array_equal(read.params["encoder/layers_1/relpos_bias/rel_embedding"], encoder[:, 1])


def test_biases_with_different_states_stay_apart():
    one = np.zeros(1, np.float32)
    param = np.ones((HEADS, LAYERS, 32), np.float32)
    v = np.stack([np.ones((HEADS, 32)), np.full((HEADS, 32), 2.0)], axis=1).astype(np.float32)
    slots = {"v_row": one, "v_col": one, "v": v, "m": one}
    leaf = Leaf(source="x", how="", param=param, slots=slots)
    found = t5x_scanned.unscanned({"encoder/encoder/relpos_bias/rel_embedding": leaf}, source="x")
    assert found["encoder/layers_1/relpos_bias/rel_embedding"].slots["v"][0, 0] == 2
    same = dataclasses.replace(leaf, slots={**slots, "v": np.ones_like(param)})
    found = t5x_scanned.unscanned({"encoder/encoder/relpos_bias/rel_embedding": same}, source="x")
    assert found["encoder/relpos_bias/rel_embedding"].slots["v"].shape == (HEADS, 32)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("encoder/encoder/mlp/wo/kernel", (7, 3, 6), "has 3 layers, and other arrays of the encoder 2; check it"),
        ("encoder/encoder/mlp/wo/kernel", (7, 6), "has shape [7, 6], not ['mlp', 'layers', 'embed']"),
        ("encoder/encoder/mlp/bias", (7, 2), "encoder/encoder/mlp/bias is no parameter of a T5 layer; it cannot be"),
        ("decoder/decoder/mlp/wo/kernel", (8, 3, 6), "mlp/wi_0/kernel has shape [6, 7], not [6, 8] (and 11 more)"),
    ],
)
def test_arrays_that_do_not_make_the_layers_are_refused(name, shape, message, tmp_path):
    by_hand = stacked_by_hand(made())
    with pytest.raises(errors.CheckpointError) as raised:
        t5x.read(written(tmp_path, {**by_hand, name: np.zeros(shape, np.float32)}))
    assert message in str(raised.value)
