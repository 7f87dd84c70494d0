import json
import os
import pathlib
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from t5core import errors, trees
from t5core.axis_rules import standard_logical_axis_rules
from t5core.partitioning import Partitioner
from tests.t5core import partitioning_cases as cases

ROOT = pathlib.Path(__file__).parents[2]


def environment(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def test_cases_of_eight_devices():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/t5core/partitioning_cases.py"]
    run = subprocess.run(command, cwd=ROOT, env=environment(8), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:]


def test_two_processes_read_their_rows_and_train_as_one():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tests.t5core.two_process_training", port]
    processes = [
        subprocess.Popen([*command, str(i)], cwd=ROOT, env=environment(4), stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        results = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [result["rows"] for result in results] == [[0, 8], [8, 16]]
    # Both processes hold parts of the only copy of the model, so both read the whole batch.
    assert [result["rows_of_a_shared_copy"] for result in results] == [[0, 16], [0, 16]]
    assert results[0]["shape_of_a_shared_copy"] == [16, 5]
    (values, _), _, _ = cases.trained(Partitioner())
    for path, leaf in trees.flatten(values).items():
        for result in results:
            np.testing.assert_allclose(result["totals"][path], np.sum(leaf**2), rtol=1e-5)


def test_one_device_needs_no_settings():
    partitioner = Partitioner()
    assert partitioner.num_data_shards == partitioner.mesh.size
    tokens = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(partitioner.shard_batch({"tokens": tokens})["tokens"], tokens)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scale": jnp.ones(3)}, "parameter scale has no axis names (it is a ArrayImpl); create it with nn.with_logic"),
        (
            {"mlp": {"kernel": nn.LogicallyPartitioned(jnp.ones((2, 2)), ("embd", "mlp"))}},
            "parameter mlp/kernel: unknown logical axis 'embd'; did you mean 'embed'? known: ",
        ),
    ],
)
def test_parameters_without_a_place_are_named(params, message):
    with pytest.raises(errors.ConfigError) as raised:
        Partitioner().param_shardings(params)
    assert str(raised.value).startswith(message)


def test_additional_rules_come_last():
    rules = standard_logical_axis_rules(additional_rules=[("experts", "data"), ("mlp", "data")])
    axes = {"kernel": ("embed", "mlp"), "moe": ("experts", "embed")}
    shardings = Partitioner(logical_axis_rules=rules).param_shardings(axes)
    assert shardings["kernel"].spec == PartitionSpec(None, "model")
    assert shardings["moe"].spec == PartitionSpec("data", None)


def test_a_layout_that_does_not_exist_is_refused():
    with pytest.raises(errors.ConfigError) as raised:
        standard_logical_axis_rules(parameter_partitioning_dims=3)
    assert str(raised.value) == (
        "activation_partitioning_dims=1, parameter_partitioning_dims=3 is no layout; give 1 or 2 for each"
    )
