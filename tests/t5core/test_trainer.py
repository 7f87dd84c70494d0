"""The trainer: micro-batches, the random stream, and state that is a function of the step alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.config.train_schema import LearningRateConfig, LossConfig
from tests.t5core import tiny

FACTORS = [None, 7.0, "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS", "AVERAGE_PER_SEQUENCE"]


def stepped(trainer, steps, *, rows=tiny.BATCH):
    state, metrics = trainer.initial_state(), []
    for step in range(steps):
        state, sums = trainer.train_step(state, tiny.batch(step, rows=rows))
        metrics.append(jax.device_get(sums))
    return jax.device_get(state), metrics


def leaves(state):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


@pytest.mark.parametrize("factor", FACTORS)
def test_microbatches_give_the_gradient_of_the_whole_batch(factor):
    loss = LossConfig(loss_normalizing_factor=factor)
    whole, whole_metrics = stepped(tiny.trainer(loss=loss, dropout_rate=0.0), 2)
    split, split_metrics = stepped(tiny.trainer(loss=loss, dropout_rate=0.0, num_microbatches=4), 2)
    for path, leaf in leaves(whole.params).items():
        np.testing.assert_allclose(leaves(split.params)[path], leaf, rtol=2e-4, atol=1e-5, err_msg=path)
    assert split_metrics[1]["nonpadding_tokens"] == whole_metrics[1]["nonpadding_tokens"]
    np.testing.assert_allclose(split_metrics[1]["objective"], whole_metrics[1]["objective"], rtol=1e-4)


def test_microbatches_must_divide_the_batch():
    with pytest.raises(errors.ConfigError, match="batch_size=4 does not divide into num_microbatches=3"):
        stepped(tiny.trainer(num_microbatches=3), 1)


def test_the_step_counts_and_the_rate_used_is_reported():
    trainer = tiny.trainer()
    state, metrics = stepped(trainer, 3)
    assert int(state.step) == 3
    rates = [float(m["learning_rate"]) for m in metrics]
    np.testing.assert_allclose(rates, [0.05] * 3, rtol=1e-6)


def test_micro_batches_do_not_enter_the_schedule():
    """Accumulation over 4 parts neither moves the peak nor leaves the decay unfinished."""
    rate = LearningRateConfig(
        factors="constant * linear_warmup * cosine_decay", base_learning_rate=1.0, warmup_steps=10, steps_per_cycle=90
    )
    trainer, rates = tiny.trainer(num_microbatches=4, learning_rate=rate), []
    state = trainer.initial_state()
    for step in (0, 9, 10, 11, 99, 100):
        state, metrics = trainer.train_step(state.replace(step=jnp.int32(step)), tiny.batch(step))
        rates.append(float(metrics["learning_rate"]))
        assert int(state.step) == step + 1, "one update, whatever the number of parts"
    np.testing.assert_allclose(rates[0], rate.min_learning_rate)
    assert np.argmax(rates) == 2
    assert rates[2] == 1.0
    assert rates[4] > rate.min_learning_rate
    np.testing.assert_allclose(rates[5], rate.min_learning_rate)


def test_dropout_follows_seed_and_step_and_nothing_else():
    trainer = tiny.trainer(dropout_rate=0.5)
    state = trainer.initial_state()
    copies = [jax.tree.map(lambda leaf: leaf.copy(), state) for _ in range(3)]
    losses = [float(trainer.train_step(copy, tiny.batch(0))[1]["loss"]) for copy in copies[:2]]
    later = copies[2].replace(step=copies[2].step + 1)
    assert losses[0] == losses[1]
    assert float(trainer.train_step(later, tiny.batch(0))[1]["loss"]) != losses[0]
    assert float(stepped(tiny.trainer(dropout_rate=0.5, seed=1), 1)[1][0]["loss"]) != losses[0]


def test_the_abstract_state_describes_the_real_one():
    trainer = tiny.trainer()
    abstract, state = leaves(trainer.abstract_state), leaves(trainer.initial_state())
    assert abstract.keys() == state.keys()
    for path, leaf in state.items():
        assert (leaf.shape, leaf.dtype) == (abstract[path].shape, abstract[path].dtype), path
        assert leaf.sharding.is_equivalent_to(abstract[path].sharding, leaf.ndim), path
