"""Pre-training from the command line: what a run leaves, a second run, kills, and stops."""

import json
import signal

import pytest
import yaml

from t5core.checkpoints import index
from tests.workflows import command_line

pytestmark = pytest.mark.e2e


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_leaves_everything_that_a_person_looks_for(finished):
    directory, summary = finished.directory, command_line.summary(finished.root)
    assert (summary["status"], summary["final_step"], summary["stop_reason"]) == ("completed", 12, "")
    assert [(s["start"], s["end"]) for s in summary["segments"]] == [(0, 4), (4, 8), (8, 12)]
    assert summary["checkpoint"]["digest"] == summary["state_digest"]
    assert summary["state_digest"] == index.reference(str(directory / "checkpoints"), 12).digest
    assert set(summary["metrics"]) == {"text", "copy", "mixture"}
    assert (summary["preflight"]["estimated"]["is_exact"], summary["preflight"]["exact"]["is_exact"]) == (False, True)
    assert "exact_match" in summary["metrics"]["copy"]
    for name in ("text", "copy", "mixture"):
        assert [line["step"] for line in lines(directory / f"metrics/training_eval/{name}/metrics.jsonl")] == [4, 8, 12]
    examples = {name: metrics["num_examples"] for name, metrics in summary["metrics"].items()}
    assert examples["mixture"] == examples["text"] + examples["copy"]
    assert "mixture" in (directory / "report.html").read_text()
    assert [line["step"] for line in lines(directory / "metrics/inference_eval/copy/metrics.jsonl")] == [4, 8, 12]
    assert lines(directory / "metrics/train/metrics.jsonl")[-1]["step"] == 12
    assert list((directory / "metrics/train").glob("events.*"))
    assert len(lines(directory / "predictions/copy-00000012.jsonl")) == 4
    assert "<html" in (directory / "report.html").read_text()
    assert yaml.safe_load((directory / "config.yaml").read_text())["run"]["seed"] == 3
    assert list(index.committed_steps(str(directory / "checkpoints"))) == [8, 10, 12]


def test_the_second_run_reuses_everything_and_says_why(finished):
    before = command_line.summary(finished.root)
    again = command_line.run("--config", str(finished.directory / "config.yaml"))
    assert again.code == 0, again.text
    for stage in ("vocabulary", "materialise text", "materialise copy", "assemble", "initialise"):
        assert f"{stage}: reused" in again.text
    assert again.text.count("segment to") == 3
    assert "  train " not in again.text.split("run tiny completed")[0], "nothing is trained"
    assert again.text.rstrip().splitlines()[-1] == f"completed: {finished.directory}/summary.json"
    after = command_line.summary(finished.root)
    assert all(part["reused"] and part["seconds"] for kind in ("segments", "evaluations") for part in after[kind])
    assert after["state_digest"] == before["state_digest"]
    assert after["metrics"] == before["metrics"]


@pytest.mark.parametrize("moment", ["initialised", "in the first segment", "in the last segment"])
def test_a_killed_run_goes_on_and_ends_in_the_same_bits(finished, prepared, moment):
    directory = prepared.directory
    sign = {
        "initialised": directory / "checkpoints/0",
        "in the first segment": directory / "checkpoints/2",
        "in the last segment": directory / "records/actions-00000008.json",
    }[moment]
    process = command_line.start("--config", str(prepared.config))
    assert command_line.kill_when(process, sign.exists), command_line.finish(process).text
    assert command_line.finish(process).code == -signal.SIGKILL
    assert not (directory / "summary.json").exists()
    again = command_line.run("--config", str(prepared.config))
    assert again.code == 0, again.text
    assert command_line.summary(prepared.root)["state_digest"] == command_line.summary(finished.root)["state_digest"]
    steps = [line["step"] for line in lines(directory / "metrics/train/metrics.jsonl")]
    assert steps == sorted(set(steps)), "a replay leaves no line twice"


def test_sigterm_commits_the_step_and_the_next_run_goes_on(finished, prepared):
    process = command_line.start("--config", str(prepared.config), "--overrides", '["train.segment_steps=12"]')
    trained = prepared.directory / "metrics/train/metrics.jsonl"
    assert command_line.kill_when(process, trained.exists, how=signal.SIGTERM), command_line.finish(process).text
    stopped = command_line.finish(process)
    assert stopped.code == 75, stopped.text
    assert "is committed, run again to go on from there" in stopped.error
    again = command_line.run("--config", str(prepared.config))
    assert again.code == 0, again.text
    assert command_line.summary(prepared.root)["state_digest"] == command_line.summary(finished.root)["state_digest"]


def test_a_stop_holds_for_all_later_segments(prepared):
    overrides = [
        "train.actions=[{name: early_stopping, task: copy, metric: exact_match, mode: max, patience: 1}]",
        "run.name=stopping",
    ]
    done = command_line.run("--config", str(prepared.config), "--overrides", json.dumps(overrides))
    assert done.code == 0, done.text
    summary = command_line.summary(prepared.root, "stopping")
    assert (summary["status"], summary["final_step"]) == ("stopped", 8)
    assert "early stopping: copy/exact_match no better than 0 for 1 evaluation" in summary["stop_reason"]
    assert [s["end"] for s in summary["segments"]] == [4, 8]
    assert 8 in index.committed_steps(str(prepared.root / "stopping/checkpoints"))


def test_more_steps_go_on_from_the_end(prepared):
    first = command_line.run("--config", str(prepared.config), "--overrides", '["train.total_steps=6"]')
    assert first.code == 0, first.text
    more = command_line.run("--config", str(prepared.config))
    assert more.code == 0, more.text
    less = command_line.run("--config", str(prepared.config), "--overrides", '["train.total_steps=5"]')
    assert less.code == 1
    assert "train.total_steps=5 is below step 12" in less.error
