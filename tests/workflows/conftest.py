"""One finished run for the whole folder: a tiny text through the whole DAG, as a user starts it."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import pytest

from tests.workflows import command_line
from tests.workflows.command_line import Done


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run: its root, its config file, and what it printed."""

    root: pathlib.Path
    config: pathlib.Path
    done: Done

    @property
    def directory(self) -> pathlib.Path:
        """The run directory."""
        return self.root / "tiny"


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    command_line.write_text(folder / "text")
    config = command_line.write_config(folder, root=folder / "runs", text=folder / "text")
    done = command_line.run("--config", str(config))
    assert done.code == 0, done.text
    return Finished(root=folder / "runs", config=config, done=done)


@pytest.fixture
def prepared(finished, tmp_path) -> Finished:
    """A root with the datasets and compiled programs of the finished run, but no run: training starts at once."""
    root = tmp_path / "runs"
    for part in ("datasets", "vocabularies", "compilation-cache"):
        shutil.copytree(finished.root / part, root / part)
    text = finished.config.parent / "text"
    return Finished(root=root, config=command_line.write_config(tmp_path, root=root, text=text), done=finished.done)
