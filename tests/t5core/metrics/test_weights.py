"""Metrics of weights: those of the definition, and training does not notice."""

import functools

import jax
import numpy as np

from t5core import trees
from t5core.loop import StepMetrics
from t5core.metrics.weights import WeightMetricsComputer, averaged
from tests.t5core import tiny

PER_PARAMETER = (
    "weight_rms",
    "weight_gradient_rms",
    "weight_update_rms",
    "weight_update_divided_by_weight_rms",
    "weight_max",
)


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


def test_the_figures_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    old, new, gradients = (
        {"layer": {"kernel": rng.normal(size=(3, 4)).astype(np.float32)}, "scale": np.float32([1.0, -3.0])}
        for _ in range(3)
    )
    new["scale"] = np.float32([2.0, -6.0])
    found = jax.jit(WeightMetricsComputer().compute_metrics)(gradients, old, new)
    expected = {"weight_gradient_norm": np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients)))}
    for path, weight in trees.flatten(new).items():
        before, gradient = trees.flatten(old)[path], trees.flatten(gradients)[path]
        values = rms(weight), rms(gradient), rms(weight - before), rms((weight - before) / before), abs(weight).max()
        expected |= {f"{name}/{path}": value for name, value in zip(PER_PARAMETER, values, strict=True)}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_weights_of_zero_do_not_make_a_figure_infinite():
    old, new = {"scale": np.float32([0.0, 2.0])}, {"scale": np.float32([1.0, 3.0])}
    found = WeightMetricsComputer().compute_metrics(old, old, new)
    np.testing.assert_allclose(found["weight_update_divided_by_weight_rms/scale"], rms([0.0, 0.5]), rtol=1e-6)


@functools.cache
def stepped(*, watched):
    """Returns the state after three steps, bit for bit, and the metrics of each."""
    trainer = tiny.trainer(weight_metrics_computer=WeightMetricsComputer() if watched else None)
    state, metrics = trainer.initial_state(), []
    for step in range(3):
        state, sums = trainer.train_step(state, tiny.batch(step))
        metrics.append(jax.device_get(sums))
    return jax.device_get(state), metrics


def test_training_ends_in_the_same_bits_with_them_and_without():
    (state, metrics), (alone, plain) = stepped(watched=True), stepped(watched=False)
    jax.tree.map(np.testing.assert_array_equal, state, alone)
    assert averaged(plain) == {}
    added = metrics[0].keys() - plain[0].keys()
    paths = trees.flatten(state.params)
    assert added == {"weight_gradient_norm", *(f"{name}/{path}" for name in PER_PARAMETER for path in paths)}
    for name in plain[0]:
        assert [step[name] for step in metrics] == [step[name] for step in plain], name
    for path, weight in paths.items():
        np.testing.assert_allclose(metrics[-1][f"weight_rms/{path}"], rms(weight), rtol=1e-6, err_msg=path)


def test_a_line_of_metrics_has_their_mean_over_its_steps():
    state, metrics = stepped(watched=True)
    figures = StepMetrics(first=0, last=3, sums=metrics, seconds=1.0, state=state).figures()
    for name in ("weight_gradient_norm", "weight_update_rms/decoder/logits_dense/kernel"):
        np.testing.assert_allclose(figures[name], np.mean([step[name] for step in metrics]), rtol=1e-6)
    assert "weight_sum" not in figures, "which counts tokens"
