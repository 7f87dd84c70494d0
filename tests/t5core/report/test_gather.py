from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys

import pytest

from t5core import errors, storage
from t5core.report.gather import LOSS, gather
from tests.t5core.report import fake_run


def test_every_part_of_a_run_is_read(run: pathlib.Path):
    record = gather(f"{run}/")
    assert (record.name, record.uri, record.total_steps) == ("demo", str(run), 240)
    assert record.config_text == fake_run.CONFIG
    assert record.identity is not None
    assert record.identity.identity == "c0ffee00c0ffee00"
    assert [stage.stage for stage in record.stages] == [
        "resolve", "vocabulary", "materialise", "materialise", "assemble", "verify", "initialise",
    ]  # fmt: skip
    assert [segment.end for segment in record.segments] == [60, 120, 180, 240]
    assert record.checkpoint == fake_run.checkpoint(run, 240)
    assert record.evaluations[-1].metrics == fake_run.evaluation_metrics(240)
    assert [cursor.checkpoint.step for cursor in record.cursors] == [60, 120, 180, 240]
    assert {(series.stage, series.task) for series in record.series} == {
        ("train", ""),
        *(("training_eval", task) for task in fake_run.TASKS),
        ("inference_eval", fake_run.SENTENCES),
    }
    assert record.series_of("train")[0].points(LOSS)[-1] == (240, fake_run.training_loss(240))
    assert [(decoded.step, decoded.total) for decoded in record.predictions] == [
        (60, 64),
        (120, 64),
        (180, 64),
        (240, 64),
    ]
    assert [dataset.manifest.name for dataset in record.datasets if dataset.manifest] == [
        fake_run.SPANS, fake_run.SENTENCES, "demo",
    ]  # fmt: skip


def test_an_empty_run_directory_is_a_record_of_nothing(tmp_path: pathlib.Path):
    record = gather(str(tmp_path))
    assert (record.config_text, record.identity, record.summary, record.checkpoint) == (None, None, None, None)
    assert record.stages == record.segments == record.evaluations == record.series == record.datasets == ()


def test_no_run_directory_is_an_error(tmp_path: pathlib.Path):
    with pytest.raises(errors.RunDirectoryError, match=r"there is no run directory at .*/nowhere; check run.root"):
        gather(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b'{"fingerprint": '),
        ("run.json", b"[1, 2]"),
        ("run.json", b'{"seed": "\xff"}'),
        ("config.yaml", b"train: ["),
        ("config.yaml", b"- train"),
        ("summary.json", b"{}}"),
        ("records/stage-resolve.json", b'{"stage": "resolve"}'),
        ("records/segment-00000120.json", b'{"start": 60, "end": "far"}'),
        ("records/evaluation-00000120.json", b"\x00\x01"),
        ("records/actions-00000120.json", b'{"checkpoint": {}}'),
        ("records/actions-00000120.json", b"[]"),
        ("predictions/docstring_first_sentence-00000120.jsonl", b'{"inputs": "a"}\nnot json\n'),
        ("predictions/docstring_first_sentence-00000120.jsonl", b'["a"]\n'),
        ("metrics/train/metrics.jsonl", b'{"step": 1}\n{"st\n{"step": 3}\n'),
        ("metrics/train/metrics.jsonl", b'{"step": 1, "loss": [2]}\n'),
    ],
)
def test_damage_is_an_error_that_names_the_file(run: pathlib.Path, name: str, content: bytes):
    (run / name).write_bytes(content)
    with pytest.raises(errors.IntegrityError) as caught:
        gather(str(run))
    assert str((run / name).parent if name.startswith("metrics") else run / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_manifest_is_an_error_and_a_missing_one_is_not(run: pathlib.Path):
    path = next((run.parent / "datasets").glob("demo-*/manifest.json"))
    path.write_text(path.read_text().replace("9216", "9217"))
    with pytest.raises(errors.IntegrityError, match=r"manifest\.json"):
        gather(str(run))
    path.unlink()
    assert [dataset.stage.stage for dataset in gather(str(run)).datasets if dataset.manifest is None] == ["assemble"]


def test_a_prediction_that_a_kill_cut_off_is_passed_over(run: pathlib.Path):
    path = run / "predictions/docstring_first_sentence-00000240.jsonl"
    path.write_text(path.read_text() + '{"inputs": "half of')
    assert gather(str(run)).predictions[-1].total == 64


def test_values_that_json_cannot_write_come_back(tmp_path: pathlib.Path):
    run = fake_run.build(tmp_path, steps=120, nan_from=95)
    points = dict(gather(str(run)).series_of("train")[0].points(LOSS))
    assert math.isfinite(points[90])
    assert math.isnan(points[95])


def test_steps_without_an_evaluation_are_left_out(run: pathlib.Path):
    path = run / "records/evaluation-00000120.json"
    storage.write_json(path, {**json.loads(path.read_text()), "metrics": {}})
    assert [evaluation.step for evaluation in gather(str(run)).evaluations] == [60, 180, 240]


def test_records_of_another_cutting_are_passed_over(run: pathlib.Path):
    """A run of segments of 60 steps, taken up again with segments of 120 that overwrite the records of 120 and 240."""
    for end in (120, 240):
        path = run / f"records/segment-{end:08d}.json"
        parent = fake_run.checkpoint(run, end - 120).model_dump()
        storage.write_json(path, {**json.loads(path.read_text()), "start": end - 120, "parent": parent})
    record = gather(str(run))
    assert [(segment.start, segment.end) for segment in record.segments_to(240)] == [(0, 120), (120, 240)]
    assert [(segment.start, segment.end) for segment in record.segments_to(180)] == [(0, 120), (120, 180)]
    assert record.segments_to(0) == ()


def test_examples_are_shown_in_the_order_in_which_they_are_compared(run: pathlib.Path):
    example = gather(str(run)).predictions[-1].examples[0]
    assert list(example) == ["inputs", "target", "prediction"]


def test_reading_a_run_needs_no_heavy_package():
    code = (
        "import sys, t5core.report.closing, t5core.report.page; "
        "print([name for name in ('jax', 'numpy', 'tensorflow', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
