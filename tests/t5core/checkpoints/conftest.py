"""Folders of checkpoints, made once and copied for each test."""

import shutil

import pytest

from tests.t5core.checkpoints.states import save_steps


@pytest.fixture(scope="session")
def two_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    save_steps(folder, 10, 20)
    return folder


@pytest.fixture
def copy(two_steps, tmp_path):
    return shutil.copytree(two_steps, tmp_path / "checkpoints")
