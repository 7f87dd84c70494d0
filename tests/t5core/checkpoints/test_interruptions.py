"""Checkpoints of processes that are killed, and of several processes and devices."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from t5core.checkpoints import digest, index
from t5core.checkpoints.store import CheckpointStore
from tests.t5core.checkpoints.states import PROVENANCE, abstract, damage, restore, state_at

SAVES_FOR_EVER = """
import os, sys
import jax, jax.numpy as jnp
from t5core.checkpoints.record import Provenance
from t5core.checkpoints.retention import RetentionPolicy
from t5core.checkpoints.store import CheckpointStore

def save_for_ever(folder, provenance):
    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    state = {"step": jnp.int32(0), "params": {"kernel": jnp.arange(50_000.0)}}
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    with CheckpointStore(folder, retention=RetentionPolicy(keep=2)) as store:
        if os.path.isdir(folder):
            state = store.restore(abstract).state
        while True:
            state = update(state)
            store.save(int(state["step"]), state, provenance)

provenance = Provenance.model_validate_json(sys.argv[2])
for _ in sys.stdin:
    child = os.fork()  # before JAX has a thread, and without a second of imports for each life
    if child == 0:
        save_for_ever(sys.argv[1], provenance)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.002)


def test_killed_at_any_moment_the_last_committed_step_is_whole(tmp_path):
    folder = str(tmp_path / "checkpoints")
    state = {"step": jnp.int32(0), "params": {"kernel": jnp.zeros(50_000)}}
    luck = random.Random(0)
    last = 0
    command = [sys.executable, "-c", SAVES_FOR_EVER, folder, PROVENANCE.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as lives:
        for _ in range(8):
            lives.stdin.write("live\n")
            lives.stdin.flush()
            child = int(lives.stdout.readline())
            wait_for(lambda before=last: (index.latest(folder) or 0) > before)
            time.sleep(luck.uniform(0.0, 0.15))
            seen = index.latest(folder)
            os.kill(child, signal.SIGKILL)
            wait_for(lambda killed=child: not os.path.exists(f"/proc/{killed}"))
            found = index.survey(folder)
            assert not found.broken
            assert not found.set_aside
            with CheckpointStore(folder) as store:
                restored = store.restore(abstract(state))
            last = restored.record.step
            assert last == found.committed[-1] >= seen
            assert int(restored.state["step"]) == last
            np.testing.assert_array_equal(restored.state["params"]["kernel"], np.arange(50_000.0) + last)
        lives.stdin.close()


ONE_OF_TWO = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from t5core import errors
from t5core.checkpoints.record import Provenance
from t5core.checkpoints.store import CheckpointStore
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

def spread(shape, dtype, *axes):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

def refuse(*_, **__):
    raise OSError("the disk is gone")

abstract = {
    "step": spread((), jnp.int32),
    "params": {
        "encoder": {"kernel": spread((40, 60), jnp.float32, "data", "model")},
        "scale": spread((5,), jnp.bfloat16)},
    "opt_state": {"param_states": {"encoder": {"kernel": {
        "v_row": spread((40,), jnp.float32, ("data", "model")), "m": spread((1,), jnp.float32)}}}},
}
with CheckpointStore(sys.argv[3]) as store:
    restored = store.restore(abstract)
    assert restored.record.step == 20, restored.record.step
    shardings = jax.tree.map(lambda a: a.sharding, abstract)
    double = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), out_shardings=shardings)
    provenance = Provenance.model_validate_json(sys.argv[4])
    store.save(40, double(restored.state), provenance, wait=True)
    store.save(40, double(restored.state), provenance, wait=True)
    store._intact_step = refuse  # of the first process only this is asked, and the other must not wait for ever
    try:
        store.restore(abstract)
    except (OSError, errors.RecoverableError) as error:
        assert str(error).startswith(("the disk is gone", "the first process failed")[jax.process_index()]), error
    else:
        raise SystemExit("restored from a disk that is gone")
"""


def test_two_processes_of_four_devices_and_one_of_one_read_each_other(copy):
    shutil.copytree(copy / "20", copy / "30")
    damage(copy / "30" / "state" / "_METADATA", "flip")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ONE_OF_TWO, address]
    arguments = [str(copy), PROVENANCE.model_dump_json()]
    both = [subprocess.Popen([*command, str(i), *arguments], env=environment) for i in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    restored = restore(copy)
    assert restored.record.step == 40
    expected = jax.tree.map(lambda leaf: leaf + leaf, state_at(20))
    jax.tree.map(np.testing.assert_array_equal, restored.state, expected)
    assert restored.record.digest == digest.state_digest(digest.leaf_digests(expected))
    assert sorted(os.listdir(copy)) == ["10", "20", "30.damaged-1", "40"]
