"""The models against T5X's own numbers (see the READMEs under tests/golden)."""

import functools

import jax
import numpy as np
import pytest

from t5core import trees
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.build import build_model
from t5core.models.decoding import beam_search, temperature_sample
from tests.t5core.models.small import FAMILIES, golden, golden_batch, golden_model, logits

LOSSES = {
    "plain": {},
    "z_loss_1e-4": {"z_loss": 1e-4},
    "label_smoothing_0.1": {"label_smoothing": 0.1},
    "z+ls": {"z_loss": 1e-4, "label_smoothing": 0.1},
    "lnf_1000": {"loss_normalizing_factor": 1000.0},
    "lnf_NUM_REAL_TARGET_TOKENS": {"loss_normalizing_factor": "NUM_REAL_TARGET_TOKENS"},
    "lnf_NUM_TOTAL_TARGET_TOKENS": {"loss_normalizing_factor": "NUM_TOTAL_TARGET_TOKENS"},
    "lnf_AVERAGE_PER_SEQUENCE": {"loss_normalizing_factor": "AVERAGE_PER_SEQUENCE"},
}
ENCDEC = "t5x_encdec_v1_1"


@pytest.mark.parametrize("folder", FAMILIES)
def test_initial_parameters_are_those_of_t5x(folder):
    numbers, _, params = golden(folder)
    params = {path: np.asarray(leaf) for path, leaf in trees.flatten(params).items()}
    assert sum(leaf.size for leaf in params.values()) == numbers["param_count"]
    assert sorted(params) == sorted(numbers["initial_parameters"])
    for path, expected in numbers["initial_parameters"].items():
        np.testing.assert_allclose(params[path].ravel()[:3], expected["first"], rtol=1e-5, err_msg=path)
        np.testing.assert_allclose(np.sqrt(np.mean(np.square(params[path]))), expected["rms"], rtol=1e-5, err_msg=path)


@functools.cache
def logits_of(folder, name="batch0"):
    _, _, params = golden(folder)
    return jax.jit(functools.partial(logits, golden_model(folder)))(params, golden_batch(folder, name))


@functools.cache
def losses_of(folder, name="batch0"):
    """Returns losses and metrics by setting, compiled as one program."""
    models = {setting: golden_model(folder, **loss) for setting, loss in LOSSES.items()}
    all_losses = jax.jit(lambda *of: {setting: model.loss_of_logits(*of) for setting, model in models.items()})
    return all_losses(logits_of(folder, name), golden_batch(folder, name))


@pytest.mark.parametrize("folder", FAMILIES)
def test_logits_are_those_of_t5x(folder):
    _, arrays, _ = golden(folder)
    np.testing.assert_allclose(logits_of(folder)[:2], arrays["logits/batch0"], atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("folder", FAMILIES)
def test_losses_are_those_of_t5x(folder, loss):
    numbers, _, _ = golden(folder)
    np.testing.assert_allclose(losses_of(folder)[loss][0], numbers["loss_batch0"][loss], rtol=1e-5)


@pytest.mark.parametrize("folder", FAMILIES)
def test_the_reported_loss_per_token_of_initial_parameters_is_about_ln_vocab(folder):
    _, metrics = losses_of(folder)["plain"]
    np.testing.assert_allclose(metrics["loss"] / metrics["weight_sum"], np.log(384), rtol=0.2)


@pytest.mark.parametrize("folder", FAMILIES)
def test_scores_are_those_of_t5x(folder, monkeypatch):
    numbers, _, params = golden(folder)
    model = golden_model(folder, z_loss=1e-4, label_smoothing=0.1)
    monkeypatch.setattr(model, "_logits", lambda *_: logits_of(folder))
    scores = jax.jit(model.score_batch)(params, golden_batch(folder, "batch0"))
    np.testing.assert_allclose(scores, numbers["score_batch0"], rtol=1e-5)


def test_packed_logits_are_those_of_t5x():
    _, arrays, _ = golden(ENCDEC)
    np.testing.assert_allclose(logits_of(ENCDEC, "packed")[:2], arrays["logits/packed"], atol=1e-4)


@pytest.mark.parametrize(("loss", "setting"), [("loss", "plain"), ("loss_avg_per_seq", "lnf_AVERAGE_PER_SEQUENCE")])
def test_packed_and_unpacked_losses_are_those_of_t5x(loss, setting):
    numbers, _, _ = golden(ENCDEC)
    packed, packed_sums = losses_of(ENCDEC, "packed")[setting]
    unpacked, unpacked_sums = losses_of(ENCDEC, "unpacked")[setting]
    np.testing.assert_allclose(packed, numbers[f"packed_{loss}"], rtol=1e-5)
    np.testing.assert_allclose(unpacked, numbers[f"unpacked_{loss}"], rtol=1e-5)
    for name in ("loss", "weight_sum", "correct", "nonpadding_tokens"):
        np.testing.assert_allclose(packed_sums[name], unpacked_sums[name], rtol=1e-5, err_msg=name)
    assert packed_sums["effective_batch_size/decoder"] == 16 == unpacked_sums["num_examples"]


def decode(decode_fn, **arguments):
    _, _, params = golden(ENCDEC)
    config = ModelConfig(preset="t5_1_1_tiny", vocab_size=384, dropout_rate=0.0)
    model = build_model(config, LossConfig(), decode_fn=decode_fn)
    predict = jax.jit(lambda params, batch: model.predict_batch_with_aux(params, batch, **arguments))
    return predict(params, golden_batch(ENCDEC, "batch0", rows=4))


# Two candidates per beam, which T5X's search with a single beam has and ours has not.
@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_decodes_what_t5x_does(beams):
    _, arrays, _ = golden(ENCDEC)
    arguments = {"num_decodes": beams, "decoder_params": {"num_candidates": 2 * beams}, "return_all_decodes": True}
    decodes, aux = decode(beam_search, **arguments)
    np.testing.assert_array_equal(decodes, arrays[f"decode/beam{beams}"])
    np.testing.assert_allclose(aux["scores"], arrays[f"decode/beam{beams}_scores"], rtol=1e-5)


def test_greedy_decodes_what_t5x_does():
    _, arrays, _ = golden(ENCDEC)
    decodes, _ = decode(temperature_sample, decoder_params={"temperature": 0.0})
    np.testing.assert_array_equal(decodes, arrays["decode/greedy"])
