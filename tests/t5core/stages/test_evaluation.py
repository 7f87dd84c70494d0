"""Evaluation of a run's checkpoints: which, with what, never twice the same, and one table of all."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import sys

import pytest

from t5core import errors, records, storage
from t5core.config import load
from t5core.config.edges import Evaluation
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.data.vocabulary import ByteVocabulary
from t5core.evaluation import identity
from t5core.importers.__main__ import main
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import evaluate, evaluation, holding
from tests.t5core import small_runs, trained_runs
from tests.t5core.data import making
from tests.t5core.importers.making import T5X, architecture, made, saved


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_runs.trained(tmp_path_factory.mktemp("evaluation") / "runs")


@pytest.fixture
def copied(trained, tmp_path):
    """The trained run below a root of this test's own."""
    root = tmp_path / "runs"
    shutil.copytree(RunDirectory(trained.run.uri).uri, root / "demo")
    return root


def settled(root, *overrides):
    plan = evaluation.settle(EvaluationConfig(), [f"run.root={root}", f"checkpoint={root}/demo", *overrides])
    holding.release(plan.uri)
    return plan


def evaluated(plan, *datasets):
    """Evaluates every checkpoint of a plan; returns the results by step."""
    with small_runs.settings_put_back():
        requests = evaluation.evaluation_requests(plan, datasets)
        return {request.checkpoint.step: evaluation.evaluate_checkpoint(request) for request in requests}


def told(results):
    return {step: (result.evaluation.reused, result.reason) for step, result in results.items()}


def test_a_run_directory_stands_for_all_of_its_checkpoints(copied):
    plan = settled(copied)
    assert [checkpoint.step for checkpoint in plan.checkpoints] == [2, 4]
    assert (plan.uri, plan.trained) == (f"{copied}/evaluate", f"{copied}/demo")
    assert plan.vocabulary.fingerprint == ByteVocabulary(extra_ids=0).fingerprint
    assert [checkpoint.step for checkpoint in settled(copied, "steps=[4, 2]").checkpoints] == [2, 4]
    assert [c.step for c in settled(copied, f"checkpoint={copied}/demo/checkpoints/2").checkpoints] == [2]


def test_model_seed_and_tasks_are_those_of_the_run_unless_given(trained, copied):
    own, plan = trained.run.config, settled(copied)
    assert (plan.run.config.model, plan.run.config.data, plan.run.seed) == (own.model, own.data, 5)
    assert plan.run.config.evaluate == own.evaluate
    other = settled(
        copied, "tasks=[{name: b, files: [b.tsv], objective: supervised}]", "evaluate={batch_size: 8}", "run.name=other"
    )
    assert [task.name for task in other.run.config.data.tasks] == ["b"]
    assert (other.run.config.evaluate.batch_size, other.uri) == (8, f"{copied}/other")
    assert [request.task for request in evaluation.dataset_requests(other)] == ["b"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["steps=[2, 3]"], "has no checkpoint of step 3; committed: 2, 4"),
        (["checkpoint={root}/demo/checkpoints/2", "steps=[2]"], "steps=[2] has no effect on checkpoint="),
        (["checkpoint={root}/nothing"], "does not exist; name a run directory, the folder of one step, or published"),
        (["steps=[]"], "steps is empty, and there is nothing to evaluate; leave it out for every checkpoint"),
        (["tasks=[]"], "tasks is empty, and there is nothing to evaluate on; leave it out for those of the run"),
        (["module=my.tasks"], "module='my.tasks' has no effect without tasks; name them, or remove it"),
        (["tasks=[{name: b, files: ['{date}.tsv']}]"], "takes the day of a tick, and this run is no tick"),
        (["tasks=[{name: b, files: [b.txt], objective: lm}]"], "has objective 'lm', which gives an encoder no inputs"),
        (["run.name=demo"], "/demo is not empty (checkpoints, config.yaml, "),
        (["evaluat.batch_size=2"], "unknown key 'evaluat'"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(copied, overrides, message):
    with pytest.raises(errors.UserError) as refusal:
        settled(copied, *(override.replace("{root}", str(copied)) for override in overrides))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_a_demo_run_it_says_what_makes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.CheckpointError, match=r"checkpoint='runs/demo' does not exist; .*`make pretrain`"):
        evaluation.settle(EvaluationConfig(), [])


TOLD = {
    "vocabulary": "{kind: bytes, extra_ids: 0}",
    "feature_lengths": "{inputs: 12, targets: 8}",
    "tasks": "[{name: a, files: [x.tsv], objective: supervised}]",
}


@pytest.fixture
def lonely(copied, tmp_path):
    """The checkpoints of the trained run in a folder that is no run's; and what has to be told of them."""
    shutil.move(copied / "demo" / "checkpoints", tmp_path / "lonely")
    model = load.read_file(f"{copied}/demo/config.yaml")["model"]
    return tmp_path / "lonely", {"model": json.dumps(model), **TOLD}


def overrides_of(told, checkpoint):
    return [f"checkpoint={checkpoint}", *(f"{setting}={value}" for setting, value in told.items())]


def test_checkpoints_in_no_run_are_evaluated_once_they_are_told_what_a_run_would_say(copied, lonely):
    dataset, (folder, said) = trained_runs.dataset(copied), lonely
    plan = settled(copied, *overrides_of(said, folder))
    assert ([c.step for c in plan.checkpoints], plan.trained) == ([2, 4], str(folder))
    found = evaluated(plan, dataset)
    shutil.copytree(folder, copied / "demo" / "checkpoints")
    of_run = evaluated(settled(copied, "run.name=of-run"), dataset)
    assert set(told(of_run).values()) == {(True, "same checkpoint, data, settings and code")}
    assert of_run[4].evaluation.metrics == found[4].evaluation.metrics
    summary, page = evaluation.tabulate(plan, list(found.values()))
    assert f"2 checkpoints of {folder}" in page
    assert summary.status == "completed"
    one = settled(copied, *overrides_of(said, f"{folder}/4"), "run.name=one")
    assert set(told(evaluated(one, dataset)).values()) == {(True, "same checkpoint, data, settings and code")}


def test_an_imported_checkpoint_says_which_model_it_is_of(tmp_path):
    folder = tmp_path / "imported"
    main(["import", str(saved(tmp_path / "hf", made(vocab_size=1024))), str(folder)])
    plan = settled(tmp_path / "runs", *overrides_of(TOLD, folder))
    assert plan.run.config.model.architecture() == architecture(vocab_size=1024)
    found = evaluated(plan, trained_runs.dataset(tmp_path / "runs"))
    assert found[0].evaluation.metrics["a"]["loss"] > 0


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model", "lies in no run's directory that tells it; give the settings of its model, such as {preset:"),
        (
            "vocabulary",
            "lies in no run's directory that tells it; give vocabulary.path, its .model file, and vocabulary.e",
        ),
        ("feature_lengths", "lies in no run's directory that tells it; give the longest inputs and targets in tokens"),
        ("tasks", "lies in no run's directory, whose tasks they would be; name those to evaluate on"),
    ],
)
def test_what_a_checkpoint_in_no_run_does_not_tell_has_to_be_given(copied, lonely, missing, message):
    folder, said = lonely
    del said[missing]
    with pytest.raises(
        errors.ConfigError, match=f"^{missing} is missing, and {folder}/4 {re.escape(message)}"
    ) as refused:
        settled(copied, *overrides_of(said, folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("vocabulary", "{kind: bytes, extra_ids: 3}", "was trained with vocabulary "),
        ("model", "{preset: t5_1_1_tiny}", "has no "),
        ("feature_lengths", "{targets: 8}", "feature_lengths has no 'inputs', which an encoder-decoder reads"),
    ],
)
def test_what_is_told_of_a_checkpoint_has_to_fit_it(copied, lonely, setting, value, message):
    folder, said = lonely
    with pytest.raises(errors.UserError, match=message):
        settled(copied, *overrides_of({**said, setting: value}, folder))


def test_other_software_s_checkpoints_are_converted_first(tmp_path):
    for place, what in ((saved(tmp_path / "hf"), "a model of Hugging Face"), (T5X, "a checkpoint of T5X")):
        with pytest.raises(errors.CheckpointError, match=f"is {what}; convert it first"):
            settled(tmp_path / "runs", f"checkpoint={place}")


def test_another_vocabulary_than_the_runs_is_not_taken(copied):
    uri = str(copied / "demo" / "records" / "stage-vocabulary.json")
    records.write(uri, records.read(uri, StageRecord).model_copy(update={"fingerprint": "other"}))
    with pytest.raises(errors.IntegrityError, match="was trained with other; put the old file back"):
        settled(copied)


def test_nothing_is_evaluated_twice_and_a_miss_names_what_changed(copied, monkeypatch):
    dataset = trained_runs.dataset(copied)
    first = evaluated(settled(copied), dataset)
    assert set(told(first).values()) == {(False, "not evaluated yet")}
    figures = {step: result.evaluation.metrics["a"] for step, result in first.items()}
    assert len({values["loss"] for values in figures.values()}) == 2, "each checkpoint has figures of its own"
    again = evaluated(settled(copied, "run.name=again"), dataset)
    assert set(told(again).values()) == {(True, "same checkpoint, data, settings and code")}
    assert {step: result.evaluation.metrics["a"] for step, result in again.items()} == figures
    today = storage.read_json(first[4].evaluation.uri)["created"][:10]
    one = settled(copied, "steps=[4]")
    settings = evaluated(settled(copied, "steps=[4]", "evaluate={batch_size: 8}"), dataset)
    assert told(settings) == {4: (False, f"settings changed since its evaluation of {today}")}
    assert settings[4].evaluation.metrics["a"]["accuracy"] == pytest.approx(figures[4]["accuracy"])
    monkeypatch.setattr(identity, "_own_code", lambda: "other")
    assert told(evaluated(one, dataset)) == {4: (False, f"code and settings changed since its evaluation of {today}")}
    new_data = trained_runs.dataset(copied, seed=7, parts={"d": "new"})
    assert told(evaluated(one, new_data)) == {4: (False, f"data changed since its evaluation of {today}")}


def test_an_edited_metric_function_is_measured_again_and_a_comment_is_not(copied, tmp_path, monkeypatch):
    source = "def letters(targets, predictions):\n    return {'letters': sum(map(len, targets))}\n"
    file = tmp_path / "edited_metric.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    task = "{name: a, files: [a.tsv], objective: supervised, metrics: [edited_metric.letters]}"
    plan = settled(copied, "steps=[4]", f"tasks=[{task}]")
    rows, texts = making.examples(5), [{"targets_pretokenized": "a" * number} for number in range(5)]
    dataset = making.task_dataset(str(copied), "a", rows, validation=rows, texts=texts)
    first = evaluated(plan, dataset)[4].evaluation
    assert first.metrics["a"]["letters"] == 10
    file.write_text(f"# how long they are\n{source}")
    assert told(evaluated(plan, dataset))[4][0]
    file.write_text(source.replace("sum(", "1 + sum("))
    monkeypatch.delitem(sys.modules, "edited_metric")
    importlib.invalidate_caches()
    again = evaluated(plan, dataset)
    today = storage.read_json(first.uri)["created"][:10]
    assert told(again) == {4: (False, f"metrics changed since its evaluation of {today}")}
    assert again[4].evaluation.metrics["a"]["letters"] == 11


def test_one_that_was_altered_or_is_gone_is_measured_again_and_says_so(copied):
    dataset, plan = trained_runs.dataset(copied), settled(copied, "steps=[2]")
    first = evaluated(plan, dataset)[2].evaluation
    record = storage.path(first.uri)
    record.write_text(record.read_text().replace('"step": 2', '"step": 3'))
    altered = evaluated(plan, dataset)[2]
    assert altered.reason == f"the one there is damaged: {first.uri} has changed since it was written"
    assert (altered.evaluation.reused, altered.evaluation.metrics) == (False, first.metrics)
    record.write_text("[1]")
    assert evaluated(plan, dataset)[2].reason == f"the one there is damaged: {first.uri} is no evaluation"
    shutil.rmtree(record.parent)
    lost = evaluated(plan, dataset)[2]
    assert not lost.evaluation.reused
    assert lost.reason.endswith(f"and gone from {record.parent}")
    assert evaluated(plan, dataset)[2].evaluation.reused


def test_what_was_measured_while_the_run_trained_counts(trained, copied):
    inputs = trained.model_copy(update={"tasks": [trained_runs.dataset(copied)]})
    plan = settled(copied, "steps=[4]")
    record = Evaluation(
        step=4,
        checkpoint=plan.checkpoints[0],
        metrics={"a": {"loss": 1.5}},
        seconds=1.0,
        reused=False,
        settings=evaluate.settings_fingerprint(inputs),
        uri="u",
    )
    RunDirectory(plan.trained).write_evaluation(record)
    found = evaluated(plan, *inputs.tasks)
    assert told(found) == {4: (True, "evaluated while the run trained")}
    assert found[4].evaluation.metrics == {"a": {"loss": 1.5}}
    RunDirectory(plan.trained).write_evaluation(record.model_copy(update={"settings": "other"}))
    assert told(evaluated(plan, *inputs.tasks)) == {4: (False, "not evaluated yet")}


def test_the_table_has_every_metric_by_step(copied):
    plan = settled(copied)
    results = list(evaluated(plan, trained_runs.dataset(copied)).values())
    summary, page = evaluation.tabulate(plan, results[::-1])
    assert (summary.status, summary.checkpoints, summary.reused) == ("completed", 2, 0)
    rows = list(csv.DictReader(storage.path(summary.csv).read_text().splitlines()))
    assert [row["step"] for row in rows] == ["2", "4"]
    for row, result in zip(rows, results, strict=True):
        assert float(row["a/accuracy"]) == result.evaluation.metrics["a"]["accuracy"]
    assert [entry["digest"] for entry in storage.read_json(summary.table)] == [c.digest for c in plan.checkpoints]
    assert page == storage.path(summary.report).read_text()
    assert "not evaluated yet" in page
    account = storage.read_json(summary.uri)
    assert (account["status"], account["failure"], account["trained"]) == ("completed", None, plan.trained)
    assert load.read_file(f"{plan.uri}/config.yaml")["checkpoint"] == f"{copied}/demo"


def test_a_failure_is_told_in_summary_and_report(copied):
    plan = settled(copied, "steps=[2]")
    storage.path(plan.checkpoints[0].uri).rmtree()
    with pytest.raises(errors.CheckpointError):
        evaluated(plan, trained_runs.dataset(copied))
    account = storage.read_json(f"{plan.uri}/summary.json")
    assert account["status"] == "failed"
    assert account["failure"]["where"] == "evaluation of step 2"
    assert "Failed in evaluation of step 2" in storage.path(f"{plan.uri}/report.html").read_text()


def test_a_task_without_a_validation_split_cannot_be_evaluated_on(copied):
    plan = settled(copied)
    without = making.task_dataset(str(copied), "a", making.examples(5), parts={"d": "trained on only"})
    with pytest.raises(errors.DataError, match=r"no task has a validation example \(a\); give one of them validation"):
        evaluated(plan, without)
    assert storage.read_json(f"{plan.uri}/summary.json")["failure"]["where"] == "datasets"
