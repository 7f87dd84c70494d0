import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors, trees
from t5core.optim.adafactor import Adafactor, AdafactorConfig
from t5core.optim.multi import MultiOptimizer, ParameterGroup
from t5core.optim.optax_wrapper import optax_optimizer

PARAMS = {
    "encoder": {"kernel": jnp.full((3, 2), 0.5), "scale": jnp.ones(3)},
    "decoder": {"kernel": jnp.full((2, 3), -0.5), "encoder_attention": jnp.ones(2)},
}
GRADS = jax.tree.map(lambda leaf: 0.1 * leaf + 0.3, PARAMS)


def sgd():
    return optax_optimizer("sgd", {})


def group(pattern, optimizer):
    return ParameterGroup(pattern=pattern, optimizer=optimizer)


def one_step(optimizer, *, rate=0.5):
    return optimizer.apply_gradient(GRADS, PARAMS, optimizer.init(PARAMS), step=0, learning_rate=rate)


def test_each_group_is_updated_by_its_own_optimizer_and_the_rest_is_frozen():
    optimizer = MultiOptimizer([group("encoder/kernel", sgd()), group("decoder/.*", optax_optimizer("sign_sgd", {}))])
    params, _ = one_step(optimizer)
    np.testing.assert_allclose(
        params["encoder"]["kernel"], PARAMS["encoder"]["kernel"] - 0.5 * GRADS["encoder"]["kernel"]
    )
    np.testing.assert_allclose(params["decoder"]["kernel"], PARAMS["decoder"]["kernel"] - 0.5)
    np.testing.assert_array_equal(params["encoder"]["scale"], PARAMS["encoder"]["scale"])


def test_patterns_match_whole_paths():
    params, _ = one_step(MultiOptimizer([group("encoder.*", sgd())]))
    np.testing.assert_array_equal(params["decoder"]["encoder_attention"], PARAMS["decoder"]["encoder_attention"])


def test_frozen_parameters_have_no_state_and_the_state_is_that_of_the_optimizer():
    optimizer = MultiOptimizer([group(None, Adafactor())], frozen=["encoder/.*"])
    state = optimizer.init(PARAMS)
    assert trees.flatten(state).keys() == trees.flatten(Adafactor().init({"decoder": PARAMS["decoder"]})).keys()
    params, new_state = one_step(optimizer)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    np.testing.assert_array_equal(params["encoder"]["kernel"], PARAMS["encoder"]["kernel"])
    assert not np.array_equal(params["decoder"]["kernel"], PARAMS["decoder"]["kernel"])


def test_adafactor_groups_share_the_tree_of_a_single_adafactor():
    decaying = Adafactor(AdafactorConfig(weight_decay_rate=0.1))
    optimizer = MultiOptimizer([group(".*kernel", decaying), group(None, Adafactor())])
    params, state = one_step(optimizer)
    assert jax.tree.structure(state) == jax.tree.structure(Adafactor().init(PARAMS))
    plain, _ = one_step(Adafactor())
    np.testing.assert_array_equal(params["encoder"]["scale"], plain["encoder"]["scale"])
    decayed = plain["encoder"]["kernel"] - 0.1 * PARAMS["encoder"]["kernel"]
    np.testing.assert_allclose(params["encoder"]["kernel"], decayed, rtol=1e-6)


def test_optax_groups_keep_their_state_apart():
    optimizer = MultiOptimizer(
        [
            group("encoder/.*", optax_optimizer("adam", {})),
            group("decoder/kernel", optax_optimizer("lion", {})),
            group(None, Adafactor()),
        ]
    )
    state = optimizer.init(PARAMS)
    step = jax.jit(optimizer.apply_gradient)
    params = PARAMS
    for i in range(2):
        params, state = step(GRADS, params, state, step=i, learning_rate=0.1)
    flat = trees.flatten(state)
    assert flat["groups/0/param_states/0/count"] == 2
    assert flat["groups/1/param_states/0/mu/decoder/kernel"].shape == (2, 3)
    assert flat["param_states/decoder/encoder_attention/v"].shape == (2,)
    alone = optax_optimizer("adam", {})
    expected, alone_state = {"encoder": PARAMS["encoder"]}, alone.init({"encoder": PARAMS["encoder"]})
    for i in range(2):
        expected, alone_state = alone.apply_gradient(
            {"encoder": GRADS["encoder"]}, expected, alone_state, step=i, learning_rate=0.1
        )
    np.testing.assert_allclose(params["encoder"]["kernel"], expected["encoder"]["kernel"], rtol=1e-6)


def test_clipping_counts_only_what_is_trained():
    optimizer = MultiOptimizer([group("decoder/.*", sgd())], clip_global_norm=0.25)
    params, _ = one_step(optimizer, rate=1.0)
    step = {path: leaf - trees.flatten(PARAMS)[path] for path, leaf in trees.flatten(params).items()}
    length = np.sqrt(sum(np.sum(leaf**2) for leaf in step.values()))
    np.testing.assert_allclose(length, 0.25, rtol=1e-5)


@pytest.mark.parametrize(
    ("groups", "frozen", "message"),
    [
        (
            ["encoder/.*", ".*/kernel"],
            [],
            "optimizer patterns 'encoder/.*' and '.*/kernel' both match parameter encoder/kernel; make them disjoint",
        ),
        (
            ["encoder/.*"],
            ["encoder/scale"],
            "optimizer patterns 'encoder/.*' and 'encoder/scale' both match parameter encoder/scale; ",
        ),
        (
            ["decodr/kernel"],
            [],
            "optimizer pattern 'decodr/kernel' matches no parameter; "
            "a pattern matches a whole path, such as 'decoder/kernel'",
        ),
        ([None], [".*"], "every parameter is frozen; leave at least one to an optimizer"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, frozen, message):
    optimizer = MultiOptimizer([group(pattern, sgd()) for pattern in groups], frozen=frozen)
    with pytest.raises(errors.ConfigError) as raised:
        optimizer.init(PARAMS)
    assert str(raised.value).startswith(message)


def test_a_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(errors.ConfigError) as raised:
        MultiOptimizer([group("encoder/(", sgd())])
    assert str(raised.value).startswith("optimizer pattern 'encoder/(' is no regular expression: ")
