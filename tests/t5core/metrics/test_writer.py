"""Metrics by step: every step once, whatever was killed, and every number as it was."""

import json
import math
import os
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from t5core import errors
from t5core.metrics.writer import MetricWriter, read_metrics


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "metrics" / "train")


def write(folder, *steps, resume_step=0, tensorboard=False):
    with MetricWriter(folder, resume_step, tensorboard=tensorboard) as writer:
        for step in steps:
            writer.write(step, {"loss": step / 10})


def steps_in(folder):
    return [row["step"] for row in read_metrics(folder)]


def test_lines_are_there_as_soon_as_they_are_written(folder):
    assert read_metrics(folder) == []
    with MetricWriter(folder, 0, tensorboard=False) as writer:
        writer.write(1, {"loss": np.float32(0.1), "count": 3})
        assert read_metrics(folder) == [{"step": 1, "loss": float(np.float32(0.1)), "count": 3.0}]


def test_steps_that_are_taken_again_are_there_once(folder):
    write(folder, 1, 2, 3, 4, 5)
    write(folder, 4, 5, 6, resume_step=3)
    assert steps_in(folder) == [1, 2, 3, 4, 5, 6]
    write(folder, resume_step=2)
    assert steps_in(folder) == [1, 2]
    write(folder, 0, 1, resume_step=-1)
    assert steps_in(folder) == [0, 1]


def test_resuming_after_the_last_line_does_not_rewrite_the_file(folder):
    write(folder, 1, 2)
    before = os.stat(f"{folder}/metrics.jsonl").st_ino
    write(folder, 3, resume_step=2)
    assert os.stat(f"{folder}/metrics.jsonl").st_ino == before


def test_a_line_cut_short_by_a_kill_is_passed_over_and_dropped(folder):
    write(folder, 1, 2)
    with open(f"{folder}/metrics.jsonl", "a") as handle:
        handle.write('{"step": 3, "lo')
    assert steps_in(folder) == [1, 2]
    write(folder, 3, resume_step=2)
    assert steps_in(folder) == [1, 2, 3]


def test_numbers_that_json_has_no_word_for_are_strict_json_and_come_back(folder):
    numbers = {"nan": math.nan, "up": math.inf, "down": -math.inf, "half": ml_dtypes.bfloat16(0.5), "small": 5e-324}
    with MetricWriter(folder, 0, tensorboard=False) as writer:
        writer.write(1, numbers)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    with open(f"{folder}/metrics.jsonl") as handle:
        assert json.loads(handle.read(), parse_constant=refuse)["nan"] == "NaN"
    (row,) = read_metrics(folder)
    assert math.isnan(row.pop("nan"))
    assert row == {"step": 1, "up": math.inf, "down": -math.inf, "half": 0.5, "small": 5e-324}


@pytest.mark.parametrize("line", ["{'step': 1}", '{"loss": 1.0}', "[1]"])
def test_a_damaged_line_is_named(folder, line):
    write(folder, 1)
    with open(f"{folder}/metrics.jsonl", "a") as handle:
        handle.write(line + "\n")
    with pytest.raises(errors.IntegrityError, match=r"metrics.jsonl, line 2 (is not JSON|has no step)"):
        read_metrics(folder)
    with pytest.raises(errors.IntegrityError, match=r"metrics.jsonl, near its end, (is not JSON|has no step)"):
        write(folder, resume_step=1)


def test_tensorboard_shows_each_step_once(folder, monkeypatch):
    # With a module of this name TensorBoard does without TensorFlow, which takes half a minute to import.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(folder, 1, 2, 3, 4, tensorboard=True)
    write(folder, 3, 4, 5, resume_step=2, tensorboard=True)
    files = [name for name in os.listdir(folder) if "tfevents" in name]
    assert len(files) == 2  # though both were started within one second
    events = EventAccumulator(folder).Reload()
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("loss")] == [
        (step, step / 10) for step in (1, 2, 3, 4, 5)
    ]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "metrics").write_text("a file in the way")
    with pytest.raises(
        errors.RunDirectoryError, match=r"cannot write .*metrics.jsonl: .*; free space or choose another"
    ):
        write(str(tmp_path / "metrics" / "train"), 1)


def test_a_step_is_written_once(folder):
    with (
        MetricWriter(folder, 3, tensorboard=False) as writer,
        pytest.raises(AssertionError, match="step 3 was written already; the last one is 3"),
    ):
        writer.write(3, {})
