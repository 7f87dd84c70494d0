"""The ways to name the checkpoint that a run starts from, and that a run that was begun keeps its own."""

import shutil

import pytest

from t5core import errors, publishing
from t5core.checkpoints import index
from t5core.config import load
from t5core.config.publish_schema import PublishConfig
from t5core.config.schema import ModelConfig, PretrainConfig
from t5core.importers import contents, t5x
from t5core.publishing import Candidate
from t5core.stages import resolve
from t5core.starting import parent_checkpoint, parent_model
from tests.t5core import small_runs, tiny
from tests.t5core.importers import making


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of seven steps with every second one kept."""
    inputs = small_runs.inputs(small_runs.config(tmp_path_factory.mktemp("parent"), run={"name": "parent"}))
    small_runs.train(inputs)
    return inputs.run


def config(parent, checkpoint, *, name="child", data=None, model=None, **init_from):
    """Returns the settings of a run that starts from a checkpoint; `model` in the place of the small one."""
    init = {"checkpoint": str(checkpoint), "step": "restart", **init_from}
    settings = small_runs.config(parent.config.run.root, run={"name": name, "init_from": init}, data=data)
    if model is None:
        return settings
    return load.validate(settings.model_dump(mode="json") | {"model": model}, PretrainConfig, origin="test")


def start_of(settings):
    return parent_checkpoint.settled(settings).run.init_from.checkpoint


def publish(parent, name, step, *, value):
    checkpoint = index.reference(f"{parent.uri}/checkpoints", step)
    what = Candidate(run_name="parent", run_uri=parent.uri, checkpoint=checkpoint, value=value, measured_on="x")
    rule = PublishConfig(name=name, task="a")
    assert publishing.publish_if_better(rule, what, root=parent.config.run.root).outcome == "published"


def test_a_run_leads_to_its_last_checkpoint_and_a_step_to_itself(parent):
    assert start_of(config(parent, parent.uri)) == f"{parent.uri}/checkpoints/7"
    assert start_of(config(parent, f"{parent.uri}/checkpoints/4/")) == f"{parent.uri}/checkpoints/4"
    assert start_of(config(parent, making.T5X)) == str(making.T5X), "T5X's own steps need no import"


def test_without_a_checkpoint_nothing_changes(parent):
    settings = small_runs.config(parent.config.run.root)
    assert parent_checkpoint.settled(settings) is settings


def test_a_published_name_leads_to_what_has_it_when_the_run_begins(parent):
    publish(parent, "moving", 4, value=3.0)
    first = config(parent, "published:moving", name="first")
    assert start_of(first) == f"{parent.uri}/checkpoints/4"
    claimed = small_runs.inputs(parent_checkpoint.settled(first))
    publish(parent, "moving", 2, value=2.5)
    assert start_of(first) == f"{parent.uri}/checkpoints/2", "claimed only, by a start that came to nothing"
    publish(parent, "moving", 4, value=2.25)
    small_runs.begin(claimed)
    publish(parent, "moving", 6, value=2.0)
    assert start_of(first) == f"{parent.uri}/checkpoints/4", "begun with that"
    assert start_of(config(parent, "published:moving", name="second")) == f"{parent.uri}/checkpoints/6"


def test_a_run_that_was_begun_keeps_its_step_though_the_other_run_went_on(parent):
    settled = parent_checkpoint.settled(config(parent, f"{parent.uri}/checkpoints/4", name="early"))
    small_runs.begin(small_runs.inputs(settled))
    assert start_of(config(parent, parent.uri, name="early")) == f"{parent.uri}/checkpoints/4"
    assert start_of(config(parent, making.T5X, name="early")) == str(making.T5X), "which cannot mean step 4"


def test_the_step_that_is_found_has_to_be_below_the_last(parent):
    with pytest.raises(errors.ConfigError, match=r"train.total_steps=7 is not above step 7") as failure:
        parent_checkpoint.settled(config(parent, parent.uri, step="keep"))
    assert "\n" not in str(failure.value)


def test_the_vocabulary_is_the_one_that_the_checkpoint_was_trained_with(parent):
    settled = parent_checkpoint.settled(config(parent, parent.uri, data={"vocabulary": {"kind": "parent"}}))
    vocabulary = settled.data.vocabulary
    assert (vocabulary.kind, vocabulary.path, vocabulary.extra_ids) == ("bytes", None, 0)


def test_a_checkpoint_that_does_not_know_its_vocabulary_is_refused(parent):
    settings = config(parent, making.T5X, data={"vocabulary": {"kind": "parent"}})
    with pytest.raises(errors.CheckpointError, match="does not say which vocabulary it was trained with; name its"):
        parent_checkpoint.settled(settings)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere", r"run.init_from.checkpoint='nowhere' does not exist; .*`make pretrain` trains runs/demo"),
        ("published:nothing", "run.init_from.checkpoint: unknown published name 'nothing'"),
        (making.HUGGINGFACE, "is a model of Hugging Face; workflows/finetune.py imports it"),
    ],
)
def test_what_is_no_checkpoint_is_told_with_what_to_do(parent, spec, message):
    with pytest.raises(errors.CheckpointError, match=message) as failure:
        parent_checkpoint.settled(config(parent, spec))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"kind": "parent", "path": "x.model"}, "path=x.model has no effect on the vocabulary of the parent"),
        ({"kind": "parent", "extra_ids": 0}, "extra_ids=0 has no effect on the vocabulary of the parent"),
    ],
)
def test_a_setting_of_another_vocabulary_is_refused(parent, vocabulary, message):
    with pytest.raises(errors.ConfigError, match=message):
        config(parent, parent.uri, data={"vocabulary": vocabulary})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"vocabulary": {"kind": "parent"}}}, r"data.vocabulary.kind: parent is that of run.init_from, which"),
        ({"model": {"preset": "parent"}}, r"model.preset: parent is that of run.init_from, which is not set; set it"),
    ],
)
def test_what_is_the_parent_s_needs_a_parent(tmp_path, settings, message):
    with pytest.raises(errors.ConfigError, match=message) as failure:
        small_runs.config(tmp_path, **settings)
    assert "\n" not in str(failure.value)


def test_the_model_is_that_of_the_checkpoint_and_the_rest_is_the_run_s_own(parent):
    own = {"preset": "parent", "dropout_rate": 0.25, "dtype": "bfloat16", "scan_layers": True, "remat_policy": "full"}
    model = parent_checkpoint.settled(config(parent, parent.uri, model=own)).model
    assert model.architecture() == parent.config.model.architecture()
    assert None not in [getattr(model, name) for name in ("vocab_size", "emb_dim", "mlp_activations", "family")]
    assert {name: getattr(model, name) for name in own} == {**own, "preset": "t5_1_1_tiny"}
    resolved = resolve.settle(config(parent, parent.uri, model={"preset": "parent"}), [])
    assert resolved == resolve.settle(resolved.config, []), "what is written down says the same"


@pytest.mark.parametrize(("name", "value"), [("emb_dim", 16), ("vocab_size", 512), ("mlp_activations", ["relu"])])
def test_dimensions_beside_those_of_the_parent_have_to_be_the_same(parent, name, value):
    there = getattr(parent.config.model.architecture(), name)
    same = list(there) if isinstance(there, tuple) else there
    parent_checkpoint.settled(config(parent, parent.uri, model={"preset": "parent", name: same}))
    with pytest.raises(errors.ConfigError) as failure:
        parent_checkpoint.settled(config(parent, parent.uri, model={"preset": "parent", name: value}))
    told = f"model.{name}={value} contradicts model.preset: parent, whose checkpoint has {same}; remove it"
    assert str(failure.value) == told


def test_a_checkpoint_without_a_word_of_its_model_is_told_by_its_shapes(parent, tmp_path, capsys):
    there = making.architecture(
        logits_via_embedding=True, mlp_activations=("relu",), relative_position_bias="per_layer"
    )
    place = t5x.write(str(tmp_path), making.made(step=3, **there.model_dump()))
    model = parent_checkpoint.settled(config(parent, place, model={"preset": "parent"})).model
    assert model.architecture() == there
    told = "mlp_activations=['relu'] and relative_attention_max_distance=128 are those of the published models"
    assert told in capsys.readouterr().out


def test_a_published_size_keeps_its_name():
    model = ModelConfig(preset="byt5_small", vocab_size=512)
    for there in (model, contents.model_config(model.architecture())):
        found = parent_model.settings(ModelConfig(preset="parent"), there)
        assert found["preset"] == "byt5_small"
        assert ModelConfig.model_validate(found).architecture() == model.architecture()


def test_a_prefix_model_stays_one():
    there = ModelConfig(family="decoder_only", inputs_bidirectional_attention=True)
    found = parent_model.settings(ModelConfig(preset="parent"), there)
    assert found["inputs_bidirectional_attention"]
    assert ModelConfig.model_validate(found).architecture() == there.architecture()


def test_the_rows_of_the_parent_come_with_its_vocabulary(parent):
    smaller = {**tiny.SIZES, "vocab_size": None}
    settings = config(parent, parent.uri, data={"vocabulary": {"kind": "parent"}}, model=smaller)
    assert parent_checkpoint.settled(settings).model.vocab_size == 1024, "and not the 384 that it has use for"
    assert parent_checkpoint.settled(config(parent, parent.uri, model=smaller)).model.vocab_size is None


def test_a_run_that_was_begun_needs_its_parent_no_more_to_know_its_model(tmp_path):
    there = small_runs.inputs(small_runs.config(tmp_path, run={"name": "parent"}))
    small_runs.begin(there)
    place = f"{there.run.uri}/checkpoints/0"
    settings = config(there.run, place, model={"preset": "parent"})
    begun = resolve.settle(settings, [])
    small_runs.begin(small_runs.inputs(begun.config))
    shutil.rmtree(there.run.uri)
    assert resolve.settle(settings, []) == begun
    with pytest.raises(errors.CheckpointError, match="is no checkpoint"):
        resolve.settle(config(there.run, place, name="late", model={"preset": "parent"}), [])
