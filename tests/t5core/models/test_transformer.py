"""Properties of the networks: who sees whom, and that the ways to compute them agree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from t5core import errors, trees
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.build import build_model
from t5core.models.dropout import draw_masks, dropped
from t5core.models.layers import NetworkConfig, TokenEmbedder
from t5core.models.scanning import rematerialised
from tests.t5core.models.small import KEY, SHAPES, TINY, VOCAB, assert_trees_close, logits, tiny_model, tiny_params

# One row of two packed sequences, each with a prefix of two inputs, and one row of a single sequence without.
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 0, 0]])
PREFIX = np.array([[1, 1, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]])
LENGTH = SEGMENTS.shape[1]
REAL = SEGMENTS > 0


def distinct_tokens(first: int, like: np.ndarray):
    """Returns tokens that occur once in their row, so that an embedding's gradient tells the position it came from."""
    return jnp.asarray(np.broadcast_to(np.arange(like.shape[1]) + first, like.shape))


def influence(model, params, batch, embedding_path, tokens):
    """Returns [batch, output position, input position]: whether the token there has any influence on the logits."""

    def summed(embedding):
        changed = trees.unflatten({**trees.flatten(params), embedding_path: embedding})
        return logits(model, changed, batch).sum(axis=-1)

    jacobian = jax.jit(jax.jacrev(summed))(trees.flatten(params)[embedding_path])
    of_tokens = np.abs(np.asarray(jacobian)).max(axis=-1)
    return np.stack([of_tokens[row][:, np.asarray(tokens)[row]] for row in range(len(tokens))]) > 0


def same_segment(queries, keys):
    return (queries[:, :, None] == keys[:, None, :]) & (queries > 0)[:, :, None] & (keys > 0)[:, None, :]


def test_a_decoder_sees_its_past_and_its_prefix_but_no_other_sequence():
    inputs = distinct_tokens(2, SEGMENTS)
    batch = {
        "decoder_input_tokens": inputs,
        "decoder_target_tokens": jnp.asarray(np.where(REAL, 5, 0)),
        "decoder_segment_ids": jnp.asarray(SEGMENTS),
        "decoder_causal_attention": jnp.asarray(PREFIX),
    }
    model = tiny_model("decoder_only", prefix_lm=True)
    seen = influence(model, tiny_params("decoder_only"), batch, "decoder/token_embedder/embedding", inputs)
    causal = np.tri(LENGTH, dtype=bool)
    expected = same_segment(SEGMENTS, SEGMENTS) & (causal | (PREFIX[:, :, None] & PREFIX[:, None, :] > 0))
    np.testing.assert_array_equal(seen[REAL], expected[REAL])


@functools.cache
def packed_batch():
    encoder_segments = np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0, 0]])
    return {
        "encoder_input_tokens": jnp.where(encoder_segments > 0, distinct_tokens(2, encoder_segments), 0),
        "encoder_segment_ids": jnp.asarray(encoder_segments),
        "decoder_input_tokens": distinct_tokens(10, SEGMENTS),
        "decoder_target_tokens": jnp.asarray(np.where(REAL, 5, 0)),
        "decoder_segment_ids": jnp.asarray(SEGMENTS),
    }


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_an_encoder_decoder_sees_no_other_sequence(side):
    batch = packed_batch()
    tokens, segments = batch[f"{side}_input_tokens"], np.asarray(batch[f"{side}_segment_ids"])
    seen = influence(tiny_model(), tiny_params(), batch, "token_embedder/embedding", tokens)
    expected = same_segment(SEGMENTS, segments)
    if side == "decoder":
        expected &= np.tri(LENGTH, dtype=bool)
    used = segments > 0
    for row in range(len(SEGMENTS)):
        np.testing.assert_array_equal(seen[row][REAL[row]][:, used[row]], expected[row][REAL[row]][:, used[row]])


@functools.cache
def forward():
    """Returns the compiled logits of the encoder-decoder over packed batches."""
    model = tiny_model()
    return jax.jit(lambda batch: logits(model, tiny_params(), batch))


def test_a_sequence_has_the_same_logits_packed_behind_another_as_alone():
    packed = packed_batch()
    # Row 1 becomes the second sequence of row 0, moved to the start; the logits of row 0 stay as they are.
    alone = {name: np.array(value) for name, value in packed.items()}
    for name, (start, stop) in {"encoder": (3, 6), "decoder": (4, 7)}.items():
        for feature in (f"{name}_input_tokens", f"{name}_segment_ids", f"{name}_target_tokens"):
            if feature in alone:
                alone[feature][1] = 0
                alone[feature][1, : stop - start] = packed[feature][0, start:stop]
    result = forward()({name: jnp.asarray(value) for name, value in alone.items()})
    np.testing.assert_allclose(result[1, :3], result[0, 4:7], rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours():
    batch = packed_batch()
    changed = {name: value.at[1].set(jnp.where(value[1] > 0, 3, 0)) for name, value in batch.items()}
    np.testing.assert_array_equal(forward()(batch)[0], forward()(changed)[0])


@functools.cache
def trained(**settings):
    """Returns a compiled function from a dropout key to loss and gradient."""
    model = tiny_model(dropout_rate=0.5, num_encoder_layers=1, **settings)
    batch, params = packed_batch(), tiny_params(num_encoder_layers=1)
    return jax.jit(lambda key: jax.value_and_grad(lambda params: model.loss_fn(params, batch, key)[0])(params))


@pytest.mark.parametrize(
    "settings", [{"scan_layers": True, "remat_policy": "full"}, {"remat_policy": "minimal"}], ids=str
)
def test_scanning_and_recomputing_change_neither_loss_nor_gradient_nor_dropout(settings):
    loss, gradient = trained(**settings)(KEY)
    expected_loss, expected = trained()(KEY)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_trees_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_equal_biases_in_all_layers_are_a_shared_one_and_their_gradients_add_up_to_its():
    def computed(bias, params, **settings):
        model = tiny_model(relative_position_bias=bias, **settings)
        loss, gradient = jax.jit(jax.value_and_grad(lambda params: model.loss_fn(params, packed_batch(), None)[0]))(
            params
        )
        return loss, trees.flatten(gradient)

    shared = trees.flatten(tiny_params())
    own, own_to_shared = {}, {}
    for name in trees.flatten(tiny_params(relative_position_bias="per_layer")):
        own_to_shared[name] = name if name in shared else f"{name.split('/')[0]}/relpos_bias/rel_embedding"
        own[name] = shared[own_to_shared[name]]
    assert len(own) == len(shared) + 2  # of two layers in each stack
    loss, gradient = computed("shared", trees.unflatten(shared))
    for settings in ({}, {"scan_layers": True, "remat_policy": "full"}):
        own_loss, own_gradient = computed("per_layer", trees.unflatten(own), **settings)
        np.testing.assert_allclose(own_loss, loss, rtol=1e-6)
        summed = dict.fromkeys(shared, 0.0)
        for name, array in own_gradient.items():
            summed[own_to_shared[name]] += array
        assert_trees_close(summed, gradient, rtol=1e-4, atol=1e-5)


def test_dropout_depends_on_the_key_alone():
    losses = [float(trained()(key)[0]) for key in (KEY, KEY, jax.random.PRNGKey(1))]
    assert losses[0] == losses[1] != losses[2]


def test_dropout_masks_are_shared_by_positions_and_by_nothing_else():
    masks = draw_masks(KEY, rate=0.25, batch=64, sites={"a": (3, 1, 40), "b": (1, 40)})
    assert masks["a"].shape == (64, 3, 1, 40)
    np.testing.assert_allclose(masks["a"].mean(), 0.75, atol=0.02)
    rows = np.asarray(jnp.concatenate([masks["a"], masks["b"][:, None]], axis=1)).reshape(-1, 40)
    assert len(np.unique(rows, axis=0)) == len(rows)

    x = jnp.ones((64, 5, 40), jnp.bfloat16)
    result = dropped(x, masks, "b", rate=0.25)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result, jnp.broadcast_to(result[:, :1], x.shape))
    np.testing.assert_allclose(np.unique(np.asarray(result, np.float32)), [0.0, 4 / 3], rtol=1e-2)
    assert dropped(x, None, "b", rate=0.25) is x


def test_bfloat16_activations_keep_parameters_and_logits_float32():
    model = tiny_model(dtype="bfloat16")
    result = jax.jit(lambda batch: logits(model, tiny_params(), batch))(packed_batch())
    assert result.dtype == jnp.float32
    exact = forward()(packed_batch())
    assert not np.array_equal(result, exact)
    np.testing.assert_allclose(result, exact, atol=0.3)
    boxed = jax.eval_shape(lambda key: model.get_initial_variables(key, SHAPES), KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(boxed)} == {jnp.dtype("float32")}


def test_an_id_beyond_the_vocabulary_cannot_go_unseen():
    embedder = TokenEmbedder(NetworkConfig(architecture=ModelConfig(**TINY).architecture()))
    embedded = embedder.apply({"params": {"embedding": np.ones((VOCAB, 8), np.float32)}}, jnp.array([[0, VOCAB]]))
    np.testing.assert_array_equal(np.isnan(embedded[0]).all(axis=-1), [False, True])


def test_tied_logits_are_scaled_products_with_the_embedding():
    embedder = TokenEmbedder(NetworkConfig(architecture=ModelConfig(**TINY).architecture()))
    embedding = np.random.default_rng(0).normal(size=(VOCAB, 8)).astype(np.float32)
    hidden = np.ones((1, 2, 8), np.float32)
    result = embedder.apply({"params": {"embedding": embedding}}, hidden, method="attend")
    np.testing.assert_allclose(result, hidden @ embedding.T / np.sqrt(8), rtol=1e-5)


def parameters(preset):
    model = build_model(ModelConfig(preset=preset), LossConfig())
    return trees.flatten(jax.eval_shape(lambda key: model.get_initial_variables(key, SHAPES), KEY))


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("t5_1_1_small", 76_961_152),
        ("t5_1_0_small", 60_506_624),
        ("mt5_small", 300_176_768),
        ("byt5_small", 299_637_760),
        ("umt5_small", 306_601_984),
    ],
)
def test_published_sizes_have_their_number_of_parameters(preset, count):
    assert sum(leaf.value.size for leaf in parameters(preset).values()) == count


def test_parameters_have_the_paths_and_axes_of_t5x():
    boxed = parameters("t5_1_0_small")
    axes = {path: leaf.names for path, leaf in boxed.items()}
    assert "decoder/logits_dense/kernel" not in axes
    expected = {
        "token_embedder/embedding": ("vocab", "embed"),
        "encoder/relpos_bias/rel_embedding": ("heads", "relpos_buckets"),
        "encoder/layers_5/attention/query/kernel": ("embed", "joined_kv"),
        "encoder/layers_5/mlp/wi/kernel": ("embed", "mlp"),
        "decoder/layers_0/encoder_decoder_attention/out/kernel": ("joined_kv", "embed"),
        "decoder/layers_0/mlp/wo/kernel": ("mlp", "embed"),
        "decoder/decoder_norm/scale": ("embed",),
    }
    assert {path: axes[path] for path in expected} == expected
    assert all(isinstance(leaf, nn.LogicallyPartitioned) for leaf in boxed.values())


def test_an_unknown_remat_policy_is_refused():
    message = r"unknown model.remat_policy 'minimum'; did you mean 'minimal'\? known: full, minimal, none"
    with pytest.raises(errors.ConfigError, match=message):
        rematerialised(lambda *_: None, "minimum", scanned=False)
