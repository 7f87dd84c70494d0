"""Reuse of datasets: found again when nothing changed, and the reason when something did."""

from __future__ import annotations

import datetime
import re
import shutil

import pytest

from t5core import sharing
from t5core.data import manifest, store
from t5core.lock import RunLock
from tests.t5core.data.making import examples, task_dataset

PARTS = {"data": "1", "vocabulary": "1", "settings": "1", "code": "1"}


def test_the_first_lookup_finds_nothing(tmp_path):
    uri, found, reason = manifest.reuse_or_reason(str(tmp_path), "a", PARTS)
    assert uri == f"{tmp_path}/datasets/a-{manifest.fingerprint_of(PARTS)}"
    assert (found, reason) == (None, "no dataset yet")


def test_the_same_parts_are_a_hit(tmp_path):
    made = task_dataset(str(tmp_path), "a", examples(5), parts=PARTS)
    uri, found, reason = manifest.reuse_or_reason(str(tmp_path), "a", PARTS)
    assert reason == f"fingerprint {made.fingerprint} unchanged"
    assert found == made.model_copy(update={"reused": True, "reason": reason})
    assert found.rows == 5
    assert uri == made.uri


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"code": "2"}, "code changed"),
        ({"vocabulary": "2", "code": "2"}, "code and vocabulary changed"),
        ({"filters": "1"}, "filters changed"),
        ({"data": "2"}, "data changed"),
    ],
)
def test_a_miss_names_what_changed_since_the_newest(tmp_path, change, reason):
    task_dataset(str(tmp_path), "a", examples(5), parts={**PARTS, "settings": "0", "code": "0"})
    newest = task_dataset(str(tmp_path), "a", examples(5), parts=PARTS)
    task_dataset(str(tmp_path), "a-b", examples(5), parts={"data": "other"})  # another task, though it sounds alike
    _, found, why = manifest.reuse_or_reason(str(tmp_path), "a", {**PARTS, **change})
    assert found is None
    assert why == f"{reason} since fingerprint {newest.fingerprint}"


def test_one_of_the_same_data_explains_more_than_a_newer_one(tmp_path):
    same = task_dataset(str(tmp_path), "a", examples(5), parts=PARTS)
    task_dataset(str(tmp_path), "a", examples(5), parts={**PARTS, "data": "of another run"})
    _, _, why = manifest.reuse_or_reason(str(tmp_path), "a", {**PARTS, "code": "2"})
    assert why == f"code changed since fingerprint {same.fingerprint}"


def test_a_damaged_neighbour_does_not_matter(tmp_path):
    made = task_dataset(str(tmp_path), "a", examples(5), parts=PARTS)
    with open(f"{made.uri}/manifest.json", "a") as handle:
        handle.write("x")
    _, found, reason = manifest.reuse_or_reason(str(tmp_path), "a", {**PARTS, "code": "2"})
    assert (found, reason) == (None, "no dataset yet")


def make_a(uri):
    """Makes the dataset `a` of PARTS, wherever it is asked for."""
    root = uri.rpartition("/datasets/")[0]
    return manifest.load(task_dataset(root, "a", examples(5), parts=PARTS).uri)


@pytest.mark.parametrize("file", ["train/inputs/c/0/0", "manifest.json"])
def test_a_hit_that_is_damaged_is_a_miss_with_a_reason_and_made_again(tmp_path, file):
    root = str(tmp_path)
    made = manifest.reuse_or_make(root, "a", PARTS, make_a)
    assert (made.reused, made.reason) == (False, "no dataset yet")
    whole = store.read_manifest(made.uri)
    with open(f"{made.uri}/{file}", "a") as handle:
        handle.write("x")
    again = manifest.reuse_or_make(root, "a", PARTS, make_a)
    assert not again.reused
    assert re.fullmatch(rf"the one there is damaged: .*{file} (has|is) [^;]*", again.reason)
    assert store.read_manifest(made.uri).files == whole.files
    assert manifest.reuse_or_make(root, "a", PARTS, make_a).reused


def test_one_that_another_run_is_making_is_waited_for_and_taken(tmp_path, monkeypatch):
    root = str(tmp_path)
    other = RunLock(f"{root}/made/a-{manifest.fingerprint_of(PARTS)}.lock", owner="another run")
    other.acquire()

    def wait(seconds):
        make_a(manifest.dataset_uri(root, "a", PARTS))
        other.release()

    monkeypatch.setattr(sharing.time, "sleep", wait)
    made = manifest.reuse_or_make(root, "a", PARTS, lambda uri: pytest.fail("made twice"))
    assert (made.reused, made.reason) == (True, f"fingerprint {made.fingerprint} unchanged")


def test_a_hit_that_is_gone_is_a_miss_with_a_reason(tmp_path):
    made = manifest.reuse_or_make(str(tmp_path), "a", PARTS, make_a)
    shutil.rmtree(made.uri)
    again = manifest.reuse_or_make(str(tmp_path), "a", PARTS, make_a)
    today = datetime.datetime.now(datetime.UTC).date()
    assert (again.reused, again.reason) == (False, f"made on {today}, and gone from {made.uri}")
