"""Native checkpoints of a run: verified, put aside when damaged, and never overwritten by others."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.checkpoints import native_store
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.t5x_native import write_t5x_checkpoint
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x

PROVENANCE = Provenance(
    seed=7,
    config_fingerprint="config",
    dataset_fingerprint="dataset",
    vocabulary_fingerprint="",
    schedule=SchedulePosition(total_steps=100, batch_size=4),
    action_state={"TRAIN/0-EarlyStopping": {"best": float("inf"), "bad": 2}},
)


def state_at(step):
    kernel = jnp.asarray(np.random.default_rng(step).standard_normal((4, 6)), jnp.float32)
    return {
        "step": jnp.int32(step),
        "params": {"mlp": {"kernel": kernel}},
        "opt_state": {"param_states": {"mlp": {"kernel": {"v": kernel**2, "m": jnp.zeros(1)}}}},
    }


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


@pytest.fixture
def folder(tmp_path):
    with NativeCheckpointStore(str(tmp_path)) as store:
        for step in (10, 20):
            store.save(step, state_at(step), PROVENANCE)
    return tmp_path


def test_what_is_restored_is_what_was_saved_with_all_that_the_record_tells(folder):
    with NativeCheckpointStore(str(folder)) as store:
        restored = store.restore(abstract(state_at(0)))
        earlier = store.restore(abstract(state_at(0)), step=10)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(20))
    jax.tree.map(np.testing.assert_array_equal, earlier.state, state_at(10))
    assert restored.state["params"]["mlp"]["kernel"].sharding == state_at(0)["params"]["mlp"]["kernel"].sharding
    assert restored.record.provenance == PROVENANCE


def test_names_change_there_and_back():
    tree = {"step": 1, "params": {"a": 2}, "opt_state": {"param_states": {"a": 3}}}
    assert from_t5x(to_t5x(tree)) == tree
    assert from_t5x({"target": {"a": 2}}) == {"params": {"a": 2}, "opt_state": {}}


def test_a_step_is_saved_again_only_with_the_same_bits(folder):
    with NativeCheckpointStore(str(folder)) as store:
        store.save(20, state_at(20), PROVENANCE)
        other = {**state_at(21), "step": jnp.int32(20)}
        with pytest.raises(
            errors.CheckpointError, match=r"checkpoint 20 in .* has digest \w{16}, but this run comes to"
        ):
            store.save(20, other, PROVENANCE)
    assert native_store.committed_steps(str(folder)) == (10, 20)


def test_a_checkpoint_of_t5x_has_no_record_and_is_read_all_the_same(tmp_path):
    write_t5x_checkpoint(str(tmp_path), 5, to_t5x(jax.device_get(state_at(5))))
    with NativeCheckpointStore(str(tmp_path)) as store:
        restored = store.read()
        assert store.save(5, state_at(5), PROVENANCE).step == 5
    assert restored.record is None
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(5))


def test_a_step_that_is_asked_for_is_not_put_aside(folder):
    (folder / "checkpoint_20" / "checkpoint").write_bytes(b"nonsense")
    with NativeCheckpointStore(str(folder)) as store:
        with pytest.raises(errors.CheckpointError, match=r"checkpoint 20 cannot be used in .*committed steps: 10, 20"):
            store.read(step=20)
        assert (folder / "checkpoint_20").is_dir()
        assert int(store.read().state["step"]) == 10
    assert (folder / "checkpoint_20.damaged-1").is_dir()
    assert (folder / "checkpoint_20.json.damaged-1").is_file()


def test_a_record_that_is_damaged_or_another_s_is_damage(folder):
    shutil.copy(folder / "checkpoint_10.json", folder / "checkpoint_20.json")
    with NativeCheckpointStore(str(folder)) as store:
        assert int(store.read().state["step"]) == 10
        (folder / "checkpoint_10.json").write_text("{}")
        with pytest.raises(errors.CheckpointError, match=r"no usable checkpoint in .*is not the record of"):
            store.read()


def test_a_folder_without_an_index_makes_way_for_the_step_when_it_is_saved(folder):
    (folder / "checkpoint_30").mkdir()
    assert native_store.broken_steps(str(folder)) == (30,)
    with NativeCheckpointStore(str(folder)) as store:
        store.save(30, state_at(30), PROVENANCE)
        assert int(store.read().state["step"]) == 30
    assert (folder / "checkpoint_30.damaged-1").is_dir()


def test_what_does_not_fit_is_named(folder):
    wanted = abstract(state_at(0))
    wanted["params"]["mlp"]["kernel"] = jax.ShapeDtypeStruct((4, 5), jnp.float32)
    with (
        NativeCheckpointStore(str(folder)) as store,
        pytest.raises(
            errors.CheckpointError, match=r"does not fit: params/mlp/kernel is float32\[4, 6\] in it and float32"
        ),
    ):
        store.restore(wanted)


def test_nothing_is_a_checkpoint_error(tmp_path):
    with (
        NativeCheckpointStore(str(tmp_path)) as store,
        pytest.raises(
            errors.CheckpointError, match=r"no usable checkpoint in .*: there is none; committed steps: none"
        ),
    ):
        store.read()
