"""Hugging Face's T5 against golden logits, there and back, and everything about a folder that can be wrong."""

import dataclasses
import json
import os
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5core import errors, trees
from t5core.config.train_schema import LossConfig
from t5core.importers import contents, huggingface, huggingface_config, huggingface_names
from t5core.models.build import build_model
from tests.t5core.importers.making import HUGGINGFACE, architecture, made, rewrite, saved

QUERY = "encoder.block.1.layer.0.SelfAttention.q.weight"


def test_logits_are_those_of_transformers():
    found = huggingface.read(str(HUGGINGFACE))
    expected = np.load(HUGGINGFACE / "expected.npz")
    module = build_model(contents.model_config(found.architecture), LossConfig()).module
    tokens = expected["encoder_input_tokens"], expected["decoder_input_tokens"]
    # transformers masks nothing in the decoder: every target counts as one.
    logits = jax.jit(lambda params: module.apply({"params": params}, *tokens, np.ones_like(tokens[1])))(
        trees.unflatten(found.params)
    )
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)
    assert found.notes == (
        "logits are unscaled products with the embedding: decoder/logits_dense/kernel is a copy of it",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mlp_activations": ("relu",), "logits_via_embedding": True},
        {"mlp_activations": ("silu", "linear"), "num_encoder_layers": 1},
        {"relative_position_bias": "per_layer"},
    ],
    ids=["T5 1.1", "T5 1.0", "other", "umT5"],
)
@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 700])
def test_what_is_exported_is_imported_bit_for_bit(changes, max_shard_bytes, tmp_path):
    found = made(**changes)
    saved(tmp_path / "model", found, max_shard_bytes=max_shard_bytes)
    back = huggingface.read(str(tmp_path / "model"))
    assert back.digest() == found.digest()
    assert back.architecture == found.architecture
    shards = list((tmp_path / "model").glob("model-*-of-*.safetensors"))
    assert len(shards) == 0 if max_shard_bytes > 700 else len(shards) > 3


def test_what_is_imported_is_exported_tensor_by_tensor_the_same(tmp_path):
    """All but the head, which release 5 of transformers ties and release 4 does not."""
    huggingface.write(str(tmp_path / "model"), huggingface.read(str(HUGGINGFACE)))
    ours, theirs = load_file(tmp_path / "model" / "model.safetensors"), load_file(HUGGINGFACE / "model.safetensors")
    assert ours.keys() - theirs.keys() == {"lm_head.weight"}
    np.testing.assert_array_equal(ours["lm_head.weight"], theirs["shared.weight"])
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor, strict=True, err_msg=name)


def test_the_config_is_what_transformers_reads(tmp_path):
    """Names of `T5Config`; `tie_word_embeddings` false tells release 4 and 5 that logits are not scaled."""
    config = json.loads((saved(tmp_path / "model") / "config.json").read_text())
    assert config["architectures"] == ["T5ForConditionalGeneration"]
    assert config["model_type"] == "t5"
    assert (config["d_model"], config["d_kv"], config["d_ff"]) == (6, 5, 7)
    assert (config["num_layers"], config["num_decoder_layers"]) == (2, 3)
    assert config["feed_forward_proj"] == "gated-gelu"
    assert not config["tie_word_embeddings"]
    assert not config["scale_decoder_outputs"]
    tied = huggingface_config.render(architecture(logits_via_embedding=True, mlp_activations=("relu",)))
    assert tied["tie_word_embeddings"]
    assert tied["scale_decoder_outputs"]


def test_a_umt5_has_the_names_that_transformers_gives_it(tmp_path):
    """`UMT5Attention` has `relative_attention_bias` in every layer's self-attention."""
    found = made(relative_position_bias="per_layer")
    folder = saved(tmp_path / "model", found)
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["UMT5ForConditionalGeneration"], "umt5")
    tensors = load_file(folder / "model.safetensors")
    for ours, theirs in (("encoder/layers_1", "encoder.block.1"), ("decoder/layers_2", "decoder.block.2")):
        tensor = tensors[f"{theirs}.layer.0.SelfAttention.relative_attention_bias.weight"]
        np.testing.assert_array_equal(tensor, found.params[f"{ours}/relpos_bias/rel_embedding"].T)


def test_parameters_are_transposed_where_pytorch_has_outputs_first(tmp_path):
    found = made()
    tensors = load_file(saved(tmp_path / "model", found) / "model.safetensors")
    np.testing.assert_array_equal(tensors[QUERY], found.params["encoder/layers_1/attention/query/kernel"].T)
    np.testing.assert_array_equal(tensors["shared.weight"], found.params["token_embedder/embedding"])
    bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    np.testing.assert_array_equal(tensors[bias], found.params["decoder/relpos_bias/rel_embedding"].T)
    entry = next(e for e in huggingface.read(str(tmp_path / "model")).mapping if e.source == QUERY)
    assert (entry.name, entry.shape, entry.how) == ("encoder/layers_1/attention/query/kernel", [6, 10], "transposed")


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_narrow_floats_are_widened_exactly(tmp_path):
    folder = saved(tmp_path / "model")
    change_tensors(folder, lambda t: t.update({QUERY: t[QUERY].astype(np.float16)}))
    half = load_file(folder / "model.safetensors")[QUERY]
    found = huggingface.read(str(folder))
    np.testing.assert_array_equal(found.params["encoder/layers_1/attention/query/kernel"], half.T.astype(np.float32))
    assert next(e for e in found.mapping if e.source == QUERY).dtype == "float16"
    wide = contents.as_float32(np.array([1.5, 3e38], ml_dtypes.bfloat16), name="x")
    assert wide.dtype == np.float32


def test_old_names_of_the_embedding_and_leftovers_are_reported(tmp_path):
    folder = saved(tmp_path / "model", made(logits_via_embedding=True))
    leftover = huggingface_names.LEFTOVERS[0]

    def as_the_first_t5s(tensors):
        shared = tensors.pop("shared.weight")
        tensors |= {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared}
        tensors |= {"lm_head.weight": shared, leftover: np.zeros((32, 2), np.float32)}

    change_tensors(folder, as_the_first_t5s)
    found = huggingface.read(str(folder))
    assert found.digest() == made(logits_via_embedding=True).digest()
    assert [entry.split(":")[0] for entry in found.unused] == [*huggingface_names.EMBEDDING_ALIASES, leftover]
    assert found.notes == ("lm_head.weight is the embedding",)


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, array):
    return lambda tensors: tensors.update({name: np.asarray(array, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(QUERY), f"has no {QUERY}; copy the checkpoint again"),
        (drop("lm_head.weight"), "has no lm_head.weight; copy the checkpoint again"),
        (put("encoder.block.1.layer.0.SelfAttention.q.bias", [1]), "q.bias, which no T5 of its config.json has; it "),
        (put(QUERY, np.zeros((10, 5))), "query/kernel has shape [5, 10], not [6, 10]; check which model it is"),
        (
            put("encoder.block.2.layer_norm.weight", [1]),
            "has 3 encoder blocks, and its config.json says 2 (num_layers)",
        ),
        (
            put("decoder.embed_tokens.weight", np.zeros((40, 6))),
            "decoder.embed_tokens.weight differs from shared.weight",
        ),
        (
            lambda tensors: tensors.update({QUERY: tensors[QUERY].astype(np.float64)}),
            "is float64, which float32 does not hold exactly; convert it to float32 first",
        ),
        (
            lambda tensors: tensors.update({QUERY: tensors[QUERY].astype(np.int8)}),
            "is int8, which float32 does not hold exactly; convert it to float32 first",
        ),
    ],
)
def test_tensors_that_do_not_make_the_model_are_refused(change, message, tmp_path):
    folder = saved(tmp_path / "model")
    change_tensors(folder, change)
    with pytest.raises(errors.CheckpointError) as raised:
        huggingface.read(str(folder))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "longt5"}, "unknown model_type 'longt5'; did you mean 't5'? known: mt5, t5, umt5"),
        ({"model_type": "bart"}, "unknown model_type 'bart'"),
        ({"is_encoder_decoder": False}, "is of one stack alone"),
        ({"quantization_config": {}}, "is of a quantised model; give the original one"),
        ({"layer_norm_epsilon": 1e-5}, "has layer_norm_epsilon=1e-05, and models here have 1e-06"),
        ({"feed_forward_proj": "gelu"}, "has feed_forward_proj='gelu', and models here know relu, gelu_new, silu, "),
        ({"d_model": "6"}, "has d_model='6', not a size; check the folder"),
        ({"num_layers": 3}, "has 2 encoder blocks, and its config.json says 3 (num_layers)"),
        ({"num_layers": (1 << 31) - 1}, "has 2 encoder blocks, and its config.json says 2147483647 (num_layers)"),
        ({"num_decoder_layers": None}, "has 3 decoder blocks, and its config.json says 2 (num_decoder_layers)"),
        ({"vocab_size": 50}, "decoder/logits_dense/kernel has shape [6, 40], not [6, 50] (and 1 more)"),
        ({"num_heads": 5, "d_kv": 2}, "rel_embedding has shape [2, 32], not [5, 32]"),
        ({"relative_attention_max_distance": 64}, "the source has relative_attention_max_distance=64, and models here"),
        ({"scale_decoder_outputs": True}, "lm_head.weight differs from shared.weight, and its config.json ties them"),
        ({"tie_word_embeddings": "no"}, "has tie_word_embeddings='no', scale_decoder_outputs=False"),
    ],
)
def test_configs_that_models_here_cannot_follow_are_refused(changes, message, tmp_path):
    folder = saved(tmp_path / "model")
    rewrite(folder, "config.json", lambda config: config.update(changes))
    with pytest.raises(errors.CheckpointError) as raised:
        huggingface.read(str(folder))
    assert message in str(raised.value)


def test_an_older_config_scales_when_it_ties(tmp_path):
    folder = saved(tmp_path / "model", made(logits_via_embedding=True))
    rewrite(
        folder, "config.json", lambda config: [config.pop(k) for k in ("scale_decoder_outputs", "tie_word_embeddings")]
    )
    assert huggingface.read(str(folder)).architecture.logits_via_embedding


def sharded(tmp_path):
    return saved(tmp_path / "model", max_shard_bytes=700)


def place(index, tensor, name):
    index["weight_map"][tensor] = name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda i: place(i, QUERY, "../other/model.safetensors"),
            "in '../other/model.safetensors', not in a file of its ",
        ),
        (lambda i: place(i, QUERY, "/etc/passwd"), "in '/etc/passwd', not in a file of its folder; do not trust it"),
        (lambda i: place(i, QUERY, "pytorch_model.bin"), "in 'pytorch_model.bin', not in a file of its folder"),
        (lambda i: place(i, QUERY, 3), "in 3, not in a file of its folder; do not trust it"),
        (lambda i: place(i, QUERY, "other.safetensors"), "has no other.safetensors, which its index names"),
        (lambda i: i["weight_map"].pop(QUERY), f"{QUERY} is in model-"),
        (lambda i: place(i, "more", i["weight_map"][QUERY]), "more is not in model-"),
        (lambda i: i.pop("weight_map"), "has no weight_map; copy the checkpoint again"),
    ],
)
def test_indexes_that_cannot_be_trusted_are_refused(change, message, tmp_path):
    folder = sharded(tmp_path)
    rewrite(folder, huggingface.INDEX_FILE, change)
    with pytest.raises(errors.CheckpointError) as raised:
        huggingface.read(str(folder))
    assert message in str(raised.value)


def test_a_missing_shard_and_two_answers_are_refused(tmp_path):
    folder = sharded(tmp_path)
    shard = sorted(folder.glob("model-*"))[1]
    shutil.copy(shard, folder / "model.safetensors")
    with pytest.raises(errors.CheckpointError, match=r"has both model.safetensors and model.safetensors.index.json"):
        huggingface.read(str(folder))
    (folder / "model.safetensors").unlink()
    shard.unlink()
    with pytest.raises(errors.CheckpointError, match=f"has no {shard.name}, which its index names"):
        huggingface.read(str(folder))


def test_pickles_are_never_opened(tmp_path):
    folder = saved(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        errors.CheckpointError, match=r"has pytorch_model.bin and no model.safetensors; other formats are "
    ):
        huggingface.read(str(folder))


def test_a_snapshot_of_the_cache_is_followed_and_other_links_are_not(tmp_path):
    blobs, snapshot = tmp_path / "models--t5" / "blobs", tmp_path / "models--t5" / "snapshots" / "1234"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(HUGGINGFACE / name, blobs / f"sum-of-{name}")
        os.symlink(f"../../blobs/sum-of-{name}", snapshot / name)
    assert huggingface.read(str(snapshot)).digest() == huggingface.read(str(HUGGINGFACE)).digest()
    (snapshot / "model.safetensors").unlink()
    os.symlink(HUGGINGFACE / "model.safetensors", snapshot / "model.safetensors")
    with pytest.raises(
        errors.CheckpointError, match=r"model.safetensors is a link that leads out of .*; do not trust it"
    ):
        huggingface.read(str(snapshot))


@pytest.mark.parametrize("content", [b"{", b"[" * 200_000, b"\xff", b"[]"])
def test_a_config_that_is_none_is_refused(content, tmp_path):
    folder = saved(tmp_path / "model")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(errors.CheckpointError, match=r"config.json (is not JSON; copy|holds a list, not settings)"):
        huggingface.read(str(folder))


def test_a_folder_is_not_written_over_and_what_does_not_fit_is_said(tmp_path):
    found = made(step=5, with_state=True)
    assert huggingface.write(str(tmp_path / "model"), found) == ["the optimiser's state", "the step (5)"]
    with pytest.raises(errors.CheckpointError, match=r"has a config.json; remove it, or write to another folder"):
        saved(tmp_path / "model")
    alone = dataclasses.replace(found, architecture=architecture(family="decoder_only"))
    with pytest.raises(
        errors.CheckpointError, match="transformers has no T5 of the family 'decoder_only'; export it in "
    ):
        saved(tmp_path / "other", alone)
    odd = dataclasses.replace(found, architecture=architecture(mlp_activations=("gelu", "relu")))
    with pytest.raises(errors.CheckpointError, match=r"transformers has no T5 with mlp_activations=\['gelu', 'relu'\]"):
        saved(tmp_path / "other", odd)


def test_a_model_that_was_asked_for_has_to_be_that_one():
    found = huggingface.read(str(HUGGINGFACE)).architecture
    assert huggingface.read(str(HUGGINGFACE), model=found).architecture == found
    with pytest.raises(errors.CheckpointError, match=r"has emb_dim=64, and 65 was asked for; mend model.emb_dim"):
        huggingface.read(str(HUGGINGFACE), model=found.model_copy(update={"emb_dim": 65}))
