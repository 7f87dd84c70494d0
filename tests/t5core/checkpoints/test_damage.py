"""Damage to checkpoints: each is found, named and set aside, and nothing is ever deleted."""

import os
import shutil

import jax
import jax.numpy as jnp
import pytest

from t5core import errors
from t5core.checkpoints import index, seal
from t5core.checkpoints.store import CheckpointStore
from tests.t5core.checkpoints.states import ABSTRACT, PROVENANCE, assert_is, damage, restore, save_steps, state_at


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


def save_other(folder):
    """Saves a state of step 20 that differs in one element."""
    changed = state_at(20)
    changed.params["scale"] = changed.params["scale"].at[3].set(19.875)
    with CheckpointStore(str(folder)) as store:
        store.save(20, changed, PROVENANCE)


def test_data_that_changed_behind_the_seal_is_found_by_its_digest(copy, tmp_path, capsys):
    save_other(tmp_path / "other")
    shutil.rmtree(copy / "20" / "state")
    shutil.copytree(tmp_path / "other" / "20" / "state", copy / "20" / "state")
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


@pytest.mark.parametrize("how", ["flip", "zero", "truncate", "delete"])
def test_damage_to_what_parameters_are_read_from_is_found_and_stays_in_place(two_steps, tmp_path, how):
    files = sorted(path.relative_to(two_steps) for path in (two_steps / "20").rglob("*") if path.is_file())
    for number, name in enumerate(files):
        folder = shutil.copytree(two_steps, tmp_path / str(number))
        damage(folder / name, how)
        with CheckpointStore(str(folder)) as store, pytest.raises(errors.CheckpointError) as failure:
            store.restore_params(ABSTRACT.params, step=20)
        assert str(folder / name) in str(failure.value)
        assert sorted(os.listdir(folder)) == ["10", "20"]


def test_parameters_that_changed_behind_the_seal_are_found_by_their_digests(copy, tmp_path):
    save_other(tmp_path / "other")
    shutil.rmtree(copy / "20" / "state")
    shutil.copytree(tmp_path / "other" / "20" / "state", copy / "20" / "state")
    seal.write(index.step_path(str(copy), 20))
    with CheckpointStore(str(copy)) as store, pytest.raises(errors.CheckpointError) as failure:
        store.restore_params(ABSTRACT.params, step=20)
    assert "params/scale of checkpoint 20 differ from what was saved (digest)" in str(failure.value)
