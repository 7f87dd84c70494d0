"""Checkpoints that are killed, damaged, out of space, cut differently or read on another topology."""

import contextlib
import logging
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import flax.struct
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t5core import errors
from t5core.checkpoints import digest, index, pins, seal
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.retention import BestBy, RetentionPolicy
from t5core.checkpoints.store import CheckpointStore

PROVENANCE = Provenance(
    seed=7,
    config_fingerprint="config",
    dataset_fingerprint="dataset",
    vocabulary_fingerprint="vocabulary",
    schedule=SchedulePosition(total_steps=100, batch_size=4),
    action_state={"early_stopping": {"history": [1.5, 1.25]}},
)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: dict
    opt_state: dict


def state_at(step):
    """Returns the state after `step` updates, from nothing."""
    kernel = jnp.asarray(np.random.default_rng(step).standard_normal((40, 60)), jnp.float32)
    return State(
        step=jnp.int32(step),
        params={"encoder": {"kernel": kernel}, "scale": jnp.full((5,), step, jnp.bfloat16)},
        opt_state={"param_states": {"encoder": {"kernel": {"v_row": jnp.arange(40.0) + step, "m": jnp.zeros(1)}}}},
    )


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


ABSTRACT = abstract(state_at(0))


def assert_is(restored, step):
    assert restored.record.step == step
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(step))


def save_steps(folder, *steps, **options):
    with CheckpointStore(str(folder), **options) as store:
        for step in steps:
            store.save(step, state_at(step), PROVENANCE)


def restore(folder, **options):
    with CheckpointStore(str(folder)) as store:
        return store.restore(ABSTRACT, **options)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    save_steps(folder, 10, 20)
    return folder


@pytest.fixture
def copy(two_steps, tmp_path):
    return shutil.copytree(two_steps, tmp_path / "checkpoints")


def test_what_is_restored_is_what_was_saved(two_steps):
    restored = restore(two_steps)
    assert_is(restored, 20)
    assert isinstance(restored.state, State)
    assert restored.state.params["scale"].dtype == ml_dtypes.bfloat16
    assert restored.record.provenance == PROVENANCE
    assert restored.record.digest == digest.state_digest(digest.leaf_digests(state_at(20)))
    leaf = restored.record.leaves["params/encoder/kernel"]
    assert (leaf.shape, leaf.dtype) == ((40, 60), "float32")
    assert {"python", "jax", "jaxlib", "orbax-checkpoint"} <= restored.record.versions.keys()
    assert_is(restore(two_steps, step=10), 10)


def test_the_index_knows_the_steps_without_jax(two_steps):
    code = f"""
import sys
from t5core.checkpoints import index
assert index.committed_steps({str(two_steps)!r}) == (10, 20) and index.latest({str(two_steps)!r}) == 20
reference = index.reference({str(two_steps)!r}, 20)
assert index.locate(reference.uri) == ({str(two_steps)!r}, 20) and len(reference.digest) == 64
assert not {{"jax", "orbax", "tensorflow", "numpy"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_index_of_nothing_is_empty_and_fresh(tmp_path):
    assert index.latest(str(tmp_path / "none")) is None
    assert index.survey(str(tmp_path / "none")).is_fresh
    with pytest.raises(errors.CheckpointError, match=r"no checkpoint of step 3 in .*; committed steps: none"):
        index.read_record(str(tmp_path), 3)
    with pytest.raises(errors.CheckpointError, match="is not a checkpoint; give the folder of a step"):
        index.locate("/runs/demo/checkpoints")


def test_orbax_reads_our_checkpoints_by_itself(two_steps):
    manager = ocp.CheckpointManager(two_steps)
    assert manager.all_steps() == [10, 20]
    items = ocp.args.Composite(state=ocp.args.StandardRestore(ABSTRACT), record=ocp.args.JsonRestore())
    restored = manager.restore(20, args=items)
    np.testing.assert_array_equal(restored.state.params["encoder"]["kernel"], state_at(20).params["encoder"]["kernel"])
    assert restored.record["provenance"]["seed"] == 7


def test_the_state_may_be_donated_while_it_is_being_saved(tmp_path):
    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    state = state_at(3)
    with CheckpointStore(str(tmp_path)) as store:
        store.save(3, state, PROVENANCE)
        for _ in range(20):
            state = update(state)
    assert_is(restore(tmp_path), 3)


def test_no_checkpoint_is_an_error_and_not_a_start_from_scratch(tmp_path):
    with pytest.raises(errors.CheckpointError, match=f"no usable checkpoint in {tmp_path}: there is none"):
        restore(tmp_path)


# Saving


def test_saving_a_step_again_changes_nothing_and_another_state_is_refused(copy):
    before = (copy / "20" / seal.FILE).stat().st_mtime_ns
    with CheckpointStore(str(copy)) as store:
        assert store.save(20, state_at(20), PROVENANCE, wait=True).digest == index.read_record(str(copy), 20).digest
        with pytest.raises(errors.CheckpointError, match=r"checkpoint 20 in .* has digest \w+, but this run comes to"):
            store.save(20, state_at(21), PROVENANCE)
    assert (copy / "20" / seal.FILE).stat().st_mtime_ns == before


def test_handed_over_steps_go_and_the_newest_stay(tmp_path):
    policy = RetentionPolicy(keep=2, checkpoint_period=5)
    for segment in ((3, 5, 6), (9, 10, 12)):
        save_steps(tmp_path, *segment, retention=policy)
    assert index.survey(str(tmp_path)).committed == (10, 12)
    assert sorted(os.listdir(tmp_path)) == ["10", "12"]


def test_the_best_and_what_is_being_read_stay(tmp_path, caplog):
    metrics = {1: {"docs/loss": 1.0}, 2: {"docs/loss": 2.0}}
    policy = RetentionPolicy(keep=1, best=(BestBy(metric="docs/loss"),))
    save_steps(tmp_path, 1, 2, retention=RetentionPolicy())
    with pins.reading(str(tmp_path), 2):
        with caplog.at_level(logging.INFO):
            save_steps(tmp_path, 3, retention=policy, metrics=lambda: metrics)
        assert "deleting" not in caplog.text
        assert index.committed_steps(str(tmp_path)) == (1, 2, 3)
        assert_is(restore(tmp_path, step=2), 2)
    save_steps(tmp_path, 4, retention=policy, metrics=lambda: metrics)
    assert index.committed_steps(str(tmp_path)) == (1, 4)


@contextlib.contextmanager
def no_space():
    """Lets no file grow beyond 4 kB: what a full disk does to the data and not to the small files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_background_save_that_fails_is_raised_with_its_step_and_loses_nothing(copy):
    with CheckpointStore(str(copy)) as store:
        with no_space(), pytest.raises(errors.CheckpointError) as failure:
            store.save(30, state_at(30), PROVENANCE, wait=True)
        message = str(failure.value)
        assert message.startswith(f"cannot save checkpoint 30 in {copy}: ")
        assert message.endswith("committed and safe: step 20; free space or restore the right to write there")
        assert "\n" not in message
        assert_is(store.restore(ABSTRACT), 20)
        store.save(40, state_at(40), PROVENANCE, wait=True)
    assert sorted(os.listdir(copy)) == ["10", "20", "40"]  # nothing of the failed one takes up space


def test_a_failed_save_that_nobody_waits_for_is_raised_on_leaving(copy):
    with no_space(), pytest.raises(errors.CheckpointError, match="cannot save checkpoint 30"):
        save_steps(copy, 30)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises((errors.CheckpointError, errors.RecoverableError)) as failure:
        save_steps(tmp_path / "checkpoints", 1)
    assert "saving checkpoint 1" in str(failure.value)
    assert "\n" not in str(failure.value)


# Damage


def damage(path, how):
    content = bytearray(path.read_bytes())
    # Orbax finishes two files after the seal: the time in them may be anything, only their beginning is checked.
    place = 5 if path.name in (seal.COMMIT_FILE, seal.METADATA_FILE) else len(content) // 2
    if how == "flip":
        content[place] ^= 1
    elif how == "zero":
        content[place:] = bytes(len(content) - place)
    elif how == "truncate":
        del content[place:]
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["flip", "zero", "truncate", "delete"])
def test_damage_to_any_file_is_found_named_and_set_aside(two_steps, tmp_path, capsys, how):
    files = sorted(path.relative_to(two_steps) for path in (two_steps / "20").rglob("*") if path.is_file())
    assert len(files) > 10
    for number, name in enumerate(files):
        folder = shutil.copytree(two_steps, tmp_path / str(number))
        damage(folder / name, how)
        assert_is(restore(folder), 10)
        said = capsys.readouterr().out
        assert "checkpoint 20 is damaged and set aside as 20.damaged-1: " in said, name
        assert str(folder / name) in said
        assert sorted(os.listdir(folder)) == ["10", "20.damaged-1"]


def test_data_that_changed_behind_the_seal_is_found_by_its_digest(copy, tmp_path, capsys):
    other = tmp_path / "other"
    save_steps(other, 20)
    with CheckpointStore(str(other / "x")) as store:
        changed = state_at(20)
        changed.params["scale"] = changed.params["scale"].at[3].set(19.875)
        store.save(20, changed, PROVENANCE)
    shutil.rmtree(copy / "20" / "state")
    shutil.copytree(other / "x" / "20" / "state", copy / "20" / "state")
    seal.write(index.step_path(str(copy), 20))
    assert_is(restore(copy), 10)
    assert "params/scale of checkpoint 20 differ from what was saved (digest)" in capsys.readouterr().out


def test_a_half_written_checkpoint_is_not_the_latest(copy, capsys):
    shutil.copytree(copy / "20", copy / "30", ignore=shutil.ignore_patterns("d", "record"))
    assert index.latest(str(copy)) == 20
    assert "/30/record is missing" in index.survey(str(copy)).broken[30]
    assert_is(restore(copy), 20)
    assert "checkpoint 30 is damaged and set aside as 30.damaged-1" in capsys.readouterr().out


def test_a_broken_checkpoint_makes_way_for_the_step_when_it_is_saved_again(copy):
    for number in (1, 2):
        os.makedirs(copy / "30" / "state")
        save_steps(copy, 30)
        assert (copy / f"30.damaged-{number}").is_dir()
        shutil.rmtree(copy / "30")


def test_when_all_are_damaged_it_is_an_error_and_nothing_is_deleted(copy):
    (copy / "10" / "state" / "_METADATA").unlink()
    damage(copy / "20" / "record" / "metadata", "flip")
    with pytest.raises(errors.CheckpointError) as failure:
        restore(copy)
    message = str(failure.value)
    assert message.startswith(f"no usable checkpoint in {copy}: 20: ")
    assert "record/metadata differs from what was written" in message
    assert "10: " in message
    assert "_METADATA is missing; committed steps: none" in message
    assert sorted(os.listdir(copy)) == ["10.damaged-1", "20.damaged-1"]
    assert not index.survey(str(copy)).is_fresh
    with pytest.raises(errors.CheckpointError, match="no usable checkpoint"):
        restore(copy)


def test_a_step_that_was_asked_for_by_name_is_refused_in_place(copy):
    damage(copy / "20" / "state" / "_METADATA", "truncate")
    with pytest.raises(
        errors.CheckpointError, match=r"checkpoint 20 cannot be used in .*_METADATA has .* bytes instead"
    ):
        restore(copy, step=20)
    with pytest.raises(
        errors.CheckpointError, match=r"checkpoint 15 cannot be used in .*there is none; .*steps: 10, 20"
    ):
        restore(copy, step=15)
    assert sorted(os.listdir(copy)) == ["10", "20"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.replace(params={**s.params, "scale": jax.ShapeDtypeStruct((6,), jnp.bfloat16)}),
            r"params/scale is bfloat16\[5\] in it and bfloat16\[6\] in this run; use the model",
        ),
        (
            lambda s: s.replace(params={**s.params, "scale": jax.ShapeDtypeStruct((5,), jnp.float32)}),
            r"params/scale is bfloat16\[5\] in it and float32\[5\] in this run; use the model",
        ),
        (
            lambda s: s.replace(params={"encoder": s.params["encoder"]}),
            r"params/scale is bfloat16\[5\] in it and missing in this run; use the model",
        ),
        (
            lambda s: s.replace(params={**s.params, "more": s.step, "most": s.step}),
            r"params/more is missing in it and int32\[\] in this run \(and 1 more differ\); use the model",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_left_alone(copy, change, message):
    with CheckpointStore(str(copy)) as store, pytest.raises(errors.CheckpointError, match=message):
        store.restore(change(ABSTRACT))
    assert sorted(os.listdir(copy)) == ["10", "20"]


def test_a_record_of_a_later_version_is_not_taken_for_damage(copy):
    record = copy / "20" / "record" / "metadata"
    record.write_text(record.read_text().replace('"format_version": 1', '"format_version": 2'))
    seal.write(index.step_path(str(copy), 20))
    with pytest.raises(
        errors.CheckpointError, match="has format version 2, above the 1 that can be read; update t5flow"
    ):
        restore(copy)
    assert sorted(os.listdir(copy)) == ["10", "20"]


# Kills

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


# Topologies

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

def refuse(*_):
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
