import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from t5core import errors
from t5core.importers import safetensors_file


def tensors():
    random = np.random.default_rng(0)
    return {
        "kernel": random.normal(size=(3, 4)).astype(np.float32),
        "ids": np.arange(5, dtype=np.int64),
        "scalar": np.array(2.5, np.float16),
        "none": np.zeros((0, 3), np.float32),
    }


def test_the_library_reads_what_is_written_and_we_read_what_it_writes(tmp_path):
    safetensors_file.write(str(tmp_path / "ours"), tensors())
    save_file(tensors(), tmp_path / "theirs")
    for found in (load_file(tmp_path / "ours"), safetensors_file.read(str(tmp_path / "theirs"))):
        assert found.keys() == tensors().keys()
        for name, tensor in tensors().items():
            np.testing.assert_array_equal(found[name], tensor, strict=True)


def packed(header, content=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_bfloat16_is_read(tmp_path):
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    (tmp_path / "file").write_bytes(packed({"half": entry("BF16", (2,), (0, 4))}, half.tobytes()))
    np.testing.assert_array_equal(safetensors_file.read(str(tmp_path / "file"))["half"], half, strict=True)


HOSTILE = {
    "empty": (b"", "it has 0 bytes, and 8 tell the length of its header"),
    "header beyond the file": (packed({}, length=1000), "its header claims 1000 bytes, and 2 follow"),
    "huge header": (packed({}, length=2**63), "its header claims 9223372036854775808 bytes"),
    "no JSON": (packed(b"{nonsense"), "Expecting property name"),
    "no UTF-8": (packed(b"{\xff}"), "can't decode byte 0xff"),
    "a list": (packed(b"[]"), "its header does not begin with '{'"),
    "deep": (packed(b'{"a":' * 100_000), "its header is nested too deeply"),
    "twice": (packed(b'{"a": 1, "a": 2}'), "its header names 'a' twice"),
    "metadata": (packed({"__metadata__": {"a": 1}}), "its __metadata__ is not text by name"),
    "no entry": (packed({"a": 3}), "its header says 3 of 'a', not dtype, shape and data_offsets"),
    "dtype": (packed({"a": entry("F31")}, b"1234"), "unknown dtype of 'a' 'F31'; did you mean 'F32'?"),
    "negative size": (packed({"a": entry(shape=(-1, -1))}, b"1234"), "'a' has the shape [-1, -1]"),
    "many dims": (packed({"a": entry(shape=(1,) * 9)}, b"1234"), "'a' has the shape [1, 1, 1,"),
    "a bool for a size": (packed({"a": entry(shape=(True,))}, b"1234"), "'a' has the shape [True]"),
    "beyond the end": (packed({"a": entry(shape=(2,), offsets=(0, 8))}, b"1234"), "'a' lies at [0, 8], and the file"),
    "backwards": (packed({"a": entry(offsets=(4, 0))}, b"1234"), "'a' lies at [4, 0], and the file has 4 bytes"),
    "size and shape": (packed({"a": entry(shape=(1 << 60,))}, b"1234"), "'a' has 4 bytes, and 4611686018427387904 go"),
    "overlap": (packed({"a": entry(), "b": entry()}, b"1234"), "'b' begins at 0, where 4 was to be expected"),
    "gap": (packed({"a": entry(offsets=(4, 8))}, b"12345678"), "'a' begins at 4, where 0 was to be expected"),
    "more behind": (packed({"a": entry()}, b"12345678"), "its tensors end at 4, and the file has 8 bytes of them"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_cannot_be_trusted_are_refused_in_one_line(name, tmp_path):
    content, message = HOSTILE[name]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(errors.CheckpointError) as raised:
        safetensors_file.read(str(tmp_path / "file"))
    assert message in str(raised.value)
    assert str(raised.value).endswith("; copy the checkpoint again")
    assert "\n" not in str(raised.value)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_damage_anywhere_in_a_header_is_an_error_or_leaves_whole_tensors(tmp_path_factory, at, bytes_):
    file = tmp_path_factory.mktemp("damaged") / "file"
    save_file({name: tensor for name, tensor in tensors().items() if name != "none"}, file)
    content = bytearray(file.read_bytes())
    content[at : at + len(bytes_)] = bytes_
    file.write_bytes(content)
    try:
        found = safetensors_file.read(str(file))
    except errors.CheckpointError:
        return
    assert sum(tensor.nbytes for tensor in found.values()) <= len(content)


@pytest.mark.parametrize("size", [7, 8, 50, -1])
def test_a_truncated_file_is_refused(size, tmp_path):
    save_file(tensors(), tmp_path / "file")
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:size])
    with pytest.raises(errors.CheckpointError, match="is damaged"):
        safetensors_file.read(str(tmp_path / "file"))
