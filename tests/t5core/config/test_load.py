"""Configuration: precedence, errors that name the nearest key, and identity."""

import pytest

from t5core import errors
from t5core.config import load, yaml_text
from t5core.config.schema import PretrainConfig

MINIMAL = {"data": {"tasks": [{"name": "mine", "files": ["a.txt"]}]}}


def configured(*overrides):
    return load.override_config(load.validate(MINIMAL, PretrainConfig, origin="test"), overrides)


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("data: {tasks: [{name: mine, files: [a.txt]}]}\ntrain: {total_steps: 7, batch_size: 6}\n")
    config = load.load(str(file), PretrainConfig, ["train.total_steps=9", "data.tasks.0.rate=0.5"])
    assert (config.train.total_steps, config.train.batch_size, config.train.segment_steps) == (9, 6, 250)
    assert config.data.tasks[0].rate == 0.5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.total_step=3",
            "overrides: unknown key 'train.total_step' (value 3); did you mean 'train.total_steps'?",
        ),
        ("train_steps.x=3", "unknown key 'train_steps' (value {'x': 3}); did you mean"),
        ("total_steps=3", "did you mean 'train.total_steps'?"),
        ("train.total_steps=0", "train.total_steps=0 is not valid: Input should be greater than 0"),
        ("train.total_steps=many", "train.total_steps='many' is not valid: Input should be a valid integer"),
        ("model.preset=t5_1_1_smal", "unknown model.preset 't5_1_1_smal'; did you mean 't5_1_1_small'?"),
        ("train.batch_size", "override 'train.batch_size' is not of the form section.key=value"),
        ("data.tasks.3.rate=1", "override 'data.tasks.3.rate=1': '3' is no index into 1 entries; count from 0"),
        ("train.total_steps.x=1", "goes below a plain value; shorten the key"),
        ("train.num_microbatches=5", "batch_size=32 does not divide into 5 micro-batches"),
        ("data.tasks.0.rate=.nan", "data.tasks.0.rate=nan is not valid"),
        ("data.tasks.0.rate=-1", "data.tasks.0.rate=-1 is not valid"),
        ("data.tasks.0.rate=0", "every task has rate 0; give at least one a rate above 0"),
        ("data.feature_lengths={inputs: 4}", "feature_lengths has no 'targets'; add it, in tokens"),
        ("train.loss.loss_normalizing_factor=0", "train.loss.loss_normalizing_factor.constrained-float=0 is not valid"),
        ("train.loss.loss_normalizing_factor=.inf", "is not valid: Input should be a finite number"),
        ("train.loss.z_loss=.inf", "train.loss.z_loss=inf is not valid: Input should be a finite number"),
        ("train.learning_rate.min_learning_rate=.inf", "Input should be a finite number"),
        ("train.optimizer.clip_global_norm=.inf", "Input should be a finite number"),
        ("train.keep_checkpoints=yes", "overrides: train: keep_checkpoints=true is no number; give one"),
        ("run.seed=no", "overrides: run: seed=false is no number; give one"),
        ("train.batch_size=99999999999999", "Input should be less than 2147483648"),
        ("model.vocab_size=99999999999", "Input should be less than 2147483648"),
        ("model.mlp_activations=[]", "should have at least 1 item"),
        ("run.root=''", "run.root: '' names no folder; give one, or a gs:// prefix"),
        ('run.root="a\\0b"', "names no folder"),
        ("run.root=file:///runs", "run.root: 'file:///runs' is no place for runs; give a folder, or a prefix as gs://"),
        ("run.root=gs://", "run.root: 'gs://' is no place for runs"),
        ("data.tasks.\u00b2.rate=1", "'\u00b2' is no index into 1 entries; count from 0"),
        ("data.tasks.0.name='..'", "'..' cannot name a task; use letters, digits, '.', ':', '_' and '-'"),
        ("data.vocabulary={kind: bytes, size: 5}", "size=5 has no effect on a vocabulary of bytes; remove it, or kind"),
        ("data.vocabulary={kind: bytes, path: v.model}", "path=v.model has no effect on a vocabulary of bytes"),
        (
            "data.vocabulary={path: v.model, size: 5}",
            "size=5 has no effect on a vocabulary that is there; remove it, or",
        ),
        ("evaluate.decode={strategy: sample, topk: 99999999999999}", "Input should be less than 2147483648"),
        ("run.name=../up", "'../up' cannot name a folder; use letters, digits, '.', '_' and '-'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(override, message):
    with pytest.raises(errors.ConfigError) as caught:
        configured(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_action_on_an_unknown_task_names_the_nearest():
    with pytest.raises(errors.ConfigError, match="unknown task 'mien'; did you mean 'mine'"):
        configured("train.actions=[{name: terminate_on_nan, task: mien}]")


def test_numbers_keep_their_type_and_value():
    config = configured("train.learning_rate.base_learning_rate=1e-05", f"run.seed={2**31 - 1}")
    assert config.train.learning_rate.base_learning_rate == 1e-05
    assert config.run.seed == 2**31 - 1
    arguments = configured("train.optimizer.arguments={epsilon1: 1e-5, step_offset: 3}").train.optimizer.arguments
    assert arguments == {"epsilon1": 1e-5, "step_offset": 3}
    assert isinstance(arguments["step_offset"], int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "file.yaml is not valid YAML at line 1"),
        ("a: " + "[" * 3000 + "]" * 3000, "file.yaml is nested too deeply for a configuration; mend it there"),
        ("a: &a {x: 1}\nb: {<<: *a, y: 1, y: 2}\n", "file.yaml: key 'y' stands twice at line 2; keep one"),
        ("a: 1\nb: 2\na: 3\n", "file.yaml: key 'a' stands twice at line 1; keep one"),
    ],
)
def test_broken_yaml_names_the_file_and_line(text, message):
    with pytest.raises(errors.ConfigError, match=r"file\.yaml") as caught:
        yaml_text.parse(text, origin="file.yaml")
    assert message in str(caught.value)


def test_sections_may_be_merged_and_what_stands_there_wins():
    merged = yaml_text.parse("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n", origin="x")
    assert merged["b"] == {"x": 1, "y": 3}


def test_a_truth_is_still_one_where_numbers_may_stand_too():
    assert configured("train.optimizer.arguments={factored: false}").train.optimizer.arguments == {"factored": False}


def test_a_missing_file_is_named():
    with pytest.raises(errors.ConfigError, match=r"cannot read the config 'nowhere.yaml': No such file"):
        load.load("nowhere.yaml", PretrainConfig)


STARTED = """
run: {init_from: {checkpoint: runs/demo/checkpoints/20}}
data: {tasks: [{name: docs, builtin: python_docs}]}
train: {total_steps: 20}
"""


@pytest.fixture
def started(tmp_path):
    """A file that is wrong by itself: it ends at the step at which it starts."""
    (tmp_path / "mine.yaml").write_text(STARTED)
    return str(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "override", ["train.total_steps=60", "run.init_from.step=restart", "run.init_from=null", "train={total_steps: 60}"]
)
def test_overrides_mend_what_is_wrong_without_them(started, override):
    lengths = "data.feature_lengths.inputs=64"
    config = load.load(started, PretrainConfig, [override, lengths])
    assert config.data.feature_lengths == {"inputs": 64, "targets": 128}
    mended = load.load(started, PretrainConfig, ["train.total_steps=60", "train.total_steps=20", override])
    assert mended == load.override_config(config, ["data.feature_lengths.inputs=128"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.passes=2", "FILE: train.total_steps=20 is not above step 20"),
        ("train.total_steps=15", "FILE with overrides: train.total_steps=15 is not above step 20"),
        ("train.total_step=60", "FILE with overrides: unknown key 'train.total_step' (value 60)"),
        ("train.total_steps", "override 'train.total_steps' is not of the form section.key=value"),
        ("train.total_steps.x=60", "override 'train.total_steps.x=60' goes below a plain value"),
    ],
)
def test_what_overrides_do_not_mend_names_where_it_comes_from(started, override, message):
    with pytest.raises(errors.ConfigError) as caught:
        load.load(started, PretrainConfig, [override])
    assert str(caught.value).startswith(message.replace("FILE", started))
    assert "\n" not in str(caught.value)


def test_a_resolved_config_survives_its_own_yaml():
    resolved = load.resolve(configured("run.seed=null"))
    text = yaml_text.dump(resolved.config.model_dump(mode="json"))
    again = load.validate(yaml_text.parse(text, origin="x"), PretrainConfig, origin="x")
    assert again == resolved.config
    assert again.run.seed is not None


def test_identity_follows_what_decides_the_bits_and_nothing_else():
    base = load.identity(configured())
    cut_and_kept = ("train.total_steps=5", "train.segment_steps=3", "run.name=other", "train.keep_checkpoints=1")
    for free in (*cut_and_kept, "data.workers=3", "data.shares=3"):
        assert load.identity(configured(free)) == base, free
    for bound in ("run.seed=1", "train.batch_size=16", "model.emb_dim=64", "data.passes=2", "train.loss.z_loss=0"):
        assert load.identity(configured(bound)) != base, bound
