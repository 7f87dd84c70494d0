from __future__ import annotations

import pathlib

import pytest

from tests.t5core.report import fake_run


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    """A finished run of 240 steps in 4 segments, without a summary."""
    return fake_run.build(tmp_path / "runs")
