"""Bytes that are not UTF-8: refused with their place, replaced, or dropped, as the task says; always counted."""

import pyarrow
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.data.sources import TRAIN, TaskSource
from t5core.preflight import sample

GOOD, BAD = "gut ☃".encode(), b"b\xffd\xe2"


def write(folder, suffix):
    """Writes GOOD, BAD, GOOD, BAD and returns the file and where each bad one stands."""
    file, texts = folder / f"a{suffix}", [GOOD, BAD, GOOD, BAD]
    if suffix == ".parquet":
        offsets = pyarrow.array([0, 7, 11, 18, 22], pyarrow.int32()).buffers()[1]
        column = pyarrow.StringArray.from_buffers(4, offsets, pyarrow.py_buffer(b"".join(texts)))
        parquet.write_table(pyarrow.table({"text": column}), file)
        return file, (2, 4)
    if suffix == ".jsonl":
        file.write_bytes(b"".join(b'{"text": "%s"}\n' % text for text in texts))
        return file, (2, 4)
    header = b"" if suffix == ".txt" else b"text\n"
    lines = [b'"%s"' % text if suffix == ".csv" else text for text in texts]
    file.write_bytes(header + b"".join(line + b"\r\n" for line in lines))
    return file, (2, 4) if suffix == ".txt" else (3, 5)


def source(file, policy):
    return TaskSource(TaskConfig(name="t", files=[str(file)], validation_fraction=0, invalid_utf8=policy))


def texts(found):
    return [document.columns["text"] for document in found.documents(TRAIN)]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".tsv", ".csv", ".parquet"])
class TestPolicy:
    def test_error_names_file_line_and_byte(self, tmp_path, suffix):
        file, (first, _) = write(tmp_path, suffix)
        with pytest.raises(errors.DataError) as caught:
            source(file, "error").scan  # noqa: B018 - the look is what is tested
        assert str(caught.value).startswith(f"{file}:{first}: byte 0xff at position ")
        assert str(caught.value).endswith(
            " is not UTF-8; convert the file to UTF-8, or set the task's invalid_utf8 to replace or drop"
        )

    def test_replace_keeps_the_rest_of_the_text_and_counts(self, tmp_path, suffix):
        file, (first, _) = write(tmp_path, suffix)
        found = source(file, "replace")
        assert texts(found) == ["gut ☃", "b\ufffdd\ufffd"] * 2
        assert found.scan.noted[TRAIN] == {"invalid UTF-8 replaced": 2}
        assert found.scan.first[TRAIN] == {"invalid UTF-8 replaced": f"{file}:{first}"}
        assert found.scan.dropped[TRAIN] == {}

    def test_drop_leaves_the_row_out_and_counts(self, tmp_path, suffix):
        file, (first, _) = write(tmp_path, suffix)
        found = source(file, "drop")
        assert texts(found) == ["gut ☃"] * 2
        assert found.scan.dropped[TRAIN] == {"invalid UTF-8": 2}
        assert found.scan.first[TRAIN] == {"invalid UTF-8": f"{file}:{first}"}
        assert found.scan.noted[TRAIN] == {}

    @pytest.mark.parametrize(
        ("policy", "expected"), [("replace", ["gut ☃", "b\ufffdd\ufffd"] * 2), ("drop", ["gut ☃"] * 2)]
    )
    def test_the_look_ahead_takes_what_is_kept(self, tmp_path, suffix, policy, expected):
        file, _ = write(tmp_path, suffix)
        task = TaskConfig(name="t", files=[str(file)], validation_fraction=0, invalid_utf8=policy)
        assert [found["text"] for found in sample._of_heads(task, task.files).documents] == expected


@pytest.mark.parametrize(("policy", "expected"), [("replace", ["fine", "half \ufffd"]), ("drop", ["fine"])])
def test_half_a_surrogate_pair_in_json_is_treated_alike(tmp_path, policy, expected):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "half \\ud83c"}\n')
    assert texts(source(tmp_path / "a.jsonl", policy)) == expected


def test_a_replacement_character_of_the_text_itself_is_no_damage(tmp_path):
    (tmp_path / "a.txt").write_text("kept \ufffd\n")
    found = source(tmp_path / "a.txt", "drop")
    assert texts(found) == ["kept \ufffd"]
    assert found.scan.dropped[TRAIN] == {}
