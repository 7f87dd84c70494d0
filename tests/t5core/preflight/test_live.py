"""Memory of a traced computation: bounds that hold by construction, and what a compiler reserves between them."""

import jax
import jax.numpy as jnp
import pytest

from t5core import build
from t5core.preflight import live, model
from tests.t5core.preflight import runs

MATRIX = jnp.zeros((64, 64), jnp.float32)
BYTES = MATRIX.nbytes


def bounds(function, *arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return live.stored_low(jaxpr), live.stored_high(jaxpr)


def test_products_are_stored_and_what_is_made_of_them_in_passing_is_not():
    assert bounds(lambda x: jnp.exp(x @ x) + 1.0, MATRIX) == (BYTES, 2 * BYTES)


def test_a_value_is_freed_after_its_last_use():
    def chain(x):
        for _ in range(5):
            x = x @ MATRIX
        return x

    assert bounds(chain, MATRIX) == (2 * BYTES, 2 * BYTES)


def test_what_an_elementwise_value_is_made_from_lives_as_long_as_it():
    def late(x):
        kept = jnp.exp(x @ x)
        return (x @ x @ x @ x) * kept

    low, high = bounds(late, MATRIX)
    assert low == 3 * BYTES
    assert high >= low


def test_a_loop_counts_once_and_what_it_stacks_in_full():
    def loop(x):
        return jax.lax.scan(lambda carry, _: (carry @ x, carry), x, None, length=7)[1]

    low, _ = bounds(loop, MATRIX)
    assert 8 * BYTES <= low <= 10 * BYTES


@pytest.mark.parametrize("override", ["model.dropout_rate=0.0", "train.num_microbatches=2"])
def test_the_compiled_step_lies_between_the_bounds(tmp_path, override):
    run = runs.run_in(tmp_path, "train.batch_size=8", override)
    figures = model.model_figures(run.config, rows=run.config.train.batch_size)
    trainer = build.make_trainer(run.config, seed=0)
    batch = model.zero_batch(run.config, rows=run.config.train.batch_size)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    reserved = trainer.trace_train_step(shapes).lower().compile().memory_analysis().temp_size_in_bytes
    assert 0.8 * figures.step_bytes_low <= reserved <= 1.25 * figures.step_bytes_high
