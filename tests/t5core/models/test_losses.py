import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.models.losses import token_losses
from tests.t5core.models.small import assert_trees_close

VOCAB = 7


@pytest.fixture(scope="module")
def case():
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.normal(scale=3.0, size=(2, 4, VOCAB)), jnp.float32)
    return logits, jnp.asarray(random.integers(0, VOCAB, (2, 4)))


def by_definition(logits, targets, *, label_smoothing=0.0, z_loss=0.0):
    """The formulas of the papers, with soft targets written out."""
    off = label_smoothing / (VOCAB - 1)
    soft = jax.nn.one_hot(targets, VOCAB) * (1 - label_smoothing - off) + off
    entropy = -jnp.sum(soft * jnp.log(soft + 1e-20), axis=-1)
    cross_entropy = -jnp.sum(soft * jax.nn.log_softmax(logits), axis=-1) - entropy
    return cross_entropy, z_loss * jnp.log(jnp.sum(jnp.exp(logits), axis=-1)) ** 2


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_values_and_gradients_are_those_of_the_definition(case, label_smoothing, z_loss):
    logits, targets = case
    settings = {"label_smoothing": label_smoothing, "z_loss": z_loss}

    def ours(logits):
        losses = token_losses(logits, targets, **settings)
        return jnp.sum(3.0 * losses.cross_entropy + losses.z_loss), (losses.cross_entropy, losses.z_loss)

    def expected(logits):
        cross_entropy, z = by_definition(logits, targets, **settings)
        return jnp.sum(3.0 * cross_entropy + z), (cross_entropy, z)

    actual, expected = (jax.jit(jax.value_and_grad(f, has_aux=True))(logits) for f in (ours, expected))
    assert_trees_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_perfect_prediction_costs_nothing(label_smoothing):
    soft = np.full((1, 1, VOCAB), label_smoothing / (VOCAB - 1), np.float32)
    soft[..., 3] = 1.0 - label_smoothing
    logits = np.log(soft + 1e-20)
    loss = jax.jit(lambda x: token_losses(x, jnp.asarray([[3]]), label_smoothing=label_smoothing).cross_entropy)(logits)
    np.testing.assert_allclose(loss, 0.0, atol=1e-6)


def test_huge_logits_stay_finite():
    logits = jnp.asarray([[[1e4, 0.0, -1e4]]])
    loss = jax.jit(jax.value_and_grad(lambda x: token_losses(x, jnp.asarray([[2]])).cross_entropy.sum()))
    value, gradient = loss(logits)
    np.testing.assert_allclose(value, 2e4)
    np.testing.assert_allclose(gradient, [[[1.0, 0.0, -1.0]]])


def test_correct_means_the_argmax_even_among_equals(case):
    logits, targets = case
    correct = jax.jit(lambda logits, targets: token_losses(logits, targets).correct)
    np.testing.assert_array_equal(correct(logits, targets), np.argmax(logits, axis=-1) == targets)
    np.testing.assert_array_equal(correct(jnp.zeros((1, 2, 3)), jnp.asarray([[0, 1]])), [[True, False]])


def test_shapes_that_do_not_fit_are_refused():
    message = r"logits \(2, 3, 5\) do not fit targets \(2, 4\); give logits for each token"
    with pytest.raises(errors.ConfigError, match=message):
        token_losses(jnp.zeros((2, 3, 5)), jnp.zeros((2, 4), int))
