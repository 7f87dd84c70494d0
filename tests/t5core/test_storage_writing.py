"""Files of any size appear whole, or not at all."""

import pytest

from t5core import errors, storage


def test_a_file_appears_when_its_writer_is_done(tmp_path):
    target = tmp_path / "deep" / "file"
    with storage.writing(target) as handle:
        handle.write(b"one ")
        assert not target.exists()
        handle.write(b"two")
    assert target.read_bytes() == b"one two"
    assert [entry.name for entry in target.parent.iterdir()] == ["file"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(TypeError), storage.writing(target) as handle:
        handle.writelines([b"half", None])
    assert target.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_refusal_is_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(errors.RunDirectoryError, match=r"cannot write .*file/below: "),
        storage.writing(tmp_path / "file/below"),
    ):
        raise AssertionError("nothing is written")


def test_a_place_below_the_current_directory_is_told_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.near(f"{tmp_path}/runs/demo") == "runs/demo"
    assert storage.near("gs://bucket/runs") == "gs://bucket/runs"
    assert storage.near(f"{tmp_path}-beside/runs") == f"{tmp_path}-beside/runs"
