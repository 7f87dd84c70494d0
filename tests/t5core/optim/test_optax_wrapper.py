import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import Literal

from t5core import errors, trees
from t5core.optim.optax_wrapper import OptaxOptimizer, optax_optimizer, optimizer_names

PARAMS = {"mlp": {"kernel": 0.5 + jnp.eye(4)}, "norm": {"scale": jnp.ones(4)}}
GRADS = {"mlp": {"kernel": 0.1 + 0.2 * jnp.eye(4)}, "norm": {"scale": jnp.full(4, 0.3)}}


def depends_on_its_argument(function, argument):
    """Tells whether any output is computed from the argument, by following it through the traced program."""
    program = jax.make_jaxpr(function)(argument).jaxpr
    reached = set(program.invars)
    for equation in program.eqns:
        if reached.intersection(v for v in equation.invars if not isinstance(v, Literal)):
            reached.update(equation.outvars)
    return bool(reached.intersection(v for v in program.outvars if not isinstance(v, Literal)))


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_uses_the_rate_it_is_given(name):
    optimizer = optax_optimizer(name, {})

    def second_update(rate):
        state = optimizer.init(PARAMS)
        _, state = optimizer.apply_gradient(GRADS, PARAMS, state, step=0, learning_rate=0.1)
        params, _ = optimizer.apply_gradient(GRADS, PARAMS, state, step=1, learning_rate=rate)
        return params["mlp"]["kernel"]

    assert depends_on_its_argument(second_update, 0.1)


def test_the_well_known_ones_are_there():
    assert {"adam", "adamw", "lion", "sgd", "muon", "lamb", "rmsprop"} <= set(optimizer_names())


def test_updates_are_those_of_optax_with_the_same_schedule():
    rates = [0.3, 0.01, 0.2]
    ours = optax_optimizer("adamw", {"weight_decay": 0.1, "b1": 0.8})
    theirs = optax.adamw(lambda count: jnp.asarray(rates)[count], weight_decay=0.1, b1=0.8)
    params, state = PARAMS, ours.init(PARAMS)
    expected, expected_state = PARAMS, theirs.init(PARAMS)
    step = jax.jit(ours.apply_gradient)
    for i, rate in enumerate(rates):
        params, state = step(GRADS, params, state, step=i, learning_rate=rate)
        updates, expected_state = theirs.update(GRADS, expected_state, expected)
        expected = optax.apply_updates(expected, updates)
    for path, leaf in trees.flatten(expected).items():
        np.testing.assert_allclose(trees.flatten(params)[path], leaf, rtol=1e-5)


def test_state_is_nested_dicts_of_arrays_with_optax_names():
    state = optax_optimizer("adamw", {}).init(PARAMS)
    assert sorted(trees.flatten(state)) == [
        "param_states/0/count",
        "param_states/0/mu/mlp/kernel",
        "param_states/0/mu/norm/scale",
        "param_states/0/nu/mlp/kernel",
        "param_states/0/nu/norm/scale",
    ]


def test_an_optimizer_without_state_has_none():
    optimizer = optax_optimizer("sgd", {})
    state = optimizer.init(PARAMS)
    params, state = optimizer.apply_gradient(GRADS, PARAMS, state, step=0, learning_rate=0.5)
    assert jax.tree.leaves(state) == []
    np.testing.assert_allclose(params["norm"]["scale"], 1.0 - 0.5 * 0.3)


def test_a_chain_of_ones_own_works():
    optimizer = OptaxOptimizer(lambda rate: optax.chain(optax.clip(0.1), optax.sgd(rate, momentum=0.9)))
    params, _ = optimizer.apply_gradient(GRADS, PARAMS, optimizer.init(PARAMS), step=0, learning_rate=1.0)
    np.testing.assert_allclose(params["norm"]["scale"], 0.9, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adamv", {}, "unknown optimizer 'adamv'; did you mean 'adam"),
        ("adafactr", {}, "unknown optimizer 'adafactr'; did you mean 'adafactor'? "),
        ("adamw", {"weigth_decay": 0.1}, "unknown adamw argument 'weigth_decay'; did you mean 'weight_decay'? "),
        (
            "adamw",
            {"learning_rate": 0.1},
            "optimizer 'adamw': learning_rate is the schedule's; set train.learning_rate",
        ),
        ("adamw", {"b1": "high"}, "optimizer 'adamw' refuses the arguments {'b1': 'high'}: "),
        ("lbfgs", {}, "optimizer 'lbfgs' cannot be used: it wants the value of the loss at each update; choose "),
        ("rprop", {}, "optimizer 'rprop' cannot be used: it does not use the learning rate of the schedule; choose "),
        ("schedule_free_sgd", {}, "optimizer 'schedule_free_sgd' cannot be used: it evaluates other weights than "),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(name, arguments, message):
    with pytest.raises(errors.ConfigError) as raised:
        optax_optimizer(name, arguments)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
