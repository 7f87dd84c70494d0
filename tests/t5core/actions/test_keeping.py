"""Keeping the best checkpoints: which they are, in `train` and between the stages; the newest always stays."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors, training
from t5core.actions import keeping
from t5core.actions.base import BaseAction, EarlyStoppingAction
from t5core.actions.keeping import KeepBestAction
from t5core.checkpoints import index
from t5core.checkpoints.retention import BestBy, RetentionPolicy
from t5core.config import load
from t5core.config.edges import CheckpointRef, DatasetRef, Evaluation, RunInputs, VocabularyRef
from t5core.config.publish_schema import PublishConfig
from t5core.config.schema import PretrainConfig
from t5core.rundir import RunDirectory
from tests.t5core import train_runs
from tests.t5core.checkpoints.states import PROVENANCE, state_at
from tests.t5core.fake_evaluator import FakeEvaluator
from tests.t5core.train_runs import run, saving, steps_saved


class At:
    def __init__(self, step):
        self.step = jnp.int32(step)


def best(action, values):
    stops = [action.run(At(step), {"t": {"loss": value}}) for step, value in enumerate(values, start=1)]
    assert stops == [False] * len(values)
    return dict(action.values)


def test_the_best_are_the_smallest_or_the_largest_and_of_equal_ones_the_later():
    values = [3.0, 1.0, 2.0, 1.0]
    assert best(KeepBestAction(("t", "loss")), values) == {4: 1.0}
    assert best(KeepBestAction(("t", "loss"), keep=2), values) == {4: 1.0, 2: 1.0}
    assert best(KeepBestAction(("t", "loss"), "max", keep=2), values) == {1: 3.0, 3: 2.0}


@pytest.mark.parametrize("number", [np.float32, float, int, jnp.float32, np.array, np.int64])
def test_any_numeric_type_counts(number):
    assert best(KeepBestAction(("t", "loss")), [number(2), number(1), number(3)]) == {2: 1.0}


@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan"), jnp.float32("nan")])
def test_nan_is_never_among_the_best(nan):
    assert best(KeepBestAction(("t", "loss"), keep=3), [nan, 1.0, nan]) == {2: 1.0}


def test_memory_crosses_calls():
    action = KeepBestAction(("t", "loss"), keep=2)
    best(action, [3.0, 1.0, 2.0])
    again = KeepBestAction(("t", "loss"), keep=2)
    again.load_state_dict(action.state_dict())
    again.run(At(9), {"t": {"loss": 1.5}})
    assert dict(again.values) == {2: 1.0, 9: 1.5}


@pytest.mark.parametrize(("mode", "keep"), [("least", 1), ("min", 0)])
def test_impossible_settings_are_refused(mode, keep):
    with pytest.raises(errors.ConfigError, match="keeping the best"):
        KeepBestAction(("t", "loss"), mode, keep)


# In `train`


def evaluating(*actions, **changes):
    return {
        "train_eval_dataset_cfg": train_runs.config("val", split="validation"),
        "actions": {"TRAIN_EVAL": list(actions)},
        "eval_period": 2,
        **changes,
    }


@pytest.mark.parametrize("use_orbax", [False, True])
def test_train_keeps_the_newest_and_the_best_though_it_worsens_all_the_time(tmp_path, use_orbax):
    """The loss falls, so by 'max' step 2 stays the best; cut into calls, the same remain."""
    for name, cuts in {"straight": [10], "cut": [4, 6, 10]}.items():
        for total_steps in cuts:
            worse = KeepBestAction(("first", "loss"), "max")
            cfg = saving(2, keep=1)
            run(tmp_path / name, **evaluating(worse), checkpoint_cfg=cfg, total_steps=total_steps, use_orbax=use_orbax)
        assert list(worse.values) == [2]
        folder = tmp_path / name
        left = list(index.committed_steps(f"{folder}/checkpoints")) if use_orbax else steps_saved(folder)
        assert left == [2, 10]


@pytest.mark.parametrize("use_orbax", [False, True])
def test_when_the_last_is_the_best_no_other_is_left(tmp_path, use_orbax):
    better = KeepBestAction(("first", "loss"))
    run(tmp_path, **evaluating(better), checkpoint_cfg=saving(2, keep=1), total_steps=8, use_orbax=use_orbax)
    assert list(better.values) == [8]
    assert (index.committed_steps(f"{tmp_path}/checkpoints") if use_orbax else tuple(steps_saved(tmp_path))) == (8,)


def test_a_state_that_is_among_the_best_is_saved_off_the_period(tmp_path):
    worse = KeepBestAction(("first", "loss"), "max")
    run(tmp_path, **evaluating(worse), checkpoint_cfg=saving(3, keep=1), total_steps=9)
    assert steps_saved(tmp_path) == [2, 9]


class Rising(BaseAction):
    """Stands beside the action under test and sees the same metrics."""

    def run(self, train_state, metrics_by_task):
        return False


def test_by_several_metrics_of_several_evaluations_each_keeps_its_best(tmp_path):
    loss, accuracy = KeepBestAction(("first", "loss")), KeepBestAction(("first", "loss"), "max")
    decoded = KeepBestAction(("fake", "examples"), "max", keep=2)  # always 9: the later ones
    settings = evaluating(
        infer_eval_dataset_cfg=train_runs.config("val", split="validation"),
        inference_evaluator_cls=FakeEvaluator,
        actions={"TRAIN_EVAL": [loss, Rising(), accuracy], "INFER_EVAL": [decoded]},
    )
    run(tmp_path, **settings, checkpoint_cfg=saving(2, keep=1), total_steps=8)
    assert steps_saved(tmp_path) == [2, 6, 8]


def test_every_multiple_stays_too(tmp_path):
    run(tmp_path, checkpoint_cfg=saving(1, keep=1, keep_period=3), total_steps=7)
    assert steps_saved(tmp_path) == [0, 3, 6, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checkpoint_cfg": saving(2)},
            "has no effect: SaveCheckpointConfig.keep=None keeps all checkpoints; give keep",
        ),
        ({"checkpoint_cfg": train_runs.CheckpointConfig()}, "has no effect: nothing is saved; give keep the number"),
        ({"actions": {"TRAIN": [KeepBestAction(("train", "loss"))]}}, "there are no checkpoints of TRAIN metrics"),
        (
            {"actions": {"TRAIN_EVAL": [KeepBestAction(("first", "los"))]}},
            "unknown metric 'los'; did you mean 'loss'? known: accuracy",
        ),
    ],
)
def test_what_could_keep_nothing_is_refused_before_training(tmp_path, changes, message):
    data = train_runs.Numbers()
    settings = {"checkpoint_cfg": saving(2, keep=1), **evaluating(KeepBestAction(("first", "loss"))), **changes}
    with pytest.raises(errors.ConfigError) as raised:
        run(tmp_path, **settings, get_dataset_fn=lambda *_: data)
    assert message in str(raised.value)
    assert data.taken == []


def test_a_period_without_a_number_to_keep_is_refused():
    with pytest.raises(errors.ConfigError, match="keep_period=3 has no effect: keep=None keeps all; give it a number"):
        saving(2, keep_period=3)


def test_it_stops_nothing_that_others_stop(tmp_path):
    both = evaluating(KeepBestAction(("first", "loss")), EarlyStoppingAction(("first", "loss"), "max", patience=2))
    step, _ = run(tmp_path, **both, checkpoint_cfg=saving(2, keep=1), total_steps=20)
    assert step == 6


# Between the stages


def inputs_with(root, *actions, **train):
    settings = {
        "run": {"root": str(root)},
        "data": {"tasks": [{"name": "docs", "files": ["a.txt"]}]},
        "train": {"actions": [{"name": "keep_best", "task": "docs", **action} for action in actions], **train},
    }
    resolved = load.resolve(load.validate(settings, PretrainConfig, origin="test"))
    dataset = DatasetRef(name="docs", uri="u", fingerprint="f", rows=1, reused=False, reason="")
    vocabulary = VocabularyRef(uri="u", kind="bytes", extra_ids=0, size=1, fingerprint="f")
    return RunInputs(run=resolved, vocabulary=vocabulary, tasks=[dataset], mixture=dataset)


def evaluate(directory, step, **figures):
    reference = CheckpointRef(uri=f"c/{step}", step=step, digest="d")
    directory.write_evaluation(
        Evaluation(step=step, checkpoint=reference, metrics={"docs": figures}, seconds=1, reused=False, uri="e")
    )


def test_the_configuration_says_what_is_kept(tmp_path):
    inputs = inputs_with(
        tmp_path, {}, {"metric": "accuracy", "mode": "max", "keep": 2}, keep_period=500, keep_checkpoints=4
    )
    assert keeping.policy_of(inputs.run.config.train) == RetentionPolicy(
        keep=4,
        checkpoint_period=250,
        keep_period=500,
        best=(BestBy(metric="docs/loss"), BestBy(metric="docs/accuracy", mode="max", count=2)),
    )


def test_what_is_to_be_published_is_kept(tmp_path):
    train = inputs_with(tmp_path, {}).run.config.train
    others = keeping.policy_of(train).best
    new = PublishConfig(name="best", task="docs", metric="accuracy", mode="max")
    assert keeping.policy_of(train, new).best == (*others, BestBy(metric="docs/accuracy", mode="max"))
    same = PublishConfig(name="best", task="docs")
    assert keeping.policy_of(train, same).best == others, "one rule is enough"


def test_the_last_good_checkpoint_survives_a_nan_though_one_is_kept(tmp_path):
    """The state of step 3 is NaN, which is known only when the evaluation after its segment has been made."""
    inputs = inputs_with(tmp_path, {"name": "terminate_on_nan"}, keep_checkpoints=1, checkpoint_period=1)
    directory = RunDirectory(inputs.run.uri)
    left = []
    for step, loss in enumerate((2.0, 1.0, float("nan")), start=1):
        with training._open_store(inputs, directory) as store:
            store.save(step, state_at(step), PROVENANCE)
        left.append(index.committed_steps(directory.checkpoints_uri))
        evaluate(directory, step, loss=loss)
    assert left == [(1,), (1, 2), (2, 3)]


def test_a_segment_s_store_goes_by_the_recorded_evaluations(tmp_path):
    """Each step is evaluated by a later task than the one that saved it; the loss gets worse all the time."""
    inputs = inputs_with(tmp_path, {"keep": 2}, keep_checkpoints=1, checkpoint_period=1)
    directory = RunDirectory(inputs.run.uri)
    for step in range(1, 6):
        with training._open_store(inputs, directory) as store:
            store.save(step, state_at(step), PROVENANCE)
        assert index.latest(directory.checkpoints_uri) == step
        evaluate(directory, step, loss=float(step))
    assert index.committed_steps(directory.checkpoints_uri) == (1, 2, 5)
