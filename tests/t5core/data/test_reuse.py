"""What makes a dataset another one although its settings are the same: changed code, changed text behind the path."""

from __future__ import annotations

import pytest

from t5core import fingerprints
from t5core.data import manifest
from t5core.data.materialise import task_parts
from tests.t5core.data.making import examples, task_dataset
from tests.t5core.data.task_runs import request_of, run_of


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "train.txt"
    file.write_text("".join(f"line {number} of the text\n" for number in range(50)))
    return file


def reason_to_make(root, text):
    """Returns why the dataset of `text` would be made, None when it would be taken as it is."""
    run = run_of(root, [{"name": "a", "files": [str(text)]}])
    parts = task_parts(run, run.config.data.tasks[0], request_of(run).vocabulary)
    found = manifest.reuse_or_reason(str(root), "a", parts)
    if found.found is None:
        task_dataset(str(root), "a", examples(3), parts=parts)
    return None if found.found else found.reason


def edited(monkeypatch, module, change):
    """Has the source of `module` read as if `change` had been made to it."""
    read = fingerprints._source_of
    monkeypatch.setattr(
        fingerprints,
        "_source_of",
        lambda name: change(read(name)) if fingerprints._name(name) == module else read(name),
    )


@pytest.mark.parametrize("module", ["t5core.data.objectives", "t5core.data.spans", "t5core.data.noise"])
def test_a_changed_body_makes_it_again_and_a_comment_does_not(tmp_path, text, monkeypatch, module):
    assert reason_to_make(tmp_path, text) == "no dataset yet"
    assert reason_to_make(tmp_path, text) is None
    with monkeypatch.context() as patched:
        edited(patched, module, lambda source: f"{source}\n\n# A remark.\n")
        assert reason_to_make(tmp_path, text) is None
    with monkeypatch.context() as patched:
        edited(patched, module, lambda source: source.replace("return ", "return not ", 1))
        assert reason_to_make(tmp_path, text).startswith("code changed since fingerprint ")
    assert reason_to_make(tmp_path, text) is None, "the old code finds the old dataset"


def test_a_line_more_behind_the_same_path_makes_it_again(tmp_path, text):
    assert reason_to_make(tmp_path, text) == "no dataset yet"
    before = text.read_text()
    text.write_text(before + "one line more\n")
    assert reason_to_make(tmp_path, text).startswith("data changed since fingerprint ")
    text.write_text(before)
    assert reason_to_make(tmp_path, text) is None
