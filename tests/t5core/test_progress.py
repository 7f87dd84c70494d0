"""Progress in plain lines: some on the way, one at the end, none twice."""

import re

from t5core import progress


def lines_of(capsys):
    return [re.sub(r"\d+\.\d s", "N s", line) for line in capsys.readouterr().out.splitlines()]


def test_a_short_stage_is_one_line(capsys):
    with progress.stage("train", total=4, unit="steps", start=1) as bar:
        bar.advance(1, loss=2.0)
        bar.advance(2, loss=1.23456)
    assert lines_of(capsys) == ["  train: 4/4 steps  loss 1.235  (N s)"]


def test_a_long_stage_speaks_on_the_way(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.stage("read", total=None, unit="rows") as bar:
        bar.advance(5)
        bar.advance(2)
    assert lines_of(capsys) == ["  read: 5 rows", "  read: 7 rows", "  read: finished (N s)"]


def test_a_stage_that_did_nothing_says_nothing(capsys):
    with progress.stage("read", total=None, unit="rows"):
        pass
    assert lines_of(capsys) == []
