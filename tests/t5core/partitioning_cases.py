"""Cases for a mesh of eight devices; `test_partitioning.py` runs them where there are eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from t5core import errors, trees
from t5core.axis_rules import standard_logical_axis_rules
from t5core.optim.adafactor import Adafactor, AdafactorConfig
from t5core.partitioning import Partitioner

AXES = {
    "embedding": ("vocab", "embed"),
    "mlp": {"kernel": ("embed", "mlp")},
    "norm": {"scale": ("embed",)},
}
ROWS, WIDTH = 16, 8


def params():
    rng = np.random.default_rng(0)
    shapes = {"embedding": (32, WIDTH), "mlp": {"kernel": (WIDTH, 16)}, "norm": {"scale": (WIDTH,)}}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


def boxed(tree=None):
    values, axes = trees.flatten(params() if tree is None else tree), trees.flatten(AXES)
    return trees.unflatten({path: nn.LogicallyPartitioned(leaf, axes[path]) for path, leaf in values.items()})


def batch():
    return {"tokens": np.random.default_rng(1).integers(0, 32, (ROWS, 5), dtype=np.int32)}


def loss_fn(tree, rows):
    hidden = tree["embedding"][rows["tokens"]] * tree["norm"]["scale"]
    hidden = nn.with_logical_constraint(hidden @ tree["mlp"]["kernel"], ("batch", "length", "mlp"))
    return jnp.mean(jnp.tanh(hidden) ** 2)


def trained(partitioner, *, steps=2, rows=None):
    """Returns the state after some steps, its shardings, and how often the step was compiled."""
    optimizer = Adafactor(AdafactorConfig(min_dim_size_to_factor=8, beta1=0.9))
    values = params()
    opt_state = optimizer.init(values)
    shardings = partitioner.param_shardings(boxed())
    shardings = (shardings, partitioner.opt_state_shardings(opt_state, values, shardings))

    def update(state, rows, step):
        grads = jax.grad(loss_fn)(state[0], rows)
        return optimizer.apply_gradient(grads, *state, step=step, learning_rate=0.1)

    step_fn = partitioner.partition(
        update,
        in_shardings=(shardings, partitioner.data_sharding, None),
        out_shardings=shardings,
        donate_argnums=(0,),
    )
    state = jax.tree.map(
        lambda leaf, sharding: jax.make_array_from_callback(
            leaf.shape, sharding, lambda index: np.asarray(leaf)[index]
        ),
        (values, opt_state),
        shardings,
    )
    for step in range(steps):
        state = step_fn(state, partitioner.shard_batch(batch() if rows is None else rows), jnp.int32(step))
    return state, shardings, step_fn._cache_size()


def test_partitions_are_honoured_on_cpu():
    for partitions in (1, 2, 4, 8):
        assert dict(Partitioner(partitions).mesh.shape) == {"data": 8 // partitions, "model": partitions}


@pytest.mark.parametrize("partitions", [2, 8])
def test_any_mesh_trains_what_one_device_trains(partitions):
    (expected, _), _, _ = trained(Partitioner(devices=jax.devices()[:1]))
    partitioner = Partitioner(partitions, logical_axis_rules=standard_logical_axis_rules(parameter_partitioning_dims=2))
    (found, _), _, _ = trained(partitioner)
    for path, leaf in trees.flatten(expected).items():
        np.testing.assert_allclose(trees.flatten(found)[path], leaf, rtol=1e-5, atol=1e-6)


def test_the_state_stays_where_it_is_and_the_step_compiles_once():
    state, shardings, compilations = trained(Partitioner(2))
    assert compilations == 1
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding == sharding


@pytest.mark.parametrize(
    ("dims", "kernel", "scale", "embedding"),
    [
        ((1, 1), (None, "model"), (None,), ("model", None)),
        ((2, 1), (None, "model"), ("model",), ("model", None)),
        ((1, 2), ("data", "model"), ("data",), ("model", "data")),
        ((2, 2), ("data", "model"), ("model",), ("model", "data")),
    ],
)
def test_parameters_follow_the_standard_rules(dims, kernel, scale, embedding):
    rules = standard_logical_axis_rules(activation_partitioning_dims=dims[0], parameter_partitioning_dims=dims[1])
    shardings = Partitioner(2, logical_axis_rules=rules).param_shardings(boxed())
    assert shardings["mlp"]["kernel"].spec == PartitionSpec(*kernel)
    assert shardings["norm"]["scale"].spec == PartitionSpec(*scale)
    assert shardings["embedding"].spec == PartitionSpec(*embedding)


def test_adafactor_state_lies_as_its_parameter_where_it_has_its_shape():
    partitioner = Partitioner(2)
    optimizer = Adafactor(AdafactorConfig(min_dim_size_to_factor=8, beta1=0.9))
    shardings = partitioner.param_shardings(boxed())
    slots = partitioner.opt_state_shardings(optimizer.init(params()), params(), shardings)["param_states"]
    kernel = {name: sharding.spec for name, sharding in slots["mlp"]["kernel"].items()}
    whole = PartitionSpec()
    assert kernel == {"v_row": whole, "v_col": whole, "v": whole, "m": PartitionSpec(None, "model")}
    assert slots["norm"]["scale"]["v"] == shardings["norm"]["scale"]


def test_batches_are_split_over_the_data_shards():
    partitioner = Partitioner(2)
    rows = batch()
    tokens = partitioner.shard_batch(rows)["tokens"]
    np.testing.assert_array_equal(tokens, rows["tokens"])
    assert {shard.data.shape for shard in tokens.addressable_shards} == {(4, 5)}
    assert partitioner.process_rows(ROWS) == slice(0, 16)


def test_logical_constraints_inside_the_step_have_effect():
    partitioner = Partitioner(2)
    hidden = partitioner.partition(
        lambda x: nn.with_logical_constraint(2 * x, ("batch", "mlp")),
        in_shardings=partitioner.data_sharding,
        out_shardings=None,
    )(partitioner.shard_batch({"x": np.ones((8, 8))})["x"])
    assert hidden.sharding.spec == PartitionSpec("data", "model")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: Partitioner(3), "num_partitions=3 does not divide the 8 devices; use 1, 2, 4, 8"),
        (lambda: Partitioner(0), "num_partitions=0 does not divide the 8 devices; use 1, 2, 4, 8"),
        (
            lambda: Partitioner(2).check_batch_size(6),
            "batch_size=6 does not divide by 4 data shards (8 devices / 2 partitions); use 4 or 8",
        ),
        (
            lambda: Partitioner(2).check_batch_size(8, num_microbatches=4),
            "batch_size=8 does not divide by 4 data shards (8 devices / 2 partitions) times 4 micro-batches; use 16",
        ),
        (
            lambda: Partitioner().shard_batch({"tokens": np.zeros((6, 5))}),
            "batch_size=6 does not divide by 8 data shards (8 devices / 1 partitions); use 8",
        ),
        (
            lambda: Partitioner(4).param_shardings(
                {"bias": nn.LogicallyPartitioned(jnp.ones((6, 32)), ("heads", None))}
            ),
            "parameter bias: axis 'heads' of 6 does not divide by num_partitions=4; choose a divisor of 6, "
            "or a rule that leaves 'heads' whole",
        ),
    ],
)
def test_what_does_not_fit_the_mesh_is_refused(action, message):
    with pytest.raises(errors.ConfigError) as raised:
        action()
    assert str(raised.value) == message
