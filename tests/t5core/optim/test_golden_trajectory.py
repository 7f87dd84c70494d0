"""Thirty steps of model, loss and Adafactor together, against T5X (see tests/golden/adafactor/README.md)."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from flax import linen as nn

from t5core import trees
from t5core.checkpoints.t5x_native import read_t5x_checkpoint
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LearningRateConfig, LossConfig
from t5core.models.build import build_model
from t5core.optim.adafactor import Adafactor
from t5core.optim.schedule import learning_rate_schedule

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "adafactor"
FAMILIES = {"t5x_encdec_v1_1": "encoder_decoder", "t5x_decoder_only": "decoder_only"}
SCHEDULES = {
    "constant": LearningRateConfig(factors="constant", base_learning_rate=0.01),
    "rsqrt": LearningRateConfig(factors="constant * rsqrt_decay", base_learning_rate=1.0, warmup_steps=100),
}


@functools.cache
def golden(folder):
    return json.loads((GOLDEN / folder / "trajectory.json").read_text())


@functools.cache
def start(folder):
    """Returns the initial parameters, the optimiser, the jitted step and the batches."""
    arrays = np.load(GOLDEN / folder / "batches.npz")
    batches = [{name: arrays[name][i].astype(np.int32) for name in arrays.files} for i in range(30)]
    config = ModelConfig(preset="t5_1_1_tiny", vocab_size=384, dropout_rate=0.0, family=FAMILIES[folder])
    model = build_model(
        config,
        LossConfig(z_loss=1e-4, loss_normalizing_factor=None),
        inputs_bidirectional_attention=FAMILIES[folder] == "decoder_only",
    )
    shapes = {name: value.shape for name, value in batches[0].items()}
    initialise = jax.jit(functools.partial(model.get_initial_variables, input_shapes=shapes))
    boxed = initialise(jax.random.PRNGKey(golden(folder)["seed"]))
    optimizer = Adafactor(param_axes=boxed)

    @jax.jit
    def step(params, opt_state, index, rate, batch):
        (loss, _), grads = jax.value_and_grad(model.loss_fn, has_aux=True)(params, batch, None)
        params, opt_state = optimizer.apply_gradient(grads, params, opt_state, step=index, learning_rate=rate)
        return params, opt_state, loss

    return nn.meta.unbox(boxed), optimizer, step, batches


@functools.cache
def trained(folder, schedule):
    """Returns losses, parameters and optimiser state of the thirty steps."""
    params, optimizer, step, batches = start(folder)
    rate = learning_rate_schedule(SCHEDULES[schedule])
    opt_state = jax.jit(optimizer.init)(params)
    losses = []
    for index, batch in enumerate(batches):
        params, opt_state, loss = step(params, opt_state, index, rate(index), batch)
        losses.append(float(loss))
    return losses, params, opt_state


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("folder", FAMILIES)
def test_losses_are_those_of_t5x(folder, schedule):
    rates, expected = zip(*golden(folder)["trajectories"][schedule], strict=True)
    np.testing.assert_allclose(learning_rate_schedule(SCHEDULES[schedule])(np.arange(30)), rates, rtol=1e-6)
    losses, _, _ = trained(folder, schedule)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.parametrize("folder", FAMILIES)
def test_optimizer_state_after_30_steps_is_that_of_t5x(folder):
    expected = read_t5x_checkpoint(str(GOLDEN / folder / "checkpoint_30"), select=lambda path: path.startswith("state"))
    assert expected["state"].pop("step") == 30
    _, _, opt_state = trained(folder, "constant")
    assert jax.tree.structure(opt_state) == jax.tree.structure(expected["state"])
    found = trees.flatten(opt_state)
    for path, leaf in trees.flatten(expected["state"]).items():
        np.testing.assert_allclose(found[path], leaf, rtol=1e-3, atol=1e-3 * np.abs(leaf).max(), err_msg=path)


@pytest.mark.parametrize("folder", FAMILIES)
def test_parameters_after_30_steps_are_those_of_t5x(folder):
    _, params, _ = trained(folder, "constant")
    found = trees.flatten(params)
    samples = golden(folder)["parameters_after_30"]
    assert found.keys() == samples.keys()
    for path, values in samples.items():
        at = np.linspace(0, found[path].size - 1, len(values)).astype(int)
        np.testing.assert_allclose(np.asarray(found[path]).reshape(-1)[at], values, rtol=1e-3, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("folder", FAMILIES)
def test_training_goes_on_from_a_t5x_state(folder):
    """The state of T5X's checkpoint continues as our own does."""
    _, params, opt_state = trained(folder, "constant")
    _, _, step, batches = start(folder)
    imported = read_t5x_checkpoint(
        str(GOLDEN / folder / "checkpoint_30"), select=lambda path: path.startswith("state/param_states")
    )["state"]
    rate = learning_rate_schedule(SCHEDULES["constant"])(30)
    ours, _, _ = step(params, opt_state, 30, rate, batches[0])
    theirs, _, _ = step(params, imported, 30, rate, batches[0])
    for path, leaf in trees.flatten(ours).items():
        np.testing.assert_allclose(trees.flatten(theirs)[path], leaf, rtol=1e-4, atol=1e-6, err_msg=path)
