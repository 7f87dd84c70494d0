import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors, trees
from t5core.config.train_schema import OptimizerConfig
from t5core.optim.adafactor import Adafactor, AdafactorConfig
from t5core.optim.build import build_optimizer


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def steps_of(optimizer, params, grads, *, rate=0.1):
    """Returns parameters and state after one step for each gradient."""
    state = optimizer.init(params)
    for step, grad in enumerate(grads):
        params, state = optimizer.apply_gradient(grad, params, state, step=step, learning_rate=rate)
    return params, state


def small(**options):
    return Adafactor(AdafactorConfig(**{"min_dim_size_to_factor": 4, **options}))


def reference(param, grads, *, rate, factored):
    """Algorithms 4 and 5 of the paper in float64, for one parameter."""
    param = np.asarray(param, np.float64)
    rows = columns = whole = 0.0
    for t, grad in enumerate(np.asarray(grads, np.float64), start=1):
        b2 = 1 - t**-0.8
        squared = grad**2 + 1e-30
        if factored:
            rows = b2 * rows + (1 - b2) * squared.sum(1, keepdims=True)
            columns = b2 * columns + (1 - b2) * squared.sum(0, keepdims=True)
            second_moment = rows * columns / rows.sum()
        else:
            second_moment = whole = b2 * whole + (1 - b2) * squared
        update = grad / np.sqrt(second_moment)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        param = param - rate * max(1e-3, np.sqrt(np.mean(param**2))) * update
    return param


@pytest.mark.parametrize("shape", [(6, 5), (3, 8), (7,)], ids=["factored", "one side too small", "vector"])
def test_updates_are_those_of_the_paper(shape):
    param = normal(0, *shape)
    grads = [normal(1 + i, *shape) for i in range(4)]
    params, _ = steps_of(small(), {"kernel": param}, [{"kernel": grad} for grad in grads])
    expected = reference(param, grads, rate=0.1, factored=shape == (6, 5))
    np.testing.assert_allclose(params["kernel"], expected, rtol=2e-5, atol=1e-6)


def test_the_size_of_the_gradient_does_not_matter():
    params = {"kernel": normal(0, 8, 8), "scale": normal(1, 8)}
    grads = [{"kernel": normal(2 + i, 8, 8), "scale": normal(5 + i, 8)} for i in range(3)]
    larger = jax.tree.map(lambda grad: 1e4 * grad, grads)
    plain, _ = steps_of(small(), params, grads)
    scaled, _ = steps_of(small(), params, larger)
    for path, leaf in trees.flatten(plain).items():
        np.testing.assert_allclose(trees.flatten(scaled)[path], leaf, rtol=1e-4)


def test_no_step_is_longer_than_the_rate_times_the_parameter():
    params = {"kernel": normal(0, 8, 8)}
    for factor in (1.0, 1e6):
        grads = [{"kernel": normal(1, 8, 8)}, {"kernel": factor * normal(2, 8, 8)}]
        before, _ = steps_of(small(), params, grads[:1])
        after, _ = steps_of(small(), params, grads)
        length = np.sqrt(np.mean((after["kernel"] - before["kernel"]) ** 2))
        assert length <= 0.1 * np.sqrt(np.mean(before["kernel"] ** 2)) * 1.0001


def test_state_has_the_shapes_and_dtypes_of_t5x():
    optimizer = Adafactor(AdafactorConfig(beta1=0.9, dtype_momentum="bfloat16"))
    state = optimizer.init({"mlp": {"kernel": jnp.ones((128, 256))}, "small": jnp.ones((64, 256)), "b": jnp.ones(300)})
    found = {path: (leaf.shape, leaf.dtype.name) for path, leaf in trees.flatten(state).items()}
    dummy = ((1,), "float32")
    assert found == {
        "param_states/mlp/kernel/v_row": ((128,), "float32"),
        "param_states/mlp/kernel/v_col": ((256,), "float32"),
        "param_states/mlp/kernel/v": dummy,
        "param_states/mlp/kernel/m": ((128, 256), "bfloat16"),
        "param_states/small/v_row": dummy,
        "param_states/small/v_col": dummy,
        "param_states/small/v": ((64, 256), "float32"),
        "param_states/small/m": ((64, 256), "bfloat16"),
        "param_states/b/v_row": dummy,
        "param_states/b/v_col": dummy,
        "param_states/b/v": ((300,), "float32"),
        "param_states/b/m": ((300,), "bfloat16"),
    }


def test_state_keeps_its_structure_and_types_over_a_jitted_step():
    optimizer = small(beta1=0.5, dtype_momentum="bfloat16")
    params = {"kernel": normal(0, 8, 8).astype(jnp.bfloat16), "scale": normal(1, 8)}
    state = optimizer.init(params)
    new = jax.jit(optimizer.apply_gradient)(params, params, state, step=0, learning_rate=0.1)
    assert jax.tree.structure(new) == jax.tree.structure((params, state))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(
        lambda x: (x.shape, x.dtype), (params, state)
    )


def test_fused_heads_are_one_column():
    flat = {"kernel": normal(0, 6, 8)}
    cube = {"kernel": flat["kernel"].reshape(6, 2, 4)}
    grads = [{"kernel": normal(1 + i, 6, 8)} for i in range(3)]
    by_axes = Adafactor(param_axes={"kernel": ("embed", "heads", "kv")})
    expected, expected_state = steps_of(small(), flat, grads)
    found, state = steps_of(by_axes, cube, [{"kernel": grad["kernel"].reshape(6, 2, 4)} for grad in grads])
    np.testing.assert_allclose(found["kernel"].reshape(6, 8), expected["kernel"], rtol=1e-5)
    slots, expected_slots = state["param_states"]["kernel"], expected_state["param_states"]["kernel"]
    np.testing.assert_allclose(slots["v_row"], expected_slots["v_row"], rtol=1e-6)
    np.testing.assert_allclose(slots["v_col"].reshape(8), expected_slots["v_col"], rtol=1e-6)


def test_stacked_layers_are_updated_as_if_apart():
    sizes = (0.01, 1.0, 30.0)
    layers = [{"kernel": size * normal(i, 5, 6), "scale": size * normal(i, 5)} for i, size in enumerate(sizes)]
    grads = [[{"kernel": normal(10 * i + j, 5, 6), "scale": normal(j, 5)} for j in range(3)] for i in range(3)]
    stacked = Adafactor(param_axes={"kernel": ("embed", "layers", "mlp"), "scale": ("embed", "layers")})

    def stack(parts):
        return {name: jnp.stack([part[name] for part in parts], axis=1) for name in parts[0]}

    found, _ = steps_of(stacked, stack(layers), [stack(part) for part in zip(*grads, strict=True)])
    apart = stack([steps_of(small(), layer, grad)[0] for layer, grad in zip(layers, grads, strict=True)])
    for name, leaf in apart.items():
        np.testing.assert_allclose(found[name], leaf, rtol=2e-5)


def test_parameters_of_two_dimensions_go_by_size_whatever_their_axes():
    params = {"wide": jnp.ones((128, 256)), "bias": jnp.ones((4, 32))}
    axes = {"wide": ("relpos_buckets", "abspos_buckets"), "bias": ("embed", "mlp")}
    state = Adafactor(param_axes=axes).init(params)["param_states"]
    assert state["wide"]["v_row"].shape == (128,)
    assert state["bias"]["v"].shape == (4, 32)


def test_axes_without_rows_or_columns_are_not_factored():
    axes = {"table": ("layers", "heads", "relpos_buckets")}
    state = Adafactor(param_axes=axes).init({"table": jnp.ones((2, 256, 256))})["param_states"]
    assert state["table"]["v"].shape == (2, 256, 256)


def test_momentum_is_an_average_of_the_updates():
    params = {"kernel": normal(0, 8, 8)}
    grads = [{"kernel": normal(1, 8, 8)}]
    plain, _ = steps_of(small(), params, grads)
    slow, state = steps_of(small(beta1=0.75), params, grads)
    update = params["kernel"] - plain["kernel"]
    np.testing.assert_allclose(params["kernel"] - slow["kernel"], 0.25 * update, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(state["param_states"]["kernel"]["m"], 0.25 * update, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "rate", "kept"),
    [
        ({"weight_decay_rate": 0.25}, 0.1, 0.75),
        ({"weight_decay_rate": 0.25}, 0.5, 0.75),
        ({"weight_decay_rate_lr_exponent": 2.0}, 0.5, 0.75),
        ({"weight_decay_rate": 0.5, "weight_decay_rate_lr_exponent": 1.0}, 0.5, 0.75),
    ],
)
def test_weight_decay_shrinks_parameters_beside_the_update(options, rate, kept):
    params = {"kernel": normal(0, 8, 8)}
    grads = [{"kernel": normal(1, 8, 8)}]
    plain, _ = steps_of(small(), params, grads, rate=rate)
    decayed, _ = steps_of(small(**options), params, grads, rate=rate)
    update = params["kernel"] - plain["kernel"]
    np.testing.assert_allclose(decayed["kernel"], kept * params["kernel"] - update, rtol=1e-5, atol=1e-6)


def test_parameter_scale_stays_within_its_bounds():
    grads = [{"kernel": normal(1, 8, 8)}]
    sizes = {}
    for size in (1e-9, 1.0, 100.0):
        params = {"kernel": jnp.full((8, 8), size)}
        after, _ = steps_of(small(epsilon2=0.01, max_parameter_scale=10.0, clipping_threshold=None), params, grads)
        sizes[size] = np.sqrt(np.mean((after["kernel"] - params["kernel"]) ** 2))
    np.testing.assert_allclose(sizes[1e-9] / sizes[1.0], 0.01, rtol=1e-3)
    np.testing.assert_allclose(sizes[100.0] / sizes[1.0], 10.0, rtol=1e-3)
    absolute, _ = steps_of(small(multiply_by_parameter_scale=False, clipping_threshold=None), params, grads)
    np.testing.assert_allclose(np.sqrt(np.mean((absolute["kernel"] - params["kernel"]) ** 2)), sizes[1.0], rtol=1e-3)


def test_nan_leaves_what_it_meets_alone():
    params = {"kernel": normal(0, 3), "scale": normal(1, 3)}
    bad = {"kernel": jnp.array([1.0, np.nan, 1.0]), "scale": normal(2, 3)}
    optimizer = small(skip_nan_updates=True)
    state = optimizer.init(params)
    new_params, new_state = optimizer.apply_gradient(bad, params, state, step=0, learning_rate=0.1)
    # The clipping sees the NaN, so that the whole vector stays; its statistics stay where they are NaN.
    np.testing.assert_array_equal(new_params["kernel"], params["kernel"])
    np.testing.assert_array_equal(new_state["param_states"]["kernel"]["v"], [1.0, 0.0, 1.0])
    assert np.all(new_params["scale"] != params["scale"])


def test_step_offset_starts_the_statistics_afresh():
    params = {"kernel": normal(0, 8, 8)}
    state = small().init(params)
    aged = jax.tree.map(lambda leaf: leaf + 1e6, state)
    results = {}
    for step in (0, 99, 100):
        optimizer = small(step_offset=100)
        results[step], _ = optimizer.apply_gradient(params, params, aged, step=step, learning_rate=0.1)
        assert np.all(np.isfinite(results[step]["kernel"]))
    plain, _ = small().apply_gradient(params, params, state, step=0, learning_rate=0.1)
    np.testing.assert_allclose(results[100]["kernel"], plain["kernel"], rtol=1e-6)
    np.testing.assert_allclose(results[0]["kernel"], plain["kernel"], rtol=1e-6)


def test_global_norm_clipping_bounds_what_the_statistics_see():
    params = {"a": normal(0, 3), "b": normal(1, 4)}
    grads = {"a": jnp.full(3, 3.0), "b": jnp.full(4, 4.0)}
    norm = np.sqrt(3 * 9 + 4 * 16)
    for threshold, factor in ((1.0, 1 / norm), (100.0, 1.0)):
        _, state = steps_of(small(global_norm_clip_threshold=threshold), params, [grads])
        for name, grad in grads.items():
            np.testing.assert_allclose(state["param_states"][name]["v"], (factor * grad) ** 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta_1": 0.9}, "optimizer 'adafactor': unknown key 'beta_1' (value 0.9); did you mean 'beta1'?"),
        (
            {"factored": False, "min_dim_size_to_factor": 64},
            "optimizer 'adafactor': min_dim_size_to_factor=64 has no effect because factored is false; "
            "remove one of the two",
        ),
        (
            {"multiply_by_parameter_scale": False, "epsilon2": 0.1},
            "optimizer 'adafactor': epsilon2=0.1 has no effect because multiply_by_parameter_scale is false; "
            "remove one of the two",
        ),
        (
            {"dtype_momentum": "bfloat16"},
            "optimizer 'adafactor': dtype_momentum='bfloat16' has no effect because beta1 is not set; "
            "remove one of the two",
        ),
        (
            {"max_parameter_scale": 1e-4},
            "optimizer 'adafactor': max_parameter_scale=0.0001 is below the smallest scale, epsilon2=0.001; raise it",
        ),
    ],
)
def test_contradictory_options_are_refused(arguments, message):
    with pytest.raises(errors.ConfigError) as raised:
        build_optimizer(OptimizerConfig(arguments=arguments))
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (None, "parameter kernel of shape (4, 2, 4) has no logical axes, which Adafactor needs above rank 2; "),
        (("embed", "heads"), "parameter kernel of shape (4, 2, 4) has 2 axis names; give 3"),
        (("embed", "head", "kv"), "parameter kernel: unknown axis for a factor rule 'head'; did you mean 'heads'? "),
        (
            ("embed", "mlp", "relpos_buckets"),
            "parameter kernel: axes ('embed', 'mlp', 'relpos_buckets') mix rows and columns with an axis that is "
            "neither; make that axis a row, a column or a batch",
        ),
    ],
)
def test_parameters_that_cannot_be_factored_are_named(axes, message):
    optimizer = Adafactor(param_axes=None if axes is None else {"kernel": axes})
    with pytest.raises(errors.ConfigError) as raised:
        optimizer.init({"kernel": jnp.ones((4, 2, 4))})
    assert str(raised.value).startswith(message)
