"""A short form of `make torture`: the whole command, killed at random and resumed, ends in the undisturbed bits."""

import subprocess
import sys

import pytest

from tests.workflows import command_line

pytestmark = pytest.mark.e2e


def test_runs_that_are_killed_at_random_end_in_the_undisturbed_bits(finished, prepared):
    command = [
        sys.executable,
        "-m",
        "tests.torture",
        "--kills",
        "2",
        "--seed",
        "1",
        "--folder",
        str(prepared.root.parent),
    ]
    done = subprocess.run(command, cwd=command_line.ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    digest = command_line.summary(finished.root)["state_digest"][:16]
    assert f"state digest {digest}\n" in done.stdout
    assert done.stdout.count(f"{digest} the same\n") == 2
    assert done.stdout.endswith("2 of 2 runs ended in the undisturbed digest\n")


def test_another_end_is_told_and_fails(tmp_path, monkeypatch, capsys):
    from tests import torture

    monkeypatch.setattr(torture, "_live", lambda *_: "a" * 64)
    other = torture.Outcome(killed_after=1.0, step=None, digest="b" * 64, seconds=2.0)
    monkeypatch.setattr(torture, "_killed_and_resumed", lambda *_, **__: other)
    assert torture.torture(tmp_path, kills=2, seed=0) == 1
    assert "none       2.0 s  bbbbbbbbbbbbbbbb DIFFERENT" in capsys.readouterr().out
