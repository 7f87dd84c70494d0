"""Evaluation of a checkpoint: what it covers, where it is written, and what becomes of it when settings change."""

import json
import pathlib
import shutil

import pytest

from t5core.checkpoints import index
from t5core.config.edges import Cursor
from t5core.metrics.writer import read_metrics
from t5core.rundir import RunDirectory
from t5core.stages import evaluate, segment
from tests.t5core import stage_runs

STEPS = {"total_steps": 2, "segment_steps": 2, "eval_period": 1, "batch_size": 4, "weight_metrics": True}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    with stage_runs.settings_put_back():
        inputs = stage_runs.inputs_in(str(tmp_path_factory.mktemp("evaluated")), train=STEPS)
        yield inputs, stage_runs.through_the_stages(inputs)


@pytest.fixture
def copied(evaluated, tmp_path):
    """Returns a copy of the run and a function that evaluates a step of it with other settings of decoding."""
    inputs, _ = evaluated
    shutil.copytree(inputs.run.uri, tmp_path / "run")
    directory = RunDirectory(str(tmp_path / "run"))

    def again(step, **decode):
        config = inputs.run.config
        changed = config.evaluate.decode.model_copy(update=decode)
        config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"decode": changed})})
        run = inputs.run.model_copy(update={"uri": directory.uri, "config": config})
        record = directory.segment(step)
        moved = record.checkpoint.uri.replace(inputs.run.uri, directory.uri)
        record = record.model_copy(update={"checkpoint": record.checkpoint.model_copy(update={"uri": moved})})
        return evaluate.evaluate(inputs.model_copy(update={"run": run}), record)

    return directory, again


def predictions(directory, step):
    return pathlib.Path(directory.predictions_uri("b", step)).read_text()


def test_every_task_and_the_mixture_are_evaluated_each_example_once(evaluated):
    inputs, evaluations = evaluated
    assert list(evaluations) == [1, 2]
    for metrics in evaluations.values():
        assert {name: values["num_examples"] for name, values in metrics.items()} == {"a": 5, "b": 5, "mixture": 10}
        losses = {name: values["loss"] for name, values in metrics.items()}
        assert min(losses["a"], losses["b"]) < losses["mixture"] < max(losses["a"], losses["b"])
        assert "sequence_accuracy" in metrics["b"]
    lines = [json.loads(line) for line in predictions(RunDirectory(inputs.run.uri), 2).splitlines()]
    assert [line["inputs"] for line in lines] == [f"b {i}" for i in range(4)], "as many as the settings ask for"


def test_throughput_is_in_the_files_and_not_among_what_decisions_and_records_hold(evaluated):
    inputs, evaluations = evaluated
    for name in ("a", "b", "mixture"):
        for line in read_metrics(RunDirectory(inputs.run.uri).metrics_uri("training_eval", name)):
            assert line["timing/seqs"] == line["num_examples"]
            assert line["timing/seqs_per_second"] > 0
            assert line["timing/target_tokens_per_second"] > 0
            assert line["timing/seconds_per_step"] > 0
            metrics = evaluations[line.pop("step")][name]
            shared = {key: value for key, value in line.items() if not key.startswith("timing/")}
            assert {key: metrics[key] for key in shared} == shared
            assert not [key for key in metrics if key.startswith("timing/")]


def test_weight_metrics_are_written_where_they_are_asked_for(evaluated):
    inputs, _ = evaluated
    for line in read_metrics(RunDirectory(inputs.run.uri).metrics_uri("train")):
        assert line["weight_gradient_norm"] > 0
        assert line["weight_update_rms/encoder/layers_0/attention/query/kernel"] > 0


def test_the_same_settings_measure_nothing_again(copied):
    directory, again = copied
    shutil.rmtree(directory.checkpoints_uri)
    assert again(2).reused


def test_a_changed_decode_option_counts_on_an_existing_run_and_is_recorded(copied):
    directory, again = copied
    before, texts = directory.evaluation(2), predictions(directory, 2)
    sampled = again(2, strategy="sample", temperature=4.0)
    assert not sampled.reused
    assert predictions(directory, 2) != texts
    assert directory.evaluation(2) == sampled
    assert sampled.settings != before.settings
    assert sampled.metrics["a"] == before.metrics["a"], "which nothing decodes"
    assert again(2, strategy="sample", temperature=4.0).reused
    assert again(2).metrics == before.metrics
    assert predictions(directory, 2) == texts


def test_a_step_whose_checkpoint_is_gone_keeps_what_was_measured(copied, capsys):
    directory, again = copied
    assert index.committed_steps(directory.checkpoints_uri) == (2,), "step 1 only handed over"
    before = directory.evaluation(1)
    assert again(1, strategy="beam") == before.model_copy(update={"reused": True})
    assert "evaluate step 1: its checkpoint is gone, kept as it is" in capsys.readouterr().out
    pathlib.Path(directory.evaluation_uri(1)).unlink()
    assert again(1).metrics == {}
    assert "evaluate step 1: its checkpoint is gone, left out" in capsys.readouterr().out
    assert directory.evaluation(1) is None, "nothing was measured"


def test_what_is_reused_is_recorded_as_such_with_what_it_took(copied):
    directory, again = copied
    before = directory.evaluation(2)
    assert not before.reused
    assert again(2).reused
    assert directory.evaluation(2) == before.model_copy(update={"reused": True})


def test_a_segment_that_is_reused_is_recorded_as_such_with_what_it_took(evaluated, tmp_path):
    inputs, _ = evaluated
    shutil.copytree(inputs.run.uri, tmp_path / "run")
    directory = RunDirectory(str(tmp_path / "run"))
    before = directory.segment(2)
    assert not before.reused
    moved = inputs.model_copy(update={"run": inputs.run.model_copy(update={"uri": directory.uri})})
    again = segment.train_segment(moved, Cursor(checkpoint=before.parent), 2)
    assert again == directory.segment(2) == before.model_copy(update={"reused": True})
