"""Normalisation of the loss: what it is by hand, and that neither packing, padding nor micro-batches change it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core.config.schema import LossConfig
from t5core.models.loss_weights import loss_normalizer, loss_weights, objective_weights
from tests.t5core.models.small import assert_trees_close, batch_of, tiny_model, tiny_params

FACTORS = [None, 10.0, "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]


def test_a_batch_without_weights_counts_what_is_not_padding():
    np.testing.assert_array_equal(loss_weights({"decoder_target_tokens": jnp.asarray([[5, 1, 0]])}), [[1.0, 1.0, 0.0]])


def test_normalizers_by_hand():
    batch = batch_of([[5, 6, 1], [7, 1], [0]], length=4)
    expected = {None: 1.0, 10.0: 10.0, "NUM_REAL_TARGET_TOKENS": 5.0, "NUM_TOTAL_TARGET_TOKENS": 12.0}
    for factor, value in {**expected, "AVERAGE_PER_SEQUENCE": 2.0}.items():
        np.testing.assert_allclose(loss_normalizer(batch, factor), value, err_msg=str(factor))


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


def one_layer_model(factor):
    loss = LossConfig(loss_normalizing_factor=factor, z_loss=1e-2)
    return tiny_model("decoder_only", loss=loss, num_decoder_layers=1), tiny_params("decoder_only", num_decoder_layers=1)


@pytest.mark.parametrize("factor", FACTORS)
def test_microbatches_and_padding_do_not_change_the_gradient(factor):
    model, params = one_layer_model(factor)
    gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
    whole = uneven_batch(length=64)
    normalizer = model.loss_normalizer(whole)
    (loss, sums), expected = gradient(params, whole, None, normalizer)
    np.testing.assert_allclose(loss, model.loss_of_logits(model._logits(params, whole, None), whole)[0], rtol=1e-6)

    parts = [
        gradient(params, {name: value[i : i + 1] for name, value in whole.items()}, None, normalizer) for i in (0, 1)
    ]
    (part_losses, part_sums), part_gradients = zip(*[part[0] for part in parts], strict=True), [p[1] for p in parts]
    np.testing.assert_allclose(sum(part_losses), loss, rtol=1e-5)
    assert_trees_close(jax.tree.map(jnp.add, *part_sums), sums, rtol=1e-5)
    assert_trees_close(jax.tree.map(jnp.add, *part_gradients), expected, atol=1e-5 * max(float(loss), 1.0))

    if factor != "NUM_TOTAL_TARGET_TOKENS":  # which counts padding
        (_, _), trimmed = gradient(params, uneven_batch(length=30), None, None)
        assert_trees_close(trimmed, expected, atol=1e-5 * max(float(loss), 1.0))


def test_a_batch_of_padding_has_loss_and_gradient_zero():
    model, params = one_layer_model("NUM_REAL_TARGET_TOKENS")
    (loss, sums), gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(
        params, batch_of([[0], [0]], length=3), None
    )
    assert loss == 0.0
    assert sums["num_examples"] == 0.0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))
