"""Each workflow as a new user starts it: without arguments, in a folder where the demo recipe has been run."""

import json

import pytest

from tests.workflows import command_line

SHORT = ["train.total_steps=4", "train.segment_steps=4", "train.checkpoint_period=2", "train.eval_period=4"]
LESS_TEXT = ["data.passes=1", "data.tasks.0.max_validation_examples=8", "data.tasks.1.max_validation_examples=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds runs/demo: the demo recipe, with its data and its model, after a few steps."""
    folder = tmp_path_factory.mktemp("examples")
    done = command_line.run("--overrides", json.dumps(SHORT + LESS_TEXT), cwd=folder)
    assert done.code == 0, done.text
    return folder


@pytest.mark.parametrize(
    ("workflow", "status"),
    [("evaluate", "completed"), ("infer", "completed"), ("convert", "equal"), ("finetune", "completed")],
)
def test_it_needs_no_arguments_after_the_demo(folder, workflow, status):
    done = command_line.run(workflow=workflow, cwd=folder)
    assert done.code == 0, done.text
    assert "runs/demo" in done.text
    summary = json.loads((folder / "runs" / workflow / "summary.json").read_text())
    assert summary["status"] == status
    assert (folder / "runs" / workflow / "report.html").stat().st_size > 1000
