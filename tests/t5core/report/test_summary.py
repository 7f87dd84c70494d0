from __future__ import annotations

import json
import math
import pathlib

import pytest

from t5core import errors
from t5core.report import summary
from t5core.report.gather import LOSS, gather
from tests.t5core.report import fake_run


def read(run: pathlib.Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def test_a_summary_holds_what_the_records_say(run: pathlib.Path):
    reference = summary.write_summary(str(run), status="completed")
    content, last = read(run), fake_run.checkpoint(run, 240)
    assert content["run_name"] == "demo"
    assert (content["status"], content["stop_reason"], content["failure"]) == ("completed", "", None)
    assert (content["final_step"], content["total_steps"], content["state_digest"]) == (240, 240, last.digest)
    assert content["checkpoint"] == {"uri": last.uri, "step": 240, "digest": last.digest}
    assert content["metrics"] == fake_run.evaluation_metrics(240)
    assert content["loss"]["before"] == {"step": 1, "value": fake_run.training_loss(1)}
    assert content["loss"]["after"] == {"step": 240, "value": fake_run.training_loss(240)}
    assert content["dataset"]["fingerprint"] == "0f1e2d3c4b5a6978"
    assert content["tasks"][fake_run.SPANS]["fingerprint"] == "1a2b3c4d5e6f7081"
    assert content["vocabulary"]["fingerprint"] == "aa11bb22cc33dd44"
    assert content["config_fingerprint"] == "c0ffee00c0ffee00"
    assert [(part["start"], part["end"], part["reused"]) for part in content["segments"]] == [
        (0, 60, False), (60, 120, False), (120, 180, False), (180, 240, False),
    ]  # fmt: skip
    assert [part["digest"] for part in content["segments"]] == [
        fake_run.checkpoint(run, end).digest for end in (60, 120, 180, 240)
    ]
    assert content["segments"][0]["seconds"] == 22.4
    assert content["versions"]["jax"]
    assert reference.model_dump() == {
        "run_name": "demo", "status": "completed", "final_step": 240, "stop_reason": "",
        "state_digest": last.digest, "uri": f"{run}/summary.json", "report": f"{run}/report.html",
    }  # fmt: skip


def test_stages_say_whether_they_were_reused_and_why(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, reused=True)
    summary.write_summary(str(run), status="completed")
    by_name = {(stage["stage"], stage["name"]): stage for stage in read(run)["stages"]}
    assert by_name["materialise", fake_run.SPANS]["reused"] is True
    assert by_name["materialise", fake_run.SPANS]["reason"] == "fingerprint 6f1d2c3b4a596877 unchanged"
    assert all(segment["reused"] for segment in read(run)["segments"])


def test_the_same_records_give_the_same_bytes(run: pathlib.Path):
    summary.write_summary(str(run), status="completed")
    first = (run / "summary.json").read_bytes()
    summary.write_summary(str(run), status="completed")
    assert (run / "summary.json").read_bytes() == first


def test_a_damaged_summary_from_before_is_written_anew(run: pathlib.Path):
    (run / "summary.json").write_text('{"status": "comp')
    summary.write_summary(str(run), status="completed")
    assert read(run)["status"] == "completed"


def test_a_run_that_stands_at_an_earlier_checkpoint_is_told_up_to_there(run: pathlib.Path):
    earlier = fake_run.checkpoint(run, 120)
    reference = summary.write_summary(str(run), status="stopped", stop_reason="enough", checkpoint=earlier)
    content = read(run)
    assert (reference.final_step, reference.state_digest) == (120, earlier.digest)
    assert content["metrics"] == fake_run.evaluation_metrics(120)
    assert content["loss"]["after"]["step"] == 120
    assert [part["end"] for part in content["segments"]] == [60, 120]


def test_a_failed_run_says_where_and_why(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    failure = summary.Failure(where="segment 0 to 60", why="out of memory")
    reference = summary.write_summary(str(run), status="failed", failure=failure)
    content = read(run)
    assert content["failure"] == {"where": "segment 0 to 60", "why": "out of memory", "kind": "error"}
    assert (content["final_step"], content["state_digest"], content["checkpoint"]) == (0, "", None)
    assert (content["metrics"], content["segments"], content["loss"]) == ({}, [], {"before": None, "after": None})
    assert (reference.status, reference.state_digest) == ("failed", "")


def test_a_run_killed_before_its_first_checkpoint_shows_its_last_loss(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=0)
    fake_run.write_training(run, 45)
    assert summary.loss_before_and_after(gather(str(run)), 0)["after"] == {
        "step": 45,
        "value": fake_run.training_loss(45),
    }


@pytest.mark.parametrize(
    ("status", "failure"), [("failed", None), ("completed", summary.Failure(where="train", why="no space"))]
)
def test_failed_and_a_failure_go_together(run: pathlib.Path, status: summary.Status, failure: summary.Failure | None):
    with pytest.raises(AssertionError, match="where and why"):
        summary.write_summary(str(run), status=status, failure=failure)


def test_a_summary_stays_strict_json_when_the_loss_is_lost(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120, nan_from=95)
    summary.write_summary(str(run), status="stopped", stop_reason="terminate on NaN")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    content = json.loads((run / "summary.json").read_text(), parse_constant=refuse)
    assert content["loss"]["after"] == {"step": 120, "value": "NaN"}


def test_last_values_remember_the_evaluation_that_measured_them(run: pathlib.Path):
    first, second = gather(str(run)).evaluations[:2]
    spans_only = second.model_copy(update={"metrics": {fake_run.SPANS: {"accuracy": math.pi}}})
    values = summary.last_values([first, spans_only])
    assert values[fake_run.SPANS]["accuracy"] == summary.LastValue(value=math.pi, evaluation=spans_only)
    assert values[fake_run.SPANS][LOSS].evaluation == first
    assert values[fake_run.SENTENCES]["token_f1"].evaluation == first


def test_leading_metrics_come_first_and_leave_out_what_repeats_them():
    names = ["timing/seconds", "loss", "token_f1", "accuracy", "z_loss", "loss_per_all_target_tokens", LOSS]
    assert summary.leading_metrics(names) == [LOSS, "accuracy", "token_f1"]
    assert summary.leading_metrics(["timing/seconds"]) == ["timing/seconds"]


@pytest.mark.parametrize(
    ("reused", "words"),
    [
        ((), "no segment finished"),
        ((True,), "the segment reused, the checkpoints up to step 60 are committed"),
        ((True, True), "all 2 segments reused, the checkpoints up to step 120 are committed"),
        ((False,), "60 steps trained in 1 segment"),
        ((True, False, False), "120 steps trained in 2 segments; 1 segment reused, checkpoints committed"),
    ],
)
def test_training_is_told_in_words(reused: tuple[bool, ...], words: str):
    segments = [{"end": 60 * (n + 1), "trained_steps": 60, "reused": again} for n, again in enumerate(reused)]
    assert summary.training_in_words({"segments": segments}) == words


@pytest.mark.parametrize(
    ("error", "kind", "helps"),
    [
        (errors.DataError("no text"), "mistake", "Mend what is named there, and give the command again: {kept}."),
        (
            errors.IntegrityError("x is damaged"),
            "damage",
            "Restore or delete what is named there, and give",
        ),
        (OSError("no device"), "error", "Give the same command again: {kept}."),
    ],
)
@pytest.mark.parametrize("steps", [0, 120])
def test_what_helps_depends_on_what_went_wrong(
    tmp_path: pathlib.Path, steps: int, error: Exception, kind: str, helps: str
):
    run = fake_run.build(tmp_path, steps=steps)
    failure = summary.Failure.of(error, where="vocabulary")
    assert (failure.kind, failure.why) == (kind, str(error))
    summary.write_summary(str(run), status="failed", failure=failure)
    kept = "step 120 is committed, and the run goes on from there" if steps else "the stages that finished are reused"
    text = summary.what_helps_a_run(read(run))
    assert text.startswith(helps.format(kept=kept))
    assert ("needs another run.name" in text) == (kind == "mistake")
