"""T5X's checkpoints against its own logits, there and back in both layouts, and what is no T5 of ours."""

import dataclasses
import os
import shutil

import jax
import numpy as np
import pytest
import tensorstore

from t5core import errors, trees
from t5core.checkpoints import t5x_native
from t5core.config.train_schema import LossConfig
from t5core.importers import contents, t5x
from t5core.importers.contents import Contents
from t5core.models.build import build_model
from tests.t5core.importers.making import GOLDEN, T5X, architecture, made
from tests.t5core.models import small

WI = "decoder/layers_1/mlp/wi_0/kernel"


def test_logits_are_those_of_t5x():
    found = t5x.read(str(T5X))
    expected = np.load(T5X.parent / "expected.npz")
    module = build_model(contents.model_config(found.architecture), LossConfig()).module
    logits = jax.jit(
        lambda params: module.apply(
            {"params": params},
            expected["decoder_input_tokens"],
            expected["decoder_target_tokens"],
            decoder_causal_attention=expected["decoder_causal_attention"],
        )
    )(trees.unflatten(found.params))
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)


@pytest.mark.parametrize("layout", ["unscanned", "scanned"])
def test_logits_of_an_encoder_decoder_are_those_of_t5x_in_either_layout(layout, tmp_path):
    """From T5X's own initial parameters."""
    _, arrays, params = small.golden("t5x_encdec_v1_1")
    params = {path: np.asarray(leaf) for path, leaf in trees.flatten(params).items()}
    model = architecture(vocab_size=384, emb_dim=128, num_heads=4, head_dim=32, mlp_dim=256, num_decoder_layers=2)
    found = Contents(architecture=model, step=0, params=params, opt_state={}, mapping=())
    back = t5x.read(t5x.write(str(tmp_path), found, layout=layout))
    assert back.architecture == model
    assert back.notes[0] == f"layers are {layout}"
    logits = jax.jit(lambda p, batch: small.logits(small.golden_model("t5x_encdec_v1_1"), p, batch))(
        trees.unflatten(back.params), small.golden_batch("t5x_encdec_v1_1", "batch0", rows=2)
    )
    np.testing.assert_allclose(logits, arrays["logits/batch0"], atol=1e-4)


def test_the_state_is_what_t5x_saved_to_the_bit():
    found = t5x.read(str(T5X))
    raw = t5x_native.read_t5x_checkpoint(str(T5X))
    assert found.step == 30
    for ours, theirs in ((found.params, raw["target"]), (trees.flatten(found.opt_state), raw["state"])):
        saved = {path: leaf for path, leaf in trees.flatten(theirs).items() if path != "step"}
        assert trees.flatten(ours).keys() == saved.keys() if theirs is raw["state"] else ours.keys() == saved.keys()
        for path, leaf in saved.items():
            np.testing.assert_array_equal(trees.flatten(ours)[path], leaf, strict=True, err_msg=path)


def filled(tmp_path):
    """Returns what T5X wrote of an encoder-decoder, with arrays for those that the golden folder leaves out."""
    folder = tmp_path / "checkpoint_30"
    shutil.copytree(GOLDEN / "adafactor" / "t5x_encdec_v1_1" / "checkpoint_30", folder)
    index = t5x_native._unpacked(str(folder), 1 << 30)["optimizer"]["target"]
    random = np.random.default_rng(0)
    for path, spec in trees.flatten(index).items():
        owner, _, key = path.rpartition("/metadata/")
        name = folder / f"target.{owner.replace('/', '.')}"
        if key == "shape" and not name.exists():
            written = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{name}/"}}
            store = tensorstore.open(written, create=True, dtype=np.float32, shape=spec).result()
            store.write(random.normal(size=spec).astype(np.float32)).result()
    return str(folder)


def test_names_and_statistics_of_a_real_encoder_decoder_pass_through_both_layouts(tmp_path):
    found = t5x.read(filled(tmp_path))
    assert found.architecture.family == "encoder_decoder"
    assert (found.architecture.num_encoder_layers, found.architecture.num_decoder_layers) == (2, 2)
    slots = trees.flatten(found.opt_state)
    assert len(slots) == 4 * len(found.params)
    assert slots["param_states/encoder/layers_0/mlp/wi_0/kernel/v_col"].shape == (256,)
    for layout in ("unscanned", "scanned"):
        back = t5x.read(t5x.write(str(tmp_path / layout), found, layout=layout))
        assert back.digest() == found.digest()


@pytest.mark.parametrize("layout", ["unscanned", "scanned"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp_activations": ("relu",), "logits_via_embedding": True},
        {"family": "decoder_only", "num_encoder_layers": 0},
    ],
    ids=["T5 1.1", "T5 1.0", "decoder-only"],
)
def test_what_is_exported_is_imported_bit_for_bit(changes, layout, tmp_path):
    found = made(step=7, **changes)
    back = t5x.read(t5x.write(str(tmp_path), found, layout=layout))
    assert back.architecture == found.architecture
    assert back.digest() == found.digest()
    assert back.notes[-1] == "the source has no optimiser's state"


def test_unfactored_statistics_pass_too_and_can_be_dropped(tmp_path):
    found = made(step=7, with_state=True)
    folder = t5x.write(str(tmp_path), found)
    assert t5x.read(folder).digest() == found.digest()
    dropped = t5x.read(folder, optimizer_state="drop")
    assert dropped.opt_state == {}
    assert dropped.digest() == dataclasses.replace(found, opt_state={}).digest()
    with pytest.raises(errors.CheckpointError, match=r"are factored when stacked, not by themselves \(below 128\)"):
        t5x.write(str(tmp_path / "scanned"), found, layout="scanned")


def test_what_t5x_does_not_store_is_said_or_has_to_be_given(tmp_path):
    model = architecture(mlp_activations=("silu", "linear"))
    folder = t5x.write(str(tmp_path), made(mlp_activations=("silu", "linear")))
    found = t5x.read(folder)
    assert found.architecture.mlp_activations == ("gelu", "linear")
    assert any("mlp_activations=['gelu', 'linear'] and relative_attention_max" in note for note in found.notes)
    assert t5x.read(folder, model=model).architecture == model
    with pytest.raises(errors.CheckpointError, match=r"has num_heads=2, and 3 was asked for; mend model.num_heads"):
        t5x.read(folder, model=model.model_copy(update={"num_heads": 3}))


def drop(path):
    return lambda flat: flat.pop(path)


def drop_all(name):
    return lambda flat: [flat.pop(path) for path in list(flat) if name in path]


def put(path, array):
    return lambda flat: flat.update({path: np.asarray(array)})


ZERO = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(f"target/{WI}"), f"has no target/{WI}, whose optimiser's state it has; copy the checkpoint again"),
        (drop_all(WI), f"has no {WI}; check that it is a whole T5 model"),
        (
            drop_all("encoder/relpos_bias/rel_embedding"),
            "has no encoder/relpos_bias/rel_embedding; check that it is",
        ),
        (drop_all("token_embedder/embedding"), "has no target/token_embedder/embedding; it is not of a T5, or not"),
        (
            put("target/decoder/extra/kernel", ZERO),
            "has decoder/extra/kernel, which no T5 of these dimensions has; it ",
        ),
        (
            put(f"target/{WI}", np.zeros((6, 8), np.float32)),
            f"{WI} has shape [6, 8], not [6, 7]; check which model it is",
        ),
        (
            put("target/token_embedder/embedding", ZERO),
            "target/token_embedder/embedding has shape [1]; check the model",
        ),
        (
            put("target/encoder/layers_3/mlp/wo/kernel", ZERO),
            "has no target/encoder/layers_2; copy the checkpoint again",
        ),
        (put("target/decoder/layers_0/mlp/wi_2/kernel", ZERO), "has feed-forward blocks of 3 branches; name the model"),
        (put(f"target/{WI}", np.zeros((6, 7))), f"{WI} is float64, which float32 does not hold exactly"),
        (put("flax_mutables/x", ZERO), "has 'flax_mutables', which models here do not have; it cannot be imported"),
        (put("state/other/x", ZERO), "has 'state/other', which models here do not have; it cannot be imported"),
        (
            put("state/param_states/0/mu/x", ZERO),
            "state/param_states/0/mu/x is not of Adafactor; set optimizer_state to ",
        ),
        (drop(f"state/param_states/{WI}/m"), f"{WI} has no m in the optimiser's state; set optimizer_state to drop"),
        (
            put(f"state/param_states/{WI}/v", np.zeros((7, 6), np.float32)),
            f"target/{WI}: v has shape [7, 6], which does not go with a parameter of [6, 7]; set optimizer_state to",
        ),
    ],
)
def test_trees_that_do_not_make_the_model_are_refused(change, message, tmp_path):
    state = made(step=7, with_state=True).as_tree()
    flat = trees.flatten({"target": state["params"], "state": {"step": state["step"], **state["opt_state"]}})
    change(flat)
    folder = t5x_native.write_t5x_checkpoint(str(tmp_path), 7, trees.unflatten(flat))
    with pytest.raises(errors.CheckpointError) as raised:
        t5x.read(folder)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_links_that_lead_out_of_a_checkpoint_are_refused(tmp_path):
    folder = t5x.write(str(tmp_path), made())
    array = f"{folder}/target.{WI.replace('/', '.')}"
    shutil.move(array, tmp_path / "outside")
    os.symlink(tmp_path / "outside", array)
    with pytest.raises(errors.CheckpointError, match="is a link that leads out of"):
        t5x.read(folder)


def test_arrays_that_the_files_cannot_hold_are_refused_before_they_are_made(tmp_path):
    folder = t5x.write(str(tmp_path), made())
    index = t5x_native._unpacked(folder, 1 << 30)
    huge = [1 << 17, 1 << 17]
    index["optimizer"]["target"]["token_embedder"]["embedding"]["metadata"]["shape"] = huge
    from flax import serialization

    (tmp_path / "checkpoint_0" / "checkpoint").write_bytes(serialization.msgpack_serialize(index))
    with pytest.raises(
        errors.CheckpointError, match=r"declares 687\d+ bytes of arrays, and its files have \d+; copy the"
    ):
        t5x.read(folder)
