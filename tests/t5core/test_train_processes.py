"""Two processes that train together: one answer for both, and never one that waits for the other for ever."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from t5core.evaluation import checkpoint
from t5core.metrics.writer import read_metrics
from t5core.stages import initialise
from tests.t5core import stage_runs, train_runs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def alone(folder):
    """Returns a run in stages and the metrics of its first checkpoint, as a single process measures them."""
    with stage_runs.settings_put_back():
        inputs = stage_runs.inputs_in(str(folder / "chain"))
        cursor = initialise.initialise(inputs)
        metrics = checkpoint.evaluate(inputs, cursor.checkpoint)
    (folder / "inputs.json").write_text(inputs.model_dump_json())
    texts = pathlib.Path(f"{inputs.run.uri}/predictions/b-00000000.jsonl")
    return inputs, metrics, texts.rename(folder / "alone.jsonl").read_text()


@pytest.fixture(scope="module")
def scenes(folder, alone):
    """Returns what each of the two processes says of each scene."""
    del alone
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tests.t5core.two_process_train", port]
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([*command, str(i), str(folder)], cwd=ROOT, env=environment, **pipes) for i in range(2)
    ]
    try:
        texts = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = []
    for out, err in texts:
        found.append({})
        for line in out.splitlines():
            found[-1] |= json.loads(line) if line.startswith('{"') else {}
        assert "told to stop" in found[-1], out[-3000:] + err[-3000:]
    return found


def test_both_learn_what_the_first_decides(scenes):
    assert [scene["stop"] for scene in scenes] == [True, True]
    assert [scene["go on"] for scene in scenes] == [False, False]


def test_both_raise_when_there_are_no_metrics_or_an_action_fails(scenes):
    message = "NoMetricsError: the metrics are unexpectedly empty on process 0; give those "
    assert [scene["no metrics"] for scene in scenes] == [message, message]
    assert [scene["failure"] for scene in scenes] == [
        "KeyError: 'broken'",
        "RecoverableError: an action failed on the first process; see its message",
    ]


def test_they_end_with_the_same_state_whatever_the_kind_of_checkpoint(scenes, folder):
    digests = {tuple(scene[name]) for scene in scenes for name in ("trained", "with orbax")}
    assert len(digests) == 1
    assert next(iter(digests))[0] == 6
    assert train_runs.steps_saved(folder / "run") == [0, 3, 6]


def test_every_example_is_decoded_and_scored_once_by_both_together(scenes, folder):
    assert [scene["examples"] for scene in scenes] == [list(range(9))] * 2
    assert scenes[0]["scores"] == scenes[1]["scores"]
    lines = train_runs.lines(folder / "run", "inference_eval", "fake")
    assert [line["eval/examples"] for line in lines] == [9.0] * 3, "one of them writes"
    np.testing.assert_allclose(lines[-1]["eval/score"], sum(scenes[0]["scores"]), rtol=1e-6)


def test_evaluation_counts_every_row_of_both(scenes, folder):
    del scenes
    lines = train_runs.lines(folder / "run", "training_eval", "first")
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["num_examples"] for line in lines] == [8.0] * 3
    steps = [line["step"] for line in train_runs.lines(folder / "run", "train")]
    assert steps == [1, 2, 3, 4, 6], "one of them writes"


def test_both_learn_the_numbers_that_the_first_computes(scenes):
    for found in (scene["numbers"] for scene in scenes):
        assert (found["third"], found["process"]) == (1 / 3, 0)
        assert np.isnan(found["nan"])
    assert scenes[0]["no numbers"] == "ZeroDivisionError: division by zero"
    assert scenes[1]["no numbers"] == "RecoverableError: the first process failed; see its message"


def test_the_chain_evaluates_and_decodes_by_both_together_and_one_of_them_writes(scenes, alone):
    inputs, metrics, texts = alone
    (found, written), (of_the_other, written_by_the_other) = (scene["chain"] for scene in scenes)
    assert found == of_the_other
    assert (written, written_by_the_other) == (4, 0), "of each task, of the mixture, and what was decoded"
    for name, values in found.items():
        assert metrics[name].keys() == values.keys()
        for key, value in values.items():
            np.testing.assert_allclose(value, metrics[name][key], rtol=1e-5, err_msg=f"{name}/{key}")
        (line,) = read_metrics(f"{inputs.run.uri}/metrics/training_eval/{name}")
        assert line["loss"] == values["loss"]
    assert pathlib.Path(f"{inputs.run.uri}/predictions/b-00000000.jsonl").read_text() == texts


def test_uneven_batches_are_an_error_on_both(scenes):
    assert "process 1 has no further batch while process 0 has one" in scenes[0]["uneven"]
    assert scenes[1]["uneven"].startswith("DataError: the training dataset ended after 4 batches")
    for scene in scenes:
        assert scene["uneven evaluation"].startswith("DataError: the evaluation dataset 'v' has [5, 4] batches on")


def test_one_that_is_told_to_stop_takes_the_other_with_it_and_both_go_on(scenes):
    for stopped, gone_on, straight in (scene["told to stop"] for scene in scenes):
        assert stopped.startswith("Preempted: told to stop; step 16 is committed, run again to go on")
        assert gone_on == straight
        assert gone_on[0] == 40
    assert np.unique([scene["told to stop"][1][1] for scene in scenes]).size == 1


def test_one_whose_peer_is_killed_ends_too(scenes):
    failure, seconds = scenes[0]["left alone"]
    assert "left alone" not in scenes[1]
    assert "Error" in failure
    assert seconds < 60
