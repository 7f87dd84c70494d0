from __future__ import annotations

import json
import pathlib

from t5core import storage
from t5core.report import lineage, summary
from t5core.report.gather import gather
from tests.t5core.report import fake_run


def links_of(run: pathlib.Path) -> tuple[lineage.Link, ...]:
    record = gather(str(run))
    step = record.checkpoint.step if record.checkpoint else 0
    return lineage.lineage_of(record, summary.last_values(record.evaluations_to(step)))


def test_a_metric_leads_down_to_the_configuration(run: pathlib.Path):
    links = links_of(run)
    assert [link.what for link in links] == [
        "metrics", "checkpoint of step 240", "segment", "state of step 0",
        "mixture", f"task {fake_run.SENTENCES}", f"task {fake_run.SPANS}", "vocabulary", "configuration",
    ]  # fmt: skip
    by_name = {link.what: link for link in links}
    last, first = fake_run.checkpoint(run, 240), fake_run.checkpoint(run, 0)
    assert "exact_match 9.375" in by_name["metrics"].which
    assert by_name["metrics"].remark == f"recorded in {run}/records/evaluation-00000240.json"
    assert (by_name["checkpoint of step 240"].which, by_name["segment"].fingerprint) == (last.uri, last.digest)
    assert by_name["segment"].which == "steps 180 to 240, the last of 4 segments"
    assert by_name["state of step 0"].fingerprint == first.digest
    assert by_name["mixture"].fingerprint == "0f1e2d3c4b5a6978"
    assert "code b1c2d3e4f5061729" in by_name["mixture"].remark
    assert (by_name["vocabulary"].fingerprint, by_name["configuration"].fingerprint) == (
        "aa11bb22cc33dd44",
        "c0ffee00c0ffee00",
    )
    assert not any(link.is_broken for link in links)


def test_metrics_of_two_evaluations_lead_down_two_ways(run: pathlib.Path):
    path = run / "records/evaluation-00000240.json"
    content = json.loads(path.read_text())
    del content["metrics"][fake_run.SENTENCES]
    storage.write_json(path, content)
    links = links_of(run)
    assert [link.what for link in links if link.what.startswith("checkpoint")] == [
        "checkpoint of step 240",
        "checkpoint of step 180",
    ]
    assert [fake_run.SENTENCES in link.which for link in links if link.what == "metrics"] == [False, True]


def test_an_evaluation_of_another_state_is_pointed_out(run: pathlib.Path):
    path = run / "records/evaluation-00000240.json"
    content = json.loads(path.read_text())
    content["checkpoint"]["digest"] = "0" * 64
    storage.write_json(path, content)
    broken = [link for link in links_of(run) if link.is_broken]
    assert [(link.what, link.remark) for link in broken] == [("segment", "this is not the state that was evaluated")]


def test_a_segment_that_started_elsewhere_is_pointed_out(run: pathlib.Path):
    path = run / "records/segment-00000180.json"
    content = json.loads(path.read_text())
    content["parent"]["digest"] = "0" * 64
    storage.write_json(path, content)
    broken = [link for link in links_of(run) if link.is_broken]
    assert [link.remark for link in broken] == [
        "the segment from step 120 did not start from the state that the one before it left"
    ]


def test_a_missing_segment_is_pointed_out(run: pathlib.Path):
    (run / "records/segment-00000240.json").unlink()
    record = gather(str(run))
    links = lineage.lineage_of(record, summary.last_values(record.evaluations))
    assert [link.which for link in links if link.is_broken] == ["no record of one that ends at step 240"]


def test_without_an_evaluation_the_chain_starts_at_the_segment(run: pathlib.Path):
    for path in (run / "records").glob("evaluation-*"):
        path.unlink()
    assert [link.what for link in links_of(run)][:2] == ["segment", "state of step 0"]


def test_a_checkpoint_that_was_deleted_is_said_to_be(run: pathlib.Path):
    remarks = {link.what: link.remark for link in links_of(run)}
    assert (remarks["checkpoint of step 240"], remarks["state of step 0"]) == ("", "no longer kept")


def test_a_vocabulary_that_was_copied_names_what_it_is_a_copy_of(run: pathlib.Path):
    text = fake_run.CONFIG.replace("data:\n", "data:\n  vocabulary: {path: /models/theirs.model}\n")
    storage.write_text(run / "config.yaml", text)
    vocabulary = next(link for link in links_of(run) if link.what == "vocabulary")
    assert vocabulary.remark == "a copy of /models/theirs.model"
