"""A user's mistake: one line within seconds, and nothing written over."""

import json
import os
import signal
import socket

import pytest

from tests.workflows import command_line

pytestmark = pytest.mark.e2e

MISTAKES = {
    "misspelt key": (
        "train.total_step=40",
        "unknown key 'train.total_step' (value 40); did you mean 'train.total_steps'?",
    ),
    "no steps": ("train.total_steps=0", "train.total_steps=0 is not valid: Input should be greater than 0"),
    "no such text": ("data.tasks.0.files=[nowhere/*.txt]", "nowhere/*.txt"),
    "another config": ("model.emb_dim=24", "model.emb_dim is 16 there and 24 here"),
    "no such metric": (
        "train.actions=[{name: terminate_on_nan, task: text, metric: los}]",
        "unknown metric of task 'text' 'los'; did you mean 'loss'?",
    ),
    "no such optimiser": ("train.optimizer.name=adafactr", "did you mean 'adafactor'?"),
    "no such factor": ("train.learning_rate.factors=constant * rsqrt", "did you mean 'rsqrt_decay'?"),
    "vocabulary that does not fit": ("data.vocabulary.size=900", "set model.vocab_size=1024 or change data.vocabulary"),
}


def contents(folder):
    return {
        path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock.json"
    }


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_one_line_and_changes_nothing(finished, mistake):
    override, message = MISTAKES[mistake]
    name = [] if mistake == "another config" else ["run.name=other"]
    before = contents(finished.directory)
    done = command_line.run("--config", str(finished.config), "--overrides", json.dumps([override, *name]))
    assert done.code == 1, done.text
    assert done.error.startswith("Error: ")
    assert message in done.error
    assert "Traceback" not in done.text
    assert done.seconds < 60
    assert contents(finished.directory) == before
    assert not (finished.root / "other" / "checkpoints").exists()


def test_an_empty_text_is_named(finished, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    overrides = json.dumps(["run.name=empty", f"data.tasks.0.files=[{tmp_path}/empty.txt]"])
    done = command_line.run("--config", str(finished.config), "--overrides", overrides)
    assert done.code == 1
    assert "empty.txt" in done.error
    summary = command_line.summary(finished.root, "empty")
    assert (summary["status"], summary["failure"]["where"]) == ("failed", "preflight")
    assert summary["failure"]["why"] in done.error
    assert "empty.txt" in (finished.root / "empty" / "report.html").read_text()


def test_a_file_that_is_no_config_is_named(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("data: {tasks: [}\n")
    done = command_line.run("--config", str(broken))
    assert done.code == 1
    assert f"{broken} is not valid YAML at line 1" in done.error
    missing = command_line.run("--config", "nowhere.yaml")
    assert "cannot read the config 'nowhere.yaml': No such file or directory" in missing.error


def test_a_root_that_cannot_be_written_is_named(finished):
    done = command_line.run("--config", str(finished.config), "--overrides", '["run.root=/proc/runs"]')
    assert done.code == 1
    assert "cannot write /proc/runs" in done.error


def test_a_run_in_use_is_refused_and_goes_on_unharmed(prepared):
    long = json.dumps(["train.total_steps=100000", "train.segment_steps=100000", "train.eval_period=0"])
    holder = command_line.start("--config", str(prepared.config), "--overrides", long)
    try:
        assert command_line.kill_when(holder, (prepared.directory / "lock.json").exists, how=0)
        second = command_line.run("--config", str(prepared.config))
        assert holder.poll() is None, command_line.finish(holder).text
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        command_line.finish(holder)
    assert second.code == 1, second.text
    assert f"is held by '{socket.gethostname()}" in second.error.replace('"', "'"), second.error
    assert "choose another run.name" in second.error
