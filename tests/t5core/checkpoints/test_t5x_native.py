import json
import pathlib
import shutil

import flax.serialization
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
import tensorstore

from t5core import errors, trees
from t5core.checkpoints.t5x_native import read_t5x_checkpoint, t5x_checkpoint_steps, write_t5x_checkpoint

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "adafactor" / "t5x_encdec_v1_1" / "checkpoint_30"


def tree(step=7):
    rng = np.random.default_rng(0)
    kernel, scale = rng.normal(size=(6, 4)).astype(np.float32), np.zeros(6, np.float32)
    one = np.zeros(1, np.float32)
    return {
        "target": {"mlp": {"kernel": kernel}, "norm": {"scale": scale}, "half": kernel.astype(ml_dtypes.bfloat16)},
        "state": {
            "step": np.int32(step),
            "param_states": {
                "mlp": {"kernel": {"v_row": kernel[:, 0] ** 2, "v_col": kernel[0] ** 2, "v": one, "m": one}},
                "norm": {"scale": {"v_row": one, "v_col": one, "v": scale + 3, "m": one}},
            },
        },
    }


def index_of(folder):
    return flax.serialization.msgpack_restore((pathlib.Path(folder) / "checkpoint").read_bytes())


def write_index(folder, content):
    (pathlib.Path(folder) / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(content))


@pytest.fixture
def written(tmp_path):
    return write_t5x_checkpoint(str(tmp_path), 7, tree())


def test_what_is_written_is_read(written):
    found, expected = trees.flatten(read_t5x_checkpoint(written)), trees.flatten(tree())
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
        assert found[path].dtype == np.asarray(leaf).dtype


def test_the_layout_is_that_of_t5x(written):
    """Parameters and unfactored moments in folders, statistics and dummies in the index; readable by flax and zarr."""
    names = {path.name for path in pathlib.Path(written).iterdir()}
    assert names == {
        "checkpoint",
        "target.mlp.kernel",
        "target.norm.scale",
        "target.half",
        "state.param_states.norm.scale.v",
    }
    content = index_of(written)
    assert content["version"] == 3
    assert content["optimizer"]["target"]["mlp"]["kernel"] == {
        "driver": "zarr",
        "dtype": "float32",
        "kvstore": {"driver": "file", "path": "target.mlp.kernel/"},
        "metadata": {"shape": [6, 4], "chunks": [6, 4], "compressor": {"id": "gzip", "level": 1}},
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{written}/target.mlp.kernel/"}}
    array = tensorstore.open(spec, open=True).result().read().result()
    np.testing.assert_array_equal(array, tree()["target"]["mlp"]["kernel"])


def test_a_checkpoint_of_t5x_is_rewritten_file_by_file_the_same(tmp_path):
    is_there = {path.name for path in GOLDEN.iterdir()}
    content = read_t5x_checkpoint(
        str(GOLDEN), select=lambda path: path.startswith("state") or path.replace("/", ".") in is_there
    )
    original = trees.flatten(index_of(GOLDEN))
    rewritten = index_of(write_t5x_checkpoint(str(tmp_path), 30, content))
    for path, leaf in trees.flatten(rewritten).items():
        np.testing.assert_array_equal(leaf, original[path], err_msg=path)
    for folder in is_there - {"checkpoint"}:
        for name in (path.name for path in (GOLDEN / folder).iterdir()):
            assert (tmp_path / "checkpoint_30" / folder / name).is_file()


def test_only_what_is_selected_is_read(written):
    shutil.rmtree(f"{written}/target.mlp.kernel")
    found = read_t5x_checkpoint(written, select=lambda path: path == "target/norm/scale")
    assert list(trees.flatten(found)) == ["target/norm/scale"]


@pytest.mark.parametrize(
    "kvstore",
    [
        {"driver": "gfile", "path": "target.mlp.kernel"},
        {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": "target.mlp.kernel/"},
    ],
)
def test_arrays_are_looked_for_where_the_checkpoint_lies_now(written, kvstore, tmp_path):
    content = index_of(written)
    content["optimizer"]["target"]["mlp"]["kernel"]["kvstore"] = kvstore
    content["optimizer"]["target"]["mlp"]["kernel"]["transform"] = {
        "input_exclusive_max": [[6], [4]],
        "input_inclusive_min": [0, 0],
    }
    write_index(written, content)
    moved = tmp_path / "elsewhere" / "checkpoint_7"
    shutil.copytree(written, moved)
    found = read_t5x_checkpoint(str(moved))
    np.testing.assert_array_equal(found["target"]["mlp"]["kernel"], tree()["target"]["mlp"]["kernel"])


def test_scalars_of_either_kind_chunked_arrays_and_missing_states_are_read(written):
    content = index_of(written)
    optimizer = content["optimizer"]
    optimizer["state"]["step"] = np.int32(7)  # a numpy scalar; written as an array by others
    optimizer["state"]["param_states"]["frozen"] = None
    optimizer["target"]["big"] = {
        "__msgpack_chunked_array__": True,
        "shape": {"0": 2, "1": 3},
        "chunks": {"0": np.arange(4.0), "1": np.arange(4.0, 6.0)},
    }
    write_index(written, content)
    found = read_t5x_checkpoint(written)
    assert found["state"]["step"].shape == ()
    assert "frozen" not in found["state"]["param_states"]
    np.testing.assert_array_equal(found["target"]["big"], np.arange(6.0).reshape(2, 3))


def test_version_2_wrote_bfloat16_as_uint16(written):
    content = index_of(written)
    content["version"] = 2
    half = tree()["target"]["half"]
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{written}/target.half/"}}
    metadata = {"shape": [6, 4], "chunks": [6, 4], "dtype": "<u2"}
    store = tensorstore.open({**spec, "metadata": metadata}, create=True, delete_existing=True).result()
    store.write(half.view(np.uint16)).result()
    content["optimizer"]["target"]["half"]["dtype"] = "uint16"
    write_index(written, content)
    found = read_t5x_checkpoint(written)["target"]["half"]
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, half)


def test_steps_are_those_of_finished_checkpoints(tmp_path):
    for step in (10, 9):
        write_t5x_checkpoint(str(tmp_path), step, tree(step))
    (tmp_path / "checkpoint_11").mkdir()
    (tmp_path / "checkpoint_12.tmp-1700000000").mkdir()
    (tmp_path / "checkpoint_12.tmp-1700000000" / "checkpoint").write_bytes(b"")
    assert t5x_checkpoint_steps(str(tmp_path)) == (9, 10)
    assert t5x_checkpoint_steps(str(tmp_path / "nothing")) == ()


def test_large_arrays_are_cut_into_chunks_that_divide_them(tmp_path, monkeypatch):
    monkeypatch.setattr("t5core.checkpoints.t5x_native._CHUNK_BYTES", 200)
    content = {
        "target": {"kernel": np.arange(2 * 105, dtype=np.float32).reshape(105, 2)},
        "state": {"step": np.int32(1)},
    }
    folder = write_t5x_checkpoint(str(tmp_path), 1, content)
    assert index_of(folder)["optimizer"]["target"]["kernel"]["metadata"]["chunks"] == [7, 2]
    np.testing.assert_array_equal(read_t5x_checkpoint(folder)["target"]["kernel"], content["target"]["kernel"])


def test_a_failed_write_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device [tensorstore_spec='...']")

    monkeypatch.setattr(tensorstore, "open", refuse)
    with pytest.raises(errors.RunDirectoryError, match="No space left on device; free space or choose another folder"):
        write_t5x_checkpoint(str(tmp_path), 7, tree())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["state"].update(step=np.int32(8)), "state/step is 8, not 7; give the state of the "),
        (lambda content: content.pop("target"), "the tree holds ['state'] but no 'target'; give the parameters as "),
        (
            lambda content: content["target"].update(name=np.array("text")),
            "target/name has dtype <U4, which T5X cannot store; convert it first",
        ),
        (
            lambda content: content["target"].update({"mlp.kernel": np.zeros(3)}),
            "two arrays would be stored as 'target.mlp.kernel'; rename one",
        ),
    ],
)
def test_trees_that_t5x_could_not_read_are_not_written(tmp_path, change, message):
    content = tree()
    change(content)
    with pytest.raises(errors.CheckpointError) as raised:
        write_t5x_checkpoint(str(tmp_path), 7, content)
    assert str(raised.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_checkpoint_is_not_written_over(written, tmp_path):
    with pytest.raises(errors.CheckpointError, match="exists; remove it, or write another step"):
        write_t5x_checkpoint(str(tmp_path), 7, tree())


def kernel_spec(content):
    return content["optimizer"]["target"]["mlp"]["kernel"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: kernel_spec(c)["kvstore"].update(path="../secret"), "lies at '../secret', not in a folder of its "),
        (lambda c: kernel_spec(c)["kvstore"].update(path="/etc"), "lies at '/etc', not in a folder of its checkpoint"),
        (lambda c: kernel_spec(c)["kvstore"].update(path=""), "lies at '', not in a folder of its checkpoint"),
        (lambda c: kernel_spec(c)["kvstore"].pop("path"), "lies at None, not in a folder of its checkpoint"),
        (lambda c: kernel_spec(c)["kvstore"].update(path="file:x"), "lies at 'file:x', not in a folder of its "),
        (lambda c: kernel_spec(c).update(driver="n5"), "is not a zarr array but 'n5'; check the file"),
        (lambda c: kernel_spec(c).update(dtype="string"), "has dtype 'string', which is not of numbers"),
        (lambda c: kernel_spec(c)["metadata"].update(shape=[6, -4]), "has shape [6, -4]; check the file"),
        (
            lambda c: kernel_spec(c)["metadata"].update(shape=[4, 6]),
            "is float32[6, 4] on disk, but the checkpoint says",
        ),
        (lambda c: kernel_spec(c)["metadata"].update(shape=[1 << 50]), "bytes of arrays; raise max_bytes=274877906944"),
        (lambda c: kernel_spec(c).update(transform={"input_exclusive_max": [3, 4]}), "is a part of an array, which "),
        (lambda c: c.update(version=1), "has version 1, not 2 or 3; save it again with a current T5X"),
        (lambda c: c.pop("version"), "has version None, not 2 or 3; save it again with a current T5X"),
        (lambda c: c["optimizer"]["target"].update(note="text"), "target/note is a str, not an array; check the file"),
        (
            lambda c: c["optimizer"]["target"].update({"a/b": np.ones(1)}),
            "has the name 'a/b' below 'target'; names are ",
        ),
    ],
)
def test_indexes_that_cannot_be_trusted_are_refused(written, change, message):
    content = index_of(written)
    change(content)
    write_index(written, content)
    with pytest.raises(errors.CheckpointError) as raised:
        read_t5x_checkpoint(written)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def packed(optimizer):
    return msgpack.packb({"version": 3, "optimizer": optimizer})


def array(shape, dtype, content):
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, content)))


def deep(levels):
    return packed(None)[:-1] + b"\x81\xa1x" * levels + b"\xc0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged ("),
        (b"\xc1", "is damaged ("),
        (msgpack.packb([1, 2]), "holds a list, not a T5X checkpoint; check the path"),
        (packed({"x": msgpack.ExtType(99, b"")}), "is damaged (extension 99 at byte "),
        (
            packed({"x": array((9,), "float32", b"1234")}),
            "is damaged (cannot reshape array of size 1 into shape (9,)); ",
        ),
        (packed({"x": array((1,), "object", b"12345678")}), "is damaged ("),
        (packed({"x": array((1,), "S4", b"abcd")}), "x has dtype |S4, which is not of numbers"),
        (deep(100), "is damaged (nested deeper than 64 levels); copy the checkpoint again"),
        (deep(100_000), "is damaged (nested deeper than 64 levels); copy the checkpoint again"),
        (b"model_checkpoint_path: 'model.ckpt-1'", "is a TensorFlow checkpoint; convert it with T5X to its native "),
    ],
    ids=["empty", "garbage", "list", "unknown", "short", "objects", "text", "deep", "very deep", "TensorFlow"],
)
def test_files_that_are_no_index_are_refused(tmp_path, content, message):
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(errors.CheckpointError) as raised:
        read_t5x_checkpoint(str(tmp_path))
    assert message in str(raised.value)


def test_a_truncated_index_is_refused(written):
    index = pathlib.Path(written) / "checkpoint"
    index.write_bytes(index.read_bytes()[:-100])
    with pytest.raises(errors.CheckpointError, match="checkpoint is damaged"):
        read_t5x_checkpoint(written)


@pytest.mark.parametrize("damage", ["flip a bit", "cut short", "lose a chunk", "lose the metadata", "lose the array"])
def test_damaged_arrays_are_named(written, damage):
    folder = pathlib.Path(written) / "target.mlp.kernel"
    chunk = folder / "0.0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    {
        "flip a bit": lambda: chunk.write_bytes(content),
        "cut short": lambda: chunk.write_bytes(content[:20]),
        "lose a chunk": chunk.unlink,
        "lose the metadata": (folder / ".zarray").unlink,
        "lose the array": lambda: shutil.rmtree(folder),
    }[damage]()
    with pytest.raises(errors.CheckpointError) as raised:
        read_t5x_checkpoint(written)
    assert "checkpoint_7: target/mlp/kernel cannot be read: " in str(raised.value)
    assert str(raised.value).endswith("; copy the checkpoint again")


def test_an_array_whose_chunks_would_fill_the_memory_is_refused(written):
    metadata = pathlib.Path(written) / "target.mlp.kernel" / ".zarray"
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "chunks": [1 << 20, 1 << 20]}))
    with pytest.raises(errors.CheckpointError, match="has chunks of 4398046511104 bytes, which T5X never writes"):
        read_t5x_checkpoint(written)


def test_other_places_say_what_is_there(written, tmp_path):
    (tmp_path / "orbax" / "state").mkdir(parents=True)
    (tmp_path / "orbax" / "state" / "_METADATA").write_text("{}")
    for uri, message in (
        (tmp_path / "nothing", "it has no file 'checkpoint'; check the path"),
        (tmp_path / "orbax", "is an Orbax checkpoint, not a native T5X one; restore it as a run's own"),
        (tmp_path, f"holds the checkpoints of steps (7,); name one, such as {written}"),
    ):
        with pytest.raises(errors.CheckpointError) as raised:
            read_t5x_checkpoint(str(uri))
        assert str(raised.value).endswith(message)


def test_arrays_of_jax_are_written_too(tmp_path):
    folder = write_t5x_checkpoint(
        str(tmp_path), 1, {"target": {"a": jnp.ones((2, 3), jnp.bfloat16)}, "state": {"step": jnp.int32(1)}}
    )
    assert read_t5x_checkpoint(folder)["target"]["a"].dtype == ml_dtypes.bfloat16
