"""`train` and the stages of a run are the same code: one and the other end in the same bits."""

import functools
import json
import pathlib
import shutil

import pytest

from t5core import build
from t5core.actions.base import EarlyStoppingAction
from t5core.checkpoint_config import CheckpointConfig, SaveCheckpointConfig
from t5core.checkpoints import index
from t5core.config.edges import RunInputs
from t5core.dataset_config import DatasetConfig
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.rundir import RunDirectory
from t5core.train import train
from t5core.trainer import Trainer
from tests.t5core.stage_runs import LENGTHS, inputs_in, settings_put_back, through_the_stages

OF_DECODED = ("sequence_accuracy", "length_limit_fraction")


@functools.cache
def _our_trainer(inputs_json, **arguments):
    settings = RunInputs.model_validate_json(inputs_json).run.config.train
    return Trainer(
        optimizer=build_optimizer(settings.optimizer),
        learning_rate_fn=learning_rate_schedule(settings.learning_rate),
        **arguments,
    )


def our_trainer(inputs, **arguments):
    """Returns a trainer of our own, not the one of the stages, compiled once."""
    return _our_trainer(inputs.model_dump_json(), **arguments)


def through_train(inputs, model_dir, *, total_steps=10):
    settings, trainer = inputs.run.config.train, build.trainer_of(inputs)
    of_training = {"split": "train", "task_feature_lengths": LENGTHS, "batch_size": 4, "shuffle": True, "seed": None}
    of_evaluation = {**of_training, "split": "validation", "shuffle": False}
    return train(
        model=trainer.model,
        train_dataset_cfg=DatasetConfig(mixture_or_task_name=inputs.mixture.uri, pack=True, **of_training),
        train_eval_dataset_cfg=DatasetConfig(mixture_or_task_name=[t.uri for t in inputs.tasks], **of_evaluation),
        infer_eval_dataset_cfg=None,
        checkpoint_cfg=CheckpointConfig(save=SaveCheckpointConfig(period=settings.checkpoint_period)),
        partitioner=trainer.partitioner,
        trainer_cls=functools.partial(our_trainer, inputs),
        model_dir=model_dir,
        total_steps=total_steps,
        eval_steps=100,
        eval_period=settings.eval_period,
        stats_period=settings.stats_period,
        random_seed=inputs.run.seed,
        summarize_config_fn=lambda model_dir, writer, step: None,
        actions={"TRAIN_EVAL": [EarlyStoppingAction(("a", "loss"), "min", patience=3)]},
        use_orbax=True,
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    root = tmp_path_factory.mktemp("both")
    with settings_put_back():
        inputs = inputs_in(str(root))
        evaluations = through_the_stages(inputs)
        step, _ = through_train(inputs, str(root / "train"))
    assert step == 10
    return inputs, evaluations, root / "train"


def lines(file):
    return [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()]


def test_the_bits_of_every_common_checkpoint_are_the_same(both):
    inputs, _, model_dir = both
    folders = (f"{inputs.run.uri}/checkpoints", f"{model_dir}/checkpoints")
    common = set(index.committed_steps(folders[0])) & set(index.committed_steps(folders[1]))
    assert common >= {3, 6, 9, 10}
    for step in common:
        one, other = (index.read_record(folder, step) for folder in folders)
        assert one.digest == other.digest
        assert one.provenance.dataset_fingerprint == other.provenance.dataset_fingerprint


def test_the_stages_evaluate_and_save_where_the_periods_say_though_segments_end_elsewhere(both):
    inputs, evaluations, model_dir = both
    assert list(evaluations) == [4, 8, 10]
    assert list(index.committed_steps(f"{inputs.run.uri}/checkpoints")) == [3, 4, 6, 9, 10], "4 is the best of b"
    assert list(index.committed_steps(f"{model_dir}/checkpoints")) == [0, 3, 6, 9, 10]
    for name in ("a", "mixture"):
        steps = [line["step"] for line in lines(f"{inputs.run.uri}/metrics/training_eval/{name}/metrics.jsonl")]
        assert steps == [4, 8, 10], "once each"


def test_the_stages_keep_the_best_and_count_what_was_trained_on(both):
    """The loss of b falls, so by `max` the first evaluated step stays the best."""
    inputs, evaluations, model_dir = both
    assert evaluations[4]["b"]["loss"] > evaluations[10]["b"]["loss"]
    cursors = RunDirectory(inputs.run.uri).cursors()
    assert [cursor.checkpoint.step for cursor in cursors] == [4, 5, 8, 10]
    trained = lines(model_dir / "train" / "metrics.jsonl")
    tokens = [round(line["timing/seconds"] * line["timing/target_tokens_per_second"]) for line in trained]
    assert cursors[-1].action_state["3-budget"]["target_tokens"] == sum(tokens) > 0


def test_training_reports_the_same_figures(both):
    inputs, _, model_dir = both
    ours, theirs = (lines(folder) for folder in (f"{model_dir}/train/metrics.jsonl", _train_metrics(inputs)))
    by_step = {line["step"]: line for line in theirs}
    compared = [line for line in ours if line["step"] in by_step and line["timing/seqs"] == _seqs(by_step, line)]
    assert len(compared) >= 3
    assert ["timing/compilation_seconds" in line for line in ours] == [True] + [False] * (len(ours) - 1)
    for line in compared:
        for name in ("loss", "accuracy", "z_loss", "learning_rate", "non_padding_fraction/encoder"):
            assert line[name] == by_step[line["step"]][name], (line["step"], name)


def _train_metrics(inputs):
    return f"{inputs.run.uri}/metrics/train/metrics.jsonl"


def _seqs(by_step, line):
    return by_step[line["step"]]["timing/seqs"]


def test_evaluations_give_the_same_figures_and_the_mixture_those_of_its_tasks(both):
    _, evaluations, model_dir = both
    assert {path.name for path in (model_dir / "training_eval").iterdir()} == {"a", "b", "a+b"}
    for name, folder, examples in (("a", "a", 5), ("b", "b", 5), ("mixture", "a+b", 10)):
        for line in lines(model_dir / "training_eval" / folder / "metrics.jsonl"):
            measured = evaluations[line["step"]][name].items()
            expected = {metric: value for metric, value in measured if metric not in OF_DECODED}
            assert {metric: line[metric] for metric in expected} == expected
            assert line["num_examples"] == examples
    for line in lines(model_dir / "training_eval/a+b/metrics.jsonl"):
        losses = [evaluations[line["step"]][task]["loss"] for task in ("a", "b")]
        assert min(losses) < line["loss"] < max(losses)


def test_train_goes_on_in_the_directory_of_the_stages(both, tmp_path):
    inputs, _, model_dir = both
    digests = []
    for folder in (inputs.run.uri, model_dir):
        with settings_put_back():
            shutil.copytree(folder, tmp_path / "copy")
            step, _ = through_train(inputs, str(tmp_path / "copy"), total_steps=12)
        assert step == 12
        digests.append(index.read_record(f"{tmp_path}/copy/checkpoints", 12).digest)
        shutil.rmtree(tmp_path / "copy")
    assert digests[0] == digests[1]
