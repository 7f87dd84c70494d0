"""Runs that need the same thing at once make it once, and one that dies is followed by the next."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from t5core import errors, sharing

PROGRAM = """
import pathlib, sys, time
from t5core import sharing

root, name, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
thing, count = root / "thing", root / "makers"
sharing.POLL_SECONDS = 0.05

def find():
    return thing.read_text() if thing.exists() else None

def make():
    with count.open("a") as makers:
        makers.write(name + "\\n")
    time.sleep(seconds)
    thing.write_text(name)
    return name

print(sharing.made_once(str(root), "thing-1", find=find, make=make), flush=True)
"""


def start(root: pathlib.Path, name: str, *, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(root), name, str(seconds)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=dict(os.environ))


def makers(root: pathlib.Path) -> list[str]:
    file = root / "makers"
    return file.read_text().split() if file.exists() else []


def wait_for(condition) -> None:
    while not condition():
        time.sleep(0.02)


def test_two_processes_at_once_make_it_once_and_the_second_waits(tmp_path):
    first = start(tmp_path, "one", seconds=1.5)
    wait_for(lambda: makers(tmp_path))
    second = start(tmp_path, "two", seconds=0)
    said = [process.communicate()[0].splitlines() for process in (first, second)]
    assert said[0] == ["one"]
    assert said[1] == ["  thing-1 is being made by another run: waiting for it", "one"]
    assert makers(tmp_path) == ["one"]


def test_the_one_that_waits_takes_over_when_the_first_dies(tmp_path):
    first = start(tmp_path, "one", seconds=600)
    wait_for(lambda: makers(tmp_path))
    second = start(tmp_path, "two", seconds=0)
    assert second.stdout.readline() == "  thing-1 is being made by another run: waiting for it\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.communicate()[0] == "two\n"
    assert makers(tmp_path) == ["one", "two"]


def test_what_is_there_needs_no_lock_and_leaves_no_trace(tmp_path):
    assert sharing.made_once(str(tmp_path), "a", find=lambda: 1, make=lambda: 2) == 1
    assert list(tmp_path.iterdir()) == []
    assert sharing.when_made(str(tmp_path), "a") is None


def test_what_goes_away_when_it_has_served_leaves_no_note(tmp_path):
    assert sharing.made_once(str(tmp_path), "a", find=lambda: None, make=lambda: 2, note=False) == 2
    assert sharing.when_made(str(tmp_path), "a") is None
    assert list((tmp_path / "made").iterdir()) == []


def test_a_record_of_what_was_made_that_is_damaged_is_named(tmp_path):
    sharing.made_once(str(tmp_path), "a", find=lambda: None, make=lambda: 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", sharing.when_made(str(tmp_path), "a"))
    (tmp_path / "made" / "a.json").write_text("[]")
    with pytest.raises(errors.IntegrityError, match=r"made/a.json does not say when it was made; delete it and run"):
        sharing.when_made(str(tmp_path), "a")


def test_a_failure_frees_the_place_and_does_not_count_as_made(tmp_path):
    def fails():
        raise RuntimeError("no")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            sharing.made_once(str(tmp_path), "a", find=lambda: None, make=fails)
    assert sharing.when_made(str(tmp_path), "a") is None
    assert list((tmp_path / "made").iterdir()) == []
