"""`train` on SeqIO tasks: pipelines, evaluation through `seqio.Evaluator`, vocabularies. One process imports SeqIO."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.t5core import train_runs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seqio")


@pytest.fixture(scope="module")
def scenes(folder):
    command = [sys.executable, "-m", "tests.t5core.seqio_train", str(folder)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line) if line.startswith('{"') else {}
    return found


def test_the_same_seed_gives_the_same_batches_and_another_does_not(scenes):
    assert scenes["orders"] == [True, False]


def test_a_packed_pipeline_that_is_cut_ends_in_the_bits_of_a_straight_run(scenes):
    straight, cut = scenes["cut"]
    assert straight == cut
    assert straight[0] == 5


def test_every_task_and_the_mixture_are_evaluated_row_by_row(scenes, folder):
    assert scenes["evaluated"] == 2
    names = ("numbers", "more_numbers", "all_numbers")
    lines = {name: train_runs.lines(folder / "evaluated", "training_eval", name) for name in names}
    assert [lines[name][0]["num_examples"] for name in names] == [9, 9, 18]
    assert lines["all_numbers"][0]["loss"] == pytest.approx(lines["numbers"][0]["loss"])
    assert not (folder / "evaluated" / "training_eval" / "without_validation").exists()


def test_metric_functions_see_predictions_scores_and_aux_values(scenes, folder):
    assert scenes["evaluated"] == 2
    (line,) = train_runs.lines(folder / "evaluated", "inference_eval", "numbers")
    assert line.keys() == {"step", "eval/examples", "eval/likelihood", "eval/aux", "eval/length_limit_fraction"}
    assert (line["step"], line["eval/examples"], line["eval/aux"]) == (2, 9, 9)
    assert line["eval/likelihood"] < 0
    text = (folder / "evaluated" / "inference_eval" / "numbers-000002.jsonl").read_text()
    examples = [json.loads(line) for line in text.split("\n") if line]
    assert [example["target"].split(" ")[0] for example in examples] == [f"ex-{n}" for n in range(9)]
    assert all(example["input"]["inputs_pretokenized"].startswith("validation ") for example in examples)
    assert examples[0].keys() == {"input", "target", "prediction", "output", "score", "aux_scores"}


def test_a_pipeline_of_one_s_own_is_trained_on(scenes):
    assert [step for step, _ in scenes["own pipeline"]] == [2, 4]


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        ("unknown", "ConfigError: unknown SeqIO task or mixture 'nmbers'; did you mean 'numbers'? known: all_numbers"),
        ("few", "DataError: split 'train' of 'few' gives 3 rows in all, fewer than the 4 of a batch; add data, filter"),
        ("filtered", "DataError: split 'train' of 'filtered' gives 0 rows in all, fewer than the 4 of a batch; add da"),
        ("module", "ConfigError: module='nowhere.to.be' cannot be imported: No module named 'nowhere'; check its name"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(scenes, scene, message):
    assert scenes[scene].startswith(message)
    assert "\n" not in scenes[scene]


def test_a_task_without_the_split_is_left_out(scenes):
    assert scenes["no split"] == []


def test_vocabularies_are_compared_by_content(scenes):
    too_small, equal, changed, other = scenes["vocabularies"]
    assert too_small.startswith("ConfigError: the vocabulary of 'pieces' has 130 ids, and the model's embedding 128 ")
    assert equal is None, "the same model at another path"
    assert changed.startswith("ConfigError: 'pieces' has the vocabularies SentencePieceVocabulary(130 ids, content ")
    assert other.startswith("ConfigError: 'numbers' has the vocabularies ByteVocabulary(259 ids, content ")
