"""Normalisation of the loss: what it is by hand, and that neither packing, padding nor micro-batches change it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from t5core.config.train_schema import LossConfig
from t5core.models.loss_weights import loss_normalizer, loss_weights, objective_weights
from tests.t5core.models.small import assert_trees_close, batch_of, tiny_model, tiny_params

FACTORS = [None, 10.0, "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]


def test_a_batch_without_weights_counts_what_is_not_padding():
    np.testing.assert_array_equal(loss_weights({"decoder_target_tokens": jnp.asarray([[5, 1, 0]])}), [[1.0, 1.0, 0.0]])


def test_normalizers_by_hand():
    batch = batch_of([[5, 6, 1], [7, 1], [0]], length=4)
    np.testing.assert_allclose([loss_normalizer(batch, factor) for factor in FACTORS], [1.0, 10.0, 5.0, 12.0, 2.0])


def test_each_packed_sequence_weighs_one_whatever_its_length():
    batch = {
        "decoder_target_tokens": jnp.asarray([[5, 6, 1, 7, 1, 0], [5, 6, 7, 8, 9, 1]]),
        "decoder_segment_ids": jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 2, 2, 2]]),
        # The first sequence of the second row is a prompt without loss.
        "decoder_loss_weights": jnp.asarray([[1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1]]),
    }
    third = 1 / 3
    expected = [[third, third, third, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]]
    np.testing.assert_allclose(objective_weights(batch, "AVERAGE_PER_SEQUENCE"), expected)
    np.testing.assert_allclose(loss_normalizer(batch, "AVERAGE_PER_SEQUENCE"), 3.0)


def uneven_batch(*, length):
    random = np.random.default_rng(0)
    return batch_of([random.integers(2, 32, size) for size in (3, 30)], length=length)


@functools.cache
def gradients():
    """Returns a compiled function from a batch to the loss, the metric sums and the gradient by factor.

    The loss is divided by the normaliser of the second batch, or by the batch's own.
    """
    models = [
        tiny_model("decoder_only", loss=LossConfig(loss_normalizing_factor=factor, z_loss=1e-2), num_decoder_layers=1)
        for factor in FACTORS
    ]
    params = tiny_params("decoder_only", num_decoder_layers=1)

    def by_factor(batch, whole=None):
        logits, pullback = jax.vjp(lambda params: models[0]._logits(params, batch, None), params)
        losses = []
        for model in models:
            normalizer = None if whole is None else model.loss_normalizer(whole)
            losses.append(jax.value_and_grad(model.loss_of_logits, has_aux=True)(logits, batch, normalizer))
        (values, sums), of_logits = jax.tree.map(lambda *leaves: jnp.stack(leaves), *losses)
        return values, sums, jax.vmap(pullback)(of_logits)[0]

    return jax.jit(by_factor)


def test_microbatches_do_not_change_the_gradient():
    whole = uneven_batch(length=64)
    expected = gradients()(whole)
    parts = [gradients()({name: value[i : i + 1] for name, value in whole.items()}, whole) for i in (0, 1)]
    assert_trees_close(jax.tree.map(np.add, *parts), expected, rtol=1e-5, atol=1e-5)


def test_padding_does_not_change_the_gradient():
    values, _, of_padded = gradients()(uneven_batch(length=64))
    trimmed_values, _, of_trimmed = gradients()(uneven_batch(length=30))
    for index, factor in enumerate(FACTORS):
        if factor != "NUM_TOTAL_TARGET_TOKENS":  # which counts padding
            np.testing.assert_allclose(values[index], trimmed_values[index], rtol=1e-5)
            actual, expected = (jax.tree.map(lambda leaf, i=index: leaf[i], tree) for tree in (of_padded, of_trimmed))
            assert_trees_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_padding_of_inputs_does_not_change_the_gradient_either():
    random = np.random.default_rng(1)
    examples = [[random.integers(2, 32, size) for size in (3, 30)] for _ in range(2)]
    model, params = (
        tiny_model(num_encoder_layers=1, num_decoder_layers=1),
        tiny_params(num_encoder_layers=1, num_decoder_layers=1),
    )
    gradient = jax.jit(jax.grad(lambda batch, params: model.loss_fn(params, batch, None)[0], argnums=1))
    padded, trimmed = (batch_of(*examples, length=length, input_length=length) for length in (64, 30))
    assert_trees_close(gradient(padded, params), gradient(trimmed, params), rtol=1e-5, atol=1e-5)


def test_a_batch_of_padding_has_loss_and_gradient_zero():
    values, sums, gradient = gradients()(batch_of([[0], [0]], length=64))
    assert not values.any()
    assert not sums["num_examples"].any()
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))
