from __future__ import annotations

import json
import pathlib
import shlex
from typing import Any

import pytest

from t5core import errors, storage
from t5core.report import closing, summary
from tests.t5core.report import fake_run


def lines_of(run: pathlib.Path, status: summary.Status = "completed", **fields: Any) -> list[str]:
    return closing.closing_lines(summary.write_summary(str(run), status=status, **fields))


def commands_in(lines: list[str]) -> list[list[str]]:
    return [shlex.split(line) for line in lines[lines.index("  next") + 1 :] if line.startswith("      ")]


def test_the_lines_hold_what_a_person_wants_to_know(run: pathlib.Path):
    text = "\n".join(lines_of(run))
    assert "run demo completed at step 240 of 240" in text
    assert "training loss per target token   7.629 -> 2.674   (−65 %, step 1 to 240)" in text
    assert "docs_span_corruption       loss 3.706   accuracy 0.3637\n" in text
    assert "docstring_first_sentence   loss 3.117   accuracy 0.4613   exact_match 9.375   token_f1 30.34\n" in text
    assert f"checkpoint   {run}/checkpoints/240" in text
    assert f"report       {run}/report.html" in text
    assert "240 steps trained in 4 segments" in text
    assert "timing" not in text


def test_a_second_run_names_each_stage_as_reused_with_the_reason(tmp_path: pathlib.Path):
    lines = lines_of(fake_run.build(tmp_path, reused=True))
    for stage in ("vocabulary", f"materialise {fake_run.SPANS}", f"materialise {fake_run.SENTENCES}", "assemble"):
        line = next(line for line in lines if line.strip().startswith(stage))
        assert line.endswith("reused  fingerprint 6f1d2c3b4a596877 unchanged")
    text = " ".join(" ".join(lines).split())
    assert "train reused took 1 min 36 s; all 4 segments reused" in text
    assert "evaluate reused took 13.6 s; at step 60" in text


def test_lines_fit_a_terminal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = fake_run.build(pathlib.Path("runs"))
    reason = "because the text of the sources changed since the fingerprint was taken, which makes a long sentence " * 3
    fake_run.write_stage(run, "verify", reason=reason)
    lines = lines_of(run)
    assert max(len(line) for line in lines[: lines.index("  next")]) <= closing.WIDTH
    assert " ".join(" ".join(lines).split()).count("makes a long sentence") == 3


def test_commands_can_be_pasted(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path / "a folder")
    longer, seeded, watch = commands_in(lines_of(run))
    assert longer[1:5] == ["run", "workflows/pretrain.py", "--config", f"{run}/config.yaml"]
    assert json.loads(longer[6]) == ["train.total_steps=480"]
    assert json.loads(seeded[6]) == ["run.name=demo-2", "run.seed=1"]
    assert watch[1:] == ["--logdir", f"{run}/metrics"]


def test_a_failed_run_says_why_and_how_to_go_on(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120)
    failure = summary.Failure(where="segment 120 to 180", why="no space left in runs; free some")
    lines = lines_of(run, "failed", failure=failure)
    assert "run demo failed at step 120 of 240" in lines
    assert "  segment 120 to 180: no space left in runs; free some" in lines
    assert "  Give the same command again: step 120 is committed, and the run goes on from there." in lines
    assert "    go on from step 120 when the cause is mended:" in lines
    assert len(commands_in(lines)[0]) == 5


def test_a_run_that_failed_before_training_still_ends_in_words(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    lines = lines_of(run, "failed", failure=summary.Failure(where="initialise", why="no device"))
    assert "    start again when the cause is mended:" in lines
    assert not any("loss" in line or "checkpoint  " in line for line in lines)


def test_a_stopped_run_says_why_and_offers_a_lower_rate(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120, nan_from=95)
    lines = lines_of(run, "stopped", stop_reason="terminate on NaN: loss is nan")
    assert "run demo stopped at step 120 of 240: terminate on NaN: loss is nan" in lines
    assert "  training loss per target token   7.629 -> NaN   (step 1 to 120)" in lines
    assert json.loads(commands_in(lines)[0][6]) == ["run.name=demo-2", "train.learning_rate.base_learning_rate=0.15"]


BUDGETED = """\
  actions:
  - {name: keep_best, task: docs_span_corruption, metric: loss}
  - {name: budget, seconds: null, target_tokens: 1500}
  - {name: early_stopping, task: docs_span_corruption, metric: accuracy, patience: 2}
"""


@pytest.mark.parametrize(
    ("reason", "overrides"),
    [
        ("budget: 2820 of 1500 target tokens spent", ["train.actions.1.target_tokens=4320"]),
        (
            "early stopping: docs_span_corruption/accuracy no better than 0.2 for 2 evaluations",
            ["train.actions.2.patience=4"],
        ),
    ],
)
def test_a_stop_by_an_action_is_answered_by_its_setting(tmp_path: pathlib.Path, reason: str, overrides: list[str]):
    run = fake_run.build(tmp_path, steps=120)
    storage.write_text(run / "config.yaml", fake_run.CONFIG + BUDGETED)
    command, watch = commands_in(lines_of(run, "stopped", stop_reason=reason))
    assert json.loads(command[6]) == overrides
    assert "tensorboard" in watch[0]


def test_a_stop_by_a_function_of_ones_own_is_answered_by_nothing(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120)
    assert len(commands_in(lines_of(run, "stopped", stop_reason="mine.is_enough asked for it"))) == 1


def test_commands_name_the_workflow_that_began_the_run_and_near_paths(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    run = fake_run.build(tmp_path / "runs")
    info = json.loads((run / "run.json").read_text())
    storage.write_json(run / "run.json", {**info, "workflow": "finetune"})
    monkeypatch.chdir(tmp_path)
    longer, _, watch = commands_in(lines_of(run))
    assert longer[2:5] == ["workflows/finetune.py", "--config", "runs/demo/config.yaml"]
    assert watch[2] == "runs/demo/metrics"


def test_tasks_come_in_the_order_of_the_configuration(run: pathlib.Path):
    lines = lines_of(run)
    assert [line.split()[0] for line in lines if line.startswith("    doc") and "loss" in line] == list(fake_run.TASKS)


def test_without_a_summary_there_is_nothing_to_close(run: pathlib.Path):
    reference = summary.write_summary(str(run), status="completed")
    (run / "summary.json").unlink()
    with pytest.raises(errors.RunDirectoryError, match=r"no summary at .*summary.json; write it before"):
        closing.closing_lines(reference)
