"""What a configuration is told before anything is computed."""

import pytest

from t5core import errors, lock
from t5core.checkpoints import seal
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.preflight import record
from t5core.rundir import RunDirectory
from t5core.stages import failure, holding, resolve
from tests.t5core import tiny
from tests.t5core.preflight import runs


def config(**train):
    settings = {
        "model": {**tiny.SIZES, "vocab_size": 384},
        "data": {
            "tasks": [{"name": "one", "builtin": "python_docs"}, {"name": "two", "builtin": "python_docstrings"}],
            "vocabulary": {"kind": "bytes", "extra_ids": 100},
        },
        "train": {"total_steps": 100, **train},
    }
    return load.validate(settings, PretrainConfig, origin="test")


def commit(run, *, step):
    """Puts in place what makes a checkpoint count as committed."""
    checkpoint = run / "checkpoints" / str(step)
    for name in ("record", "state"):
        (checkpoint / name).mkdir(parents=True)
    for name in (seal.FILE, seal.COMMIT_FILE, seal.METADATA_FILE):
        (checkpoint / name).write_text("")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            {"optimizer": {"arguments": {"factored": False, "min_dim_size_to_factor": 64}}},
            "optimizer 'adafactor': min_dim_size_to_factor=64 has no effect because factored is false",
        ),
        (
            {"optimizer": {"arguments": {"multiply_by_parameter_scale": False, "epsilon2": 0.1}}},
            "optimizer 'adafactor': epsilon2=0.1 has no effect because multiply_by_parameter_scale is false",
        ),
        (
            {"actions": [{"name": "early_stopping", "task": "mixture", "metric": "accuracyy"}]},
            "train.actions.0: unknown metric of task 'mixture' 'accuracyy'; did you mean 'accuracy'?",
        ),
        (
            {"actions": [{"name": "early_stopping", "task": "mixtur"}]},
            "train.actions: unknown task 'mixtur'; did you mean 'mixture'? known: mixture, one, two",
        ),
    ],
)
def test_what_contradicts_itself_or_does_not_exist_is_refused(train, message):
    with pytest.raises(errors.ConfigError) as raised:
        resolve.check(config(**train))
    assert message in str(raised.value)


def test_an_action_may_watch_the_mixture():
    watching = [{"name": "early_stopping", "task": "mixture", "metric": "loss_per_nonpadding_target_token"}]
    resolve.check(config(actions=watching))


def test_the_name_of_the_mixture_is_taken_where_there_is_one():
    tasks = [{"name": name, "files": ["x.txt"]} for name in ("mixture", "other")]
    load.validate({"data": {"tasks": tasks[:1]}}, PretrainConfig, origin="test")
    with pytest.raises(errors.ConfigError, match="task name 'mixture' is that of all tasks together; rename the task"):
        load.validate({"data": {"tasks": tasks}}, PretrainConfig, origin="test")


def test_tasks_that_are_not_trained_on_are_evaluated_and_no_part_of_the_mixture():
    tasks = [{"name": name, "files": ["x.txt"], "rate": rate} for name, rate in (("a", 1.0), ("b", 2.0), ("c", 0.0))]
    data = load.validate({"data": {"tasks": tasks}}, PretrainConfig, origin="test").data
    assert data.mixed == ["a", "b"]
    assert data.evaluated == ["a", "b", "c", "mixture"]
    assert load.validate({"data": {"tasks": tasks[1:]}}, PretrainConfig, origin="test").data.evaluated == ["b", "c"]


def test_a_seed_that_was_drawn_is_kept_and_one_that_is_given_counts_wherever_it_stands(tmp_path):
    overrides = [f"run.root={tmp_path}", "run.name=drawn"]
    drawn = resolve.resolve_run(config(), [*overrides, "run.seed=null"])
    holding.release(str(tmp_path / "drawn"))
    assert resolve.settle(config(), [*overrides, "run.seed=null"]).seed == drawn.seed
    commit(tmp_path / "drawn", step=0)
    open_seed = load.override_config(config(), ["run.seed=null"])
    other = (drawn.seed + 1) % 2**31
    with pytest.raises(errors.RunDirectoryError, match=f"run.seed is {drawn.seed} there and {other} here"):
        resolve.settle(open_seed, [*overrides, f"run.seed={other}"])


def test_fewer_steps_than_the_run_has_taken_are_refused_and_nothing_is_changed(tmp_path):
    overrides = [f"run.root={tmp_path}", "run.name=far"]
    resolve.resolve_run(config(), overrides)
    holding.release(str(tmp_path / "far"))
    commit(tmp_path / "far", step=40)
    with pytest.raises(errors.CheckpointError, match=r"train.total_steps=39 is below step 40, which .*far has reached"):
        resolve.resolve_run(config(), [*overrides, "train.total_steps=39"])
    assert "total_steps: 100" in (tmp_path / "far" / "config.yaml").read_text()
    assert resolve.settle(config(), [*overrides, "train.total_steps=40"]).config.train.total_steps == 40


def test_a_run_that_was_refused_before_it_began_may_be_changed_under_its_name(tmp_path):
    overrides, uri = [f"run.root={tmp_path}", "run.name=early"], str(tmp_path / "early")
    first = resolve.resolve_run(config(), overrides)
    holding.release(uri)
    record.write(uri, record.Preflight(devices=runs.ONE_DEVICE, total_steps=1, batch_size=1, first_step=0))
    with pytest.raises(errors.ConfigError), failure.recorded(uri, where="preflight"):
        raise errors.ConfigError("raise it")
    assert "raise it" in (tmp_path / "early" / "summary.json").read_text()
    second = resolve.resolve_run(config(batch_size=8), overrides)
    holding.release(uri)
    assert sorted(path.name for path in (tmp_path / "early").iterdir()) == ["config.yaml", "records", "run.json"]
    (stage,) = RunDirectory(uri).stages()
    assert (stage.reused, stage.fingerprint) == (False, second.fingerprint)
    assert stage.reason == f"a new run, in the place of run {first.fingerprint}, which was never initialised"
    commit(tmp_path / "early", step=0)
    with pytest.raises(errors.RunDirectoryError, match=r"train.batch_size is 8 there and 32 here"):
        resolve.resolve_run(config(), overrides)


def test_a_run_that_another_process_works_on_is_not_taken_over(tmp_path):
    overrides = [f"run.root={tmp_path}", "run.name=busy"]
    first = resolve.resolve_run(config(), overrides)
    holding.release(first.uri)
    before = (tmp_path / "busy" / "run.json").read_bytes()
    with (
        lock.RunLock(RunDirectory(first.uri).lock_uri, owner="another"),
        pytest.raises(errors.InUseError, match="is held by 'another'"),
    ):
        resolve.resolve_run(config(batch_size=8), overrides)
    assert (tmp_path / "busy" / "run.json").read_bytes() == before


@pytest.mark.parametrize(("vocabulary", "rows"), [({"size": 400}, 512), ({"kind": "bytes", "extra_ids": 125}, 384)])
def test_a_preset_goes_with_a_vocabulary_of_any_size_and_its_rows_are_written_down(tmp_path, vocabulary, rows):
    settings = {
        "run": {"root": str(tmp_path), "name": "rows"},
        "model": {"preset": "t5_1_1_small"},
        "data": {"tasks": [{"name": "one", "builtin": "python_docs"}], "vocabulary": vocabulary},
    }
    run = resolve.resolve_run(load.validate(settings, PretrainConfig, origin="test"), [])
    holding.release(run.uri)
    assert load.load(f"{run.uri}/config.yaml", PretrainConfig) == run.config
    assert run.config.model.vocab_size == rows
