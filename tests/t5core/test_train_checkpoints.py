"""What `train` saves, what it starts from, and that a run which was stopped anyhow goes on as if it had not been."""

import json
import os
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from t5core import errors, trees
from t5core.checkpoint_config import CheckpointConfig, RestoreCheckpointConfig, SaveCheckpointConfig
from t5core.checkpoints import index
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.t5x_native import read_t5x_checkpoint
from tests.t5core import tiny, train_runs
from tests.t5core.train_runs import run, saving, steps_saved


def restoring(path, save=None, **fields):
    return CheckpointConfig(save=save, restore=RestoreCheckpointConfig(path=str(path), **fields))


def continued(model_dir, **changes):
    """Runs on; returns the step, the state, and which batches of the dataset were trained on."""
    data = train_runs.Numbers()
    step, state = run(model_dir, get_dataset_fn=lambda *_: data, **changes)
    return step, state, data.taken


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """A run of six steps, natively saved at 0, 3 and 6."""
    folder = tmp_path_factory.mktemp("six")
    return folder, run(folder)[1]


@pytest.fixture(scope="module")
def orbax_six(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orbax")
    return folder, run(folder, use_orbax=True)[1]


@pytest.fixture
def copy(six, tmp_path):
    return shutil.copytree(six[0], tmp_path / "copy")


def test_native_checkpoints_are_t5x_s_with_a_record_beside(six):
    folder, state = six
    stored = trees.flatten(read_t5x_checkpoint(str(folder / "checkpoint_6")))
    assert stored["state/step"] == 6
    for path, leaf in trees.flatten(state.params).items():
        np.testing.assert_array_equal(stored[f"target/{path}"], leaf)
        assert f"state/param_states/{path}/v_row" in stored
    assert (folder / "checkpoint_6.json").is_file()


def test_orbax_checkpoints_are_those_of_the_workflows(orbax_six, six):
    folder, state = orbax_six
    assert index.committed_steps(f"{folder}/checkpoints") == (0, 3, 6)
    assert not list(folder.glob("checkpoint_*"))
    train_runs.assert_same(state, six[1])
    with NativeCheckpointStore(str(six[0])) as store:
        native = store.read(step=6)
    assert native.record.digest == index.read_record(f"{folder}/checkpoints", 6).digest


def test_either_kind_is_recognised_and_the_later_one_is_taken(tmp_path):
    for total_steps, use_orbax in ((3, False), (5, True), (7, False), (8, True)):
        step, state = run(tmp_path / "mixed", total_steps=total_steps, use_orbax=use_orbax)
        assert step == total_steps
    assert steps_saved(tmp_path / "mixed") == [0, 3, 5, 6, 7]
    assert index.committed_steps(f"{tmp_path}/mixed/checkpoints") == (3, 5, 7, 8)
    train_runs.assert_same(state, run(tmp_path / "straight", total_steps=8)[1])


@pytest.mark.parametrize("kind", ["native", "orbax"])
@pytest.mark.parametrize("mode", ["latest", "specific"])
def test_another_run_is_started_from(six, orbax_six, tmp_path, kind, mode):
    folder, state = six if kind == "native" else orbax_six
    specific = {"native": "checkpoint_3", "orbax": "checkpoints/3"}[kind]
    path = folder / specific if mode == "specific" else folder
    start = 3 if mode == "specific" else 6
    step, here = run(tmp_path, checkpoint_cfg=restoring(path, mode=mode), total_steps=start)
    assert step == start
    if mode == "latest":
        train_runs.assert_same(here, state)
    assert int(here.step) == start


def test_the_data_of_another_run_is_gone_on_with_only_if_asked_for(six, tmp_path):
    folder, _ = six
    for name, asked, trained_on in (("fresh", False, [0, 1]), ("on", True, [6, 7])):
        cfg = restoring(folder, SaveCheckpointConfig(period=100), restore_dataset=asked)
        _, _, taken = continued(tmp_path / name, checkpoint_cfg=cfg, total_steps=8)
        assert [i for i in taken if i in trained_on] == trained_on
        assert max(taken) == trained_on[-1]
        _, _, taken = continued(tmp_path / name, checkpoint_cfg=cfg, total_steps=9)
        assert max(taken) == trained_on[-1] + 1, "a second call goes on where the first one was"


def test_the_run_s_own_checkpoint_comes_first(six, tmp_path):
    cfg = restoring(six[0], SaveCheckpointConfig(period=2), mode="latest")
    assert run(tmp_path, checkpoint_cfg=cfg, total_steps=8)[0] == 8
    shutil.rmtree(six[0] / "nowhere", ignore_errors=True)
    gone_on = run(tmp_path, checkpoint_cfg=CheckpointConfig(save=cfg.save), total_steps=9)
    assert gone_on[0] == 9


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"path": "nowhere"}, "restore.path='nowhere' is no folder; name a folder that holds checkpoints"),
        ({"path": "."}, "restore.path='.' has no checkpoint; name a folder that holds checkpoints"),
        ({"path": "x/checkpoint_9", "mode": "specific"}, "restore.path='x/checkpoint_9' is no checkpoint; name the "),
        ({"path": "model.ckpt-7", "mode": "specific"}, "restore.path='model.ckpt-7' is a TensorFlow checkpoint; conv"),
        ({"path": "x", "mode": "all"}, "restore.mode='all' is not supported in training; use 'latest' or 'specific'"),
        ({"path": ["x", "y"]}, "restore.path=('x', 'y') may only be a single path in training; give it as text"),
    ],
)
def test_a_promise_of_a_checkpoint_that_is_not_kept_is_an_error_before_data_is_read(
    tmp_path, monkeypatch, cfg, message
):
    """Difference from T5X, which trains from scratch when a folder has no checkpoints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.ckpt-7.index").write_text("")
    data = []
    with pytest.raises(errors.UserError) as raised:
        run(
            tmp_path / "run",
            checkpoint_cfg=CheckpointConfig(restore=RestoreCheckpointConfig(**cfg)),
            get_dataset_fn=lambda *_: data.append(1),
        )
    assert str(raised.value).startswith(message)
    assert data == []


@pytest.mark.parametrize("path", ["", ()])
def test_an_empty_path_restores_nothing(tmp_path, path):
    cfg = CheckpointConfig(restore=RestoreCheckpointConfig(path=path))
    assert int(run(tmp_path, checkpoint_cfg=cfg, total_steps=0)[1].step) == 0


def test_a_half_written_checkpoint_is_put_aside_and_named(copy, six, capsys):
    shutil.rmtree(copy / "checkpoint_6")
    (copy / "checkpoint_6" / "target.encoder.encoder_norm.scale").mkdir(parents=True)
    step, state, taken = continued(copy)
    assert step == 6
    assert [t for t in taken if t >= 3] == [3, 4, 5]
    train_runs.assert_same(state, six[1])
    assert "checkpoint 6 is damaged and set aside" in capsys.readouterr().out


def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_used(copy, six, capsys):
    damaged = copy / "checkpoint_6" / "target.encoder.encoder_norm.scale"
    shutil.copy(copy / "checkpoint_3" / damaged.name / "0", damaged / "0")
    _, state, taken = continued(copy)
    assert max(taken) == 5
    train_runs.assert_same(state, six[1])
    assert "params/encoder/encoder_norm/scale of" in capsys.readouterr().out


def test_only_damaged_checkpoints_are_an_error_and_no_start_from_scratch(copy):
    for step in (0, 3, 6):
        (copy / f"checkpoint_{step}" / "checkpoint").unlink()
    with pytest.raises(
        errors.CheckpointError, match=r"no usable checkpoint in .*copy \(damaged: 0, 3, 6\); restore one"
    ):
        run(copy)


def test_old_checkpoints_are_deleted_but_not_the_pinned(tmp_path):
    run(tmp_path, total_steps=4, checkpoint_cfg=saving(1))
    (tmp_path / "checkpoint_2" / "PINNED").write_text("")
    run(tmp_path, total_steps=6, checkpoint_cfg=saving(1, keep=2))
    assert steps_saved(tmp_path) == [2, 5, 6]
    assert sorted(path.name for path in tmp_path.glob("checkpoint_*.json")) == [
        f"checkpoint_{step}.json" for step in (2, 5, 6)
    ]


@pytest.mark.parametrize("use_orbax", [False, True])
def test_parameters_are_stored_in_the_dtype_of_the_config_with_either_kind(tmp_path, use_orbax):
    """Difference from T5X, where Orbax checkpoints are never cast."""
    first = run(tmp_path, checkpoint_cfg=saving(3, dtype="bfloat16"), use_orbax=use_orbax, total_steps=3)[1]
    step, second = run(tmp_path, checkpoint_cfg=saving(3, dtype="bfloat16"), use_orbax=use_orbax, total_steps=3)
    assert step == 3
    for path, leaf in trees.flatten(second.params).items():
        rounded = trees.flatten(first.params)[path].astype("bfloat16").astype("float32")
        np.testing.assert_array_equal(leaf, rounded)
        assert leaf.dtype == np.float32
    train_runs.assert_same(first.opt_state, second.opt_state)
    elsewhere = {"total_steps": 3, "use_orbax": use_orbax}
    with pytest.raises(
        errors.CheckpointError, match=r"is bfloat16 in it and float32 in this run; set restore.dtype='fl"
    ):
        run(tmp_path / "x", checkpoint_cfg=restoring(tmp_path), **elsewhere)
    cast = run(tmp_path / "y", checkpoint_cfg=restoring(tmp_path, dtype="float32"), **elsewhere)[1]
    train_runs.assert_same(cast, second)
    with pytest.raises(errors.ConfigError, match=r"restore.dtype='float16' cannot be the dtype of"):
        run(tmp_path / "z", checkpoint_cfg=restoring(tmp_path, dtype="float16"), **elsewhere)


NORM = "target/encoder/encoder_norm/scale"


def renamed(there, here):
    def rename(state, wanted=None, *, is_resuming=False):
        rename.calls.append(is_resuming)
        flat = trees.flatten(state)
        return trees.unflatten({(here if name == there else name): leaf for name, leaf in flat.items()})

    rename.calls = []
    return rename


@pytest.mark.parametrize("use_orbax", [False, True])
def test_transformations_are_applied_to_what_is_saved_and_to_what_is_restored(tmp_path, use_orbax):
    out, back = renamed(NORM, "target/old_norm"), renamed("target/old_norm", NORM)
    save = SaveCheckpointConfig(period=3, state_transformation_fns=[out])
    restore = RestoreCheckpointConfig(path="", state_transformation_fns=[back])
    cfg = CheckpointConfig(save=save, restore=restore)
    straight = run(tmp_path / "plain", total_steps=5)[1]
    run(tmp_path / "run", checkpoint_cfg=cfg, total_steps=3, use_orbax=use_orbax)
    assert back.calls == []
    _, state = run(tmp_path / "run", checkpoint_cfg=cfg, total_steps=5, use_orbax=use_orbax)
    assert back.calls == [True]
    train_runs.assert_same(state, straight)
    if not use_orbax:
        assert "old_norm" in read_t5x_checkpoint(str(tmp_path / "run" / "checkpoint_3"))["target"]


def test_names_are_assigned_and_what_is_missing_is_drawn(six, tmp_path):
    folder, state = six
    scales = (r"target/decoder/(layers_0/.*norm)/scale", r"target/encoder/layers_0/pre_attention_layer_norm/scale")
    cfg = restoring(
        folder,
        SaveCheckpointConfig(),
        assignment_map=[scales, ("target/token_embedder/embedding", None), ("state/step", None)],
        fallback_to_scratch=True,
    )
    step, here, taken = continued(tmp_path, checkpoint_cfg=cfg, total_steps=0)
    assert (step, taken) == (0, [])
    source = state.params["encoder"]["layers_0"]["pre_attention_layer_norm"]["scale"]
    for name in ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"):
        np.testing.assert_array_equal(here.params["decoder"]["layers_0"][name]["scale"], source)
    fresh = jax.device_get(train_runs.trainer().initial_state())
    np.testing.assert_array_equal(
        here.params["token_embedder"]["embedding"], fresh.params["token_embedder"]["embedding"]
    )
    np.testing.assert_array_equal(
        here.params["encoder"]["encoder_norm"]["scale"], state.params["encoder"]["encoder_norm"]["scale"]
    )
    assert run(tmp_path, checkpoint_cfg=cfg, total_steps=1)[0] == 1, (
        "the map is not applied to the run's own checkpoint"
    )


def test_what_does_not_fit_is_named(six, tmp_path):
    drop = restoring(six[0], state_transformation_fns=[renamed(NORM, "target/other")])
    with pytest.raises(
        errors.CheckpointError, match="does not fit: params/encoder/encoder_norm/scale is missing in it;"
    ):
        run(tmp_path / "a", checkpoint_cfg=drop, total_steps=6)
    more = restoring(
        six[0], state_transformation_fns=[lambda s, w, is_resuming: {**s, "target": {**s["target"], "x": np.ones(3)}}]
    )
    with pytest.raises(
        errors.CheckpointError, match="does not fit: params/x is not in the model; use the model and opt"
    ):
        run(tmp_path / "b", checkpoint_cfg=more, total_steps=6)
    loose = CheckpointConfig(restore=more.restore.model_copy(update={"strict": False}))
    assert run(tmp_path / "c", checkpoint_cfg=loose, total_steps=6)[0] == 6


def test_a_folder_is_one_run_s(copy, six, tmp_path):
    run_id = re.search(r'"run_id": "(\w+)"', (copy / "train.json").read_text())[1]
    for changes, name in (
        ({"random_seed": 1}, "random_seed=0, and this run has random_seed=1"),
        ({"train_dataset_cfg": train_runs.config("others")}, "train_dataset_cfg.dataset=numbers, and this run has"),
        ({"use_hardware_rng": True}, "random numbers=threefry, and this run has random numbers=hardware"),
        ({"trainer_cls": lambda **_: tiny.trainer(emb_dim=16)}, "parameters="),
    ):
        with pytest.raises(errors.RunDirectoryError, match=re.escape(name)) as raised:
            run(copy, **changes)
        assert f"{copy} belongs to run {run_id} of " in str(raised.value)
    other = restoring(six[0], SaveCheckpointConfig(period=3))
    run(tmp_path / "x", checkpoint_cfg=other, total_steps=7)
    shutil.copytree(six[0], tmp_path / "elsewhere")
    with pytest.raises(
        errors.RunDirectoryError, match=r"restore.path=.*six0, and this run has restore.path=.*elsewhere"
    ):
        run(tmp_path / "x", checkpoint_cfg=restoring(tmp_path / "elsewhere", SaveCheckpointConfig(period=3)))


def test_a_checkpoint_of_another_seed_is_not_gone_on_with(orbax_six, tmp_path):
    """Of the stages' run, whose seed stands in its checkpoints alone."""
    copy = shutil.copytree(orbax_six[0], tmp_path / "copy")
    (copy / "train.json").rename(copy / "run.json")
    record = {"name": "r", "identity": "i", "seed": 0, "created": "now"}
    (copy / "run.json").write_text(json.dumps(record))
    message = r"checkpoint 6 in .* was trained with random_seed 0, and this run has 1; choose another model_dir"
    with pytest.raises(errors.RunDirectoryError, match=message):
        run(copy, random_seed=1, use_orbax=True)


def test_without_the_record_of_where_its_data_began_a_run_does_not_go_on(copy):
    (copy / "train.json").unlink()
    with pytest.raises(errors.RunDirectoryError, match=r"train.json is missing, which says where the data of the run"):
        run(copy, total_steps=8)
    (copy / "train.json").write_text('{"run_id": ')
    with pytest.raises(errors.IntegrityError, match=r"train.json is not a RunRecord; restore it from a copy"):
        run(copy, total_steps=8)


def test_two_calls_at_once_do_not_share_a_folder(tmp_path):
    def inside(*_):
        with pytest.raises(errors.RunDirectoryError, match=r"lock.json is held by 'train:"):
            run(tmp_path)

    assert run(tmp_path, summarize_config_fn=inside)[0] == 6


class Terminating(train_runs.Numbers):
    """Sends SIGTERM while a batch is fetched."""

    def __iter__(self):
        for step, batch in enumerate(super().__iter__()):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


@pytest.mark.parametrize("use_orbax", [False, True])
def test_sigterm_leaves_a_checkpoint_that_is_gone_on_from(tmp_path, use_orbax):
    """Difference from T5X, where nothing handles the signal and the state of the save was given up before."""
    changes = {"checkpoint_cfg": saving(100), "use_orbax": use_orbax, "stats_period": 100, "total_steps": 8}
    with pytest.raises(errors.Preempted, match=r"told to stop; step \d is committed, run again to go on from there"):
        run(tmp_path / "cut", get_dataset_fn=lambda *_: Terminating(), **changes)
    saved = index.committed_steps(f"{tmp_path}/cut/checkpoints") if use_orbax else steps_saved(tmp_path / "cut")
    assert 0 < max(saved) < 8
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    step, state = run(tmp_path / "cut", **changes)
    assert step == 8
    train_runs.assert_same(state, run(tmp_path / "straight", **changes)[1])


def test_sigterm_in_an_evaluation_does_not_wait_for_its_end(tmp_path):
    def evaluation(*_):
        def batches():
            os.kill(os.getpid(), signal.SIGTERM)
            yield tiny.batch(0)
            raise AssertionError("the evaluation went on")

        return {"first": batches()}

    changes = {"train_eval_dataset_cfg": train_runs.config(use_memory_cache=False), "eval_period": 2, "total_steps": 4}
    changes |= {"checkpoint_cfg": saving(100)}
    with pytest.raises(errors.Preempted, match="step 2 is committed, run again to evaluate it and go on"):
        run(tmp_path, train_eval_get_dataset_fn=lambda *_: {"first": Repeated(evaluation)}, **changes)
    assert steps_saved(tmp_path) == [0, 2]
    run(tmp_path, **changes)
    assert [line["step"] for line in train_runs.lines(tmp_path, "training_eval", "first")] == [2, 4]


class Repeated:
    """Can be iterated again, so it is not read ahead."""

    def __init__(self, evaluation):
        self._evaluation = evaluation

    def __iter__(self):
        return iter(self._evaluation()["first"])


class FullError(errors.CheckpointError):
    pass


def test_a_store_of_one_s_own_is_used_and_its_failures_end_the_run(tmp_path):
    class Store(NativeCheckpointStore):
        opened: list = []

        def __init__(self, uri, **options):
            super().__init__(uri, **options)
            self.opened.append(options)

        def save(self, step, *rest, **options):
            if step == 6:
                raise FullError("cannot save checkpoint 6: no space left on device")
            return super().save(step, *rest, **options)

    with pytest.raises(FullError, match="cannot save checkpoint 6"):
        run(tmp_path, checkpoint_cfg=saving(3, keep=4, checkpointer_cls=Store))
    assert [options["retention"].keep for options in Store.opened] == [4]
    assert run(tmp_path)[0] == 6


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (SaveCheckpointConfig, {"dtype": "float16"}, "SaveCheckpointConfig: dtype='float16' is not valid"),
        (SaveCheckpointConfig, {"period": -1}, "SaveCheckpointConfig: period=-1 is not valid"),
        (SaveCheckpointConfig, {"keep": 0}, "SaveCheckpointConfig: keep=0 is not valid"),
        (SaveCheckpointConfig, {"checkpoint_steps": [0]}, "SaveCheckpointConfig: checkpoint_steps.0=0 is not valid"),
        (SaveCheckpointConfig, {"keep_dataset_checkpoints": 2}, "SaveCheckpointConfig: keep_dataset_checkpoints=2 has"),
        (
            SaveCheckpointConfig,
            {"checkpoint_manager_cls": int},
            "SaveCheckpointConfig: checkpoint_manager_cls=<class '",
        ),
        (
            SaveCheckpointConfig,
            {"perod": 2},
            "SaveCheckpointConfig: unknown key 'perod' (value 2); did you mean 'period",
        ),
        (RestoreCheckpointConfig, {}, "RestoreCheckpointConfig: missing key 'path'; give it a value"),
        (RestoreCheckpointConfig, {"path": "x", "mode": "best"}, "RestoreCheckpointConfig: mode='best' is not valid"),
        (RestoreCheckpointConfig, {"path": "x", "dtype": "int8"}, "RestoreCheckpointConfig: dtype='int8' is not valid"),
        (
            RestoreCheckpointConfig,
            {"path": "x", "fallback_to_scratch": True},
            "RestoreCheckpointConfig: fallback_to_scratch=True without assignment_map or state_transformation_fns",
        ),
        (
            RestoreCheckpointConfig,
            {"path": "x", "assignment_map": [("(", None)]},
            "RestoreCheckpointConfig: assignment",
        ),
    ],
)
def test_settings_of_checkpoints_that_cannot_work_are_refused(cls, fields, message):
    with pytest.raises(errors.ConfigError) as raised:
        cls(**fields)
    assert str(raised.value).startswith(message)


def test_the_defaults_are_those_of_t5x():
    save, restore = SaveCheckpointConfig(), RestoreCheckpointConfig(path="x")
    assert (save.dtype, save.period, save.checkpoint_steps, save.keep, save.save_dataset) == (
        "float32",
        *[None] * 3,
        False,
    )
    assert (restore.mode, restore.strict, restore.fallback_to_scratch) == ("latest", True, False)
    assert (restore.dtype, restore.restore_dataset, restore.assignment_map) == (None, False, None)
    assert (CheckpointConfig().save, CheckpointConfig().restore) == (None, None)


@pytest.mark.parametrize("use_orbax", [False, True])
def test_nothing_is_saved_once_the_folder_is_another_s(tmp_path, use_orbax):
    """Of another machine that took a paused one for dead."""

    class Paused(train_runs.Numbers):
        def __iter__(self):
            for step, batch in enumerate(super().__iter__()):
                if step == 4:
                    (tmp_path / "lock.json").unlink()
                    (tmp_path / "lock.json").write_text("{}")
                yield batch

    with pytest.raises(errors.InUseError, match=r"lost the lock .*lock.json: another execution took it over"):
        run(tmp_path, get_dataset_fn=lambda *_: Paused(), use_orbax=use_orbax)
    saved = index.committed_steps(f"{tmp_path}/checkpoints") if use_orbax else steps_saved(tmp_path)
    assert 6 not in saved
    assert (tmp_path / "lock.json").read_text() == "{}"
