"""The ways to name the checkpoint that a run starts from, and that a run that was begun keeps its own."""

import pytest

from t5core import errors, publishing
from t5core.checkpoints import index
from t5core.config.publish_schema import PublishConfig
from t5core.publishing import Candidate
from t5core.starting import parent_checkpoint
from tests.t5core import small_runs
from tests.t5core.importers import making


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of seven steps with every second one kept."""
    inputs = small_runs.inputs(small_runs.config(tmp_path_factory.mktemp("parent"), run={"name": "parent"}))
    small_runs.train(inputs)
    return inputs.run


def config(parent, checkpoint, *, name="child", data=None, **init_from):
    init = {"checkpoint": str(checkpoint), "step": "restart", **init_from}
    return small_runs.config(parent.config.run.root, run={"name": name, "init_from": init}, data=data)


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


def test_the_parent_s_vocabulary_needs_a_parent(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"kind: parent is that of run.init_from, which is not set"):
        small_runs.config(tmp_path, data={"vocabulary": {"kind": "parent"}})
