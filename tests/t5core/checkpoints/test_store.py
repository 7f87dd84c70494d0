"""Saving and restoring: what comes back, what stays, and what a full disk cannot take away."""

import contextlib
import dataclasses
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import types

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t5core import errors
from t5core.checkpoints import digest, index, pins, seal
from t5core.checkpoints.retention import BestBy, RetentionPolicy
from t5core.checkpoints.store import CheckpointStore
from tests.t5core.checkpoints.states import ABSTRACT, PROVENANCE, State, assert_is, restore, save_steps, state_at


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


def test_training_goes_on_saving_while_an_evaluation_reads_the_only_one_that_is_kept(tmp_path):
    policy = RetentionPolicy(keep=1)
    save_steps(tmp_path, 3, retention=policy)
    with pins.reading(str(tmp_path), 3):
        save_steps(tmp_path, 4, 5, retention=policy)
        assert index.committed_steps(str(tmp_path)) == (3, 5)
        assert_is(restore(tmp_path, step=3), 3)
    save_steps(tmp_path, 6, retention=policy)
    with (
        pytest.raises(errors.CheckpointError, match=r"no checkpoint of step 3 .*removed by retention.*steps: 6"),
        pins.reading(str(tmp_path), 3),
    ):
        pass


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


def test_a_save_that_cannot_fit_is_not_begun(copy, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10))
    with CheckpointStore(str(copy)) as store:
        with pytest.raises(errors.CheckpointError) as failure:
            store.save(30, state_at(30), PROVENANCE)
        assert re.fullmatch(
            rf"cannot save checkpoint 30 in {copy}: no space left: \d\.\d MB needed, 0\.0 MB free; "
            r"committed and safe: step 20; free space or restore the right to write there",
            str(failure.value),
        )
    assert sorted(os.listdir(copy)) == ["10", "20"]


def test_a_failed_save_that_nobody_waits_for_is_raised_on_leaving(copy):
    with no_space(), pytest.raises(errors.CheckpointError, match="cannot save checkpoint 30"):
        save_steps(copy, 30)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("a file in the way")
    before = set(threading.enumerate())
    with pytest.raises((errors.CheckpointError, errors.RecoverableError)) as failure:
        save_steps(tmp_path / "checkpoints", 1)
    assert "saving checkpoint 1" in str(failure.value)
    assert "\n" not in str(failure.value)
    # The interpreter waits for each thread that is no daemon; those of an idle pool end when it asks them to.
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert not [name for name in left if not name.startswith("asyncio_")], "the process would not end"


def restore_params(folder, **changes):
    with CheckpointStore(str(folder)) as store:
        return store.restore_params({**ABSTRACT.params, **changes}, step=20)


def test_parameters_are_restored_without_the_rest_of_the_state(two_steps):
    restored = restore_params(two_steps)
    assert restored.record == restore(two_steps).record
    jax.tree.map(np.testing.assert_array_equal, restored.state, {"params": state_at(20).params})
    with pytest.raises(errors.CheckpointError, match=r"does not fit: params/more is missing in it and bfloat16\[5\]"):
        restore_params(two_steps, more=ABSTRACT.params["scale"])


def test_parameters_are_read_from_a_checkpoint_whose_optimiser_state_is_none_of_this_run_s(tmp_path):
    """An evaluation builds no optimiser, and the one that trained may have had any state."""
    state = dataclasses.replace(state_at(20), opt_state={"other": np.ones(7)})
    with CheckpointStore(str(tmp_path)) as store:
        store.save(20, state, PROVENANCE)
    jax.tree.map(np.testing.assert_array_equal, restore_params(tmp_path).state, {"params": state.params})
