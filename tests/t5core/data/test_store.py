"""The dataset store: what is read is what was written, or an error that names the file."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from t5core import errors, storage
from t5core.data import manifest, store
from t5core.data.manifest import FeatureSpec, Manifest

FEATURES = {"inputs": FeatureSpec(dtype="uint16", length=6), "masks": FeatureSpec(dtype="uint8", length=3)}
ROWS = 150


def _content(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    content = {"inputs": rng.integers(0, 60_000, (rows, 6)), "masks": rng.integers(0, 2, (rows, 3))}
    if rows:
        content["inputs"][32:64] = 0  # a whole chunk of the fill value
    return content


def _write(uri, *, rows=ROWS, seed=0, steps=(7, 100, 43), extra="line\n"):
    content, begin = _content(rows, seed), 0
    with store.DatasetWriter(str(uri)) as writer:
        train = writer.rows("train", FEATURES, rows_per_shard=64)
        for step in steps:
            train.append({name: values[begin : begin + step] for name, values in content.items()})
            begin += step
        splits = {"train": train.close(), "validation": writer.rows("validation", FEATURES).close()}
        storage.write_text(f"{writer.folder}/validation.jsonl", extra)
        return writer.commit(Manifest(kind="task", name="t", fingerprint="f", parts={"data": "d"}, splits=splits))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    uri = tmp_path_factory.mktemp("store") / "t-f"
    _write(uri)
    return uri


@pytest.fixture
def dataset(pristine, tmp_path):
    return pathlib.Path(shutil.copytree(pristine, tmp_path / "t-f"))


def test_rows_come_back_by_range_and_by_index(pristine):
    reader, content = store.RowReader(str(pristine)), _content()
    assert reader.num_rows == ROWS
    part = reader.read(60, 131)
    scattered = reader.read_rows(np.array([149, 0, 63, 64, 0]))
    for name, values in content.items():
        assert part[name].dtype == FEATURES[name].dtype
        assert (part[name] == values[60:131]).all()
        assert (scattered[name] == values[[149, 0, 63, 64, 0]]).all()


def test_an_empty_split_and_an_empty_range_have_no_rows(pristine):
    empty = store.RowReader(str(pristine), split="validation")
    assert empty.num_rows == 0
    assert empty.read(0, 0)["inputs"].shape == (0, 6)
    assert store.RowReader(str(pristine)).read(5, 5)["masks"].shape == (0, 3)


def test_rows_outside_are_refused(pristine):
    reader = store.RowReader(str(pristine))
    with pytest.raises(IndexError, match=re.escape("rows [100, 151) of 150")):
        reader.read(100, 151)
    with pytest.raises(IndexError, match=re.escape("rows -1..0 of 150")):
        reader.read_rows(np.array([0, -1]))


def test_the_bytes_do_not_depend_on_how_rows_were_appended(pristine, tmp_path):
    other = _write(tmp_path / "other", steps=(150,))
    assert other.files == store.read_manifest(str(pristine)).files


def test_the_manifest_counts_rows_and_tokens(pristine):
    record = store.read_manifest(str(pristine)).splits["train"]
    assert record.rows == ROWS
    assert record.tokens == {name: np.count_nonzero(values) for name, values in _content().items()}


def test_shards_of_one_size_have_different_checksums(pristine):
    """A CRC-32C over chunks that each end in their own CRC-32C would be the same for all of them."""
    files = store.read_manifest(str(pristine)).files
    one, two = files["train/inputs/c/0/0"], files["train/inputs/c/1/0"]
    assert one.size == two.size
    assert one.md5 != two.md5


def test_a_value_that_does_not_fit_is_refused(tmp_path):
    with store.DatasetWriter(str(tmp_path / "d")) as writer:
        rows = writer.rows("train", {"inputs": FeatureSpec(dtype="uint16", length=2)})
        with pytest.raises(errors.DataError, match="feature 'inputs' holds 65536, which uint16 cannot"):
            rows.append({"inputs": np.array([[1, 65_536]])})


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "int32")])
def test_tokens_are_stored_as_narrow_as_the_vocabulary_allows(size, dtype):
    assert manifest.token_dtype(size) == dtype


def _files(dataset):
    return sorted(path.relative_to(dataset).as_posix() for path in dataset.rglob("*") if path.is_file())


def _read_everything(dataset):
    reader = store.RowReader(str(dataset))
    reader.read(0, reader.num_rows)
    store.RowReader(str(dataset), split="validation")
    assert store.read_text(str(dataset), "validation.jsonl") == "line\n"


def test_a_flipped_bit_anywhere_is_found(dataset):
    """In every array, in metadata and manifest, and in what lies beside."""
    rng = np.random.default_rng(0)
    for name in _files(dataset):
        path = dataset / name
        original = path.read_bytes()
        for bit in {0, 8 * len(original) - 1, *rng.integers(0, 8 * len(original), 12).tolist()}:
            damaged = bytearray(original)
            damaged[bit // 8] ^= 1 << (bit % 8)
            path.write_bytes(damaged)
            with pytest.raises(errors.IntegrityError, match=re.escape(name)):
                _read_everything(dataset)
        path.write_bytes(original)
    _read_everything(dataset)


def test_a_missing_or_truncated_file_is_found_when_the_dataset_is_opened(dataset):
    for name in _files(dataset):
        if name == "manifest.json":
            continue
        path = dataset / name
        original = path.read_bytes()
        path.write_bytes(original[:-1])
        with pytest.raises(errors.IntegrityError, match=rf"{name} has {len(original) - 1} bytes instead of"):
            store.RowReader(str(dataset))
        path.unlink()
        with pytest.raises(errors.IntegrityError, match=rf"{name} is missing; delete the dataset and run again"):
            store.RowReader(str(dataset))
        path.write_bytes(original)


def test_a_shard_that_goes_missing_after_opening_is_an_error_and_not_zeros(dataset):
    reader = store.RowReader(str(dataset))
    (dataset / "train/inputs/c/1/0").unlink()
    reader.read(0, 64)
    with pytest.raises(errors.IntegrityError, match="train/inputs/c/1/0 is missing"):
        reader.read(60, 70)


def test_zarr_itself_refuses_damage_and_missing_chunks(dataset):
    """The net below the checksums: what changes after a shard was checked."""
    from t5core.data import zarr

    shard = dataset / "train/inputs/c/0/0"
    damaged = bytearray(shard.read_bytes())
    damaged[3] ^= 1
    shard.write_bytes(damaged)
    import tensorstore

    def read():
        array = zarr.open_for_reading(str(dataset / "train/inputs"), context=tensorstore.Context())
        with zarr.read_errors("the array"):
            array[:64].read().result()

    with pytest.raises(errors.IntegrityError, match=r"the array is damaged: DATA_LOSS.*c/0/0"):
        read()
    shard.unlink()
    with pytest.raises(errors.IntegrityError, match=r"the array is damaged: NOT_FOUND.*c/0/0.*missing"):
        read()


def test_shards_that_changed_places_are_found(dataset):
    one, two = dataset / "train/inputs/c/0/0", dataset / "train/inputs/c/1/0"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(errors.IntegrityError, match="train/inputs/c/0/0 has checksum"):
        store.RowReader(str(dataset)).read(0, 1)


def test_a_stale_manifest_is_found(dataset, tmp_path):
    """The same shapes and sizes, other rows."""
    _write(tmp_path / "other", seed=1)
    shutil.copy(tmp_path / "other/manifest.json", dataset / "manifest.json")
    with pytest.raises(errors.IntegrityError, match=r"train/inputs/c/0/0 has checksum \w+ instead of \w+"):
        store.RowReader(str(dataset)).read(0, 1)


def test_a_manifest_edited_by_hand_is_found(dataset):
    path = dataset / "manifest.json"
    content = json.loads(path.read_text())
    content["splits"]["train"]["rows"] = 149
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    with pytest.raises(errors.IntegrityError, match=r"manifest.json is damaged: its digest does not match"):
        store.RowReader(str(dataset))


def test_a_manifest_says_the_same_in_the_same_bytes_or_is_damaged(dataset):
    """1e-05 and 1E-05, one bit apart, mean the same: only the bytes tell."""
    path = dataset / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True) + "\n")
    with pytest.raises(errors.IntegrityError, match=r"manifest.json is damaged"):
        store.RowReader(str(dataset))


def test_metadata_that_still_makes_sense_is_checked_too(dataset):
    path = dataset / "train/masks/zarr.json"
    path.write_text(path.read_text().replace('"fill_value": 0', '"fill_value": 1'))
    with pytest.raises(errors.IntegrityError, match=r"train/masks/zarr.json has checksum"):
        store.RowReader(str(dataset))


def test_a_manifest_that_disagrees_with_the_arrays_is_found(dataset):
    known = manifest.load(str(dataset))
    shorter = known.splits["train"].model_copy(update={"rows": 149})
    lying = known.model_copy(update={"splits": {**known.splits, "train": shorter}})
    (dataset / "manifest.json").write_text(manifest.render(lying))
    with pytest.raises(errors.IntegrityError, match=re.escape("zarr.json is uint16[150, 6], but the manifest says")):
        store.RowReader(str(dataset))


def test_a_manifest_of_another_version_is_refused(dataset):
    content = {**manifest.load(str(dataset)).model_dump(mode="json"), "version": 2}
    (dataset / "manifest.json").write_text(manifest._as_text({**content, "digest": manifest._digest(content)}))
    with pytest.raises(errors.IntegrityError, match="is of another version; delete the dataset and run again"):
        store.RowReader(str(dataset))


def test_a_file_that_was_not_committed_is_not_read(dataset):
    (dataset / "later.txt").write_text("x")
    with pytest.raises(errors.IntegrityError, match=r"later.txt is not in the manifest"):
        store.read_text(str(dataset), "later.txt")


def test_no_dataset_and_an_unknown_split_are_answered_in_one_line(pristine, tmp_path):
    with pytest.raises(errors.DataError, match=r"no dataset at .*: it has no manifest.json; materialise it first"):
        store.RowReader(str(tmp_path))
    with pytest.raises(errors.DataError, match="unknown split 'validatoin'; did you mean 'validation'"):
        store.RowReader(str(pristine), split="validatoin")


def test_nothing_is_visible_before_the_commit_and_nothing_is_left_without_one(tmp_path):
    target = tmp_path / "d"
    with contextlib.suppress(ZeroDivisionError), store.DatasetWriter(str(target)) as writer:
        rows = writer.rows("train", FEATURES)
        rows.append(_content())
        rows.close()
        assert not target.exists()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


_KILLED = """
import os, signal, sys
import numpy as np
from t5core.data import store
from t5core.data.manifest import FeatureSpec
writer = store.DatasetWriter(sys.argv[1])
rows = writer.rows("train", {"inputs": FeatureSpec(dtype="uint16", length=6)}, rows_per_shard=64)
rows.append({"inputs": np.ones((100, 6), int)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_gives_up_waits_for_what_is_being_written_before_its_folder_goes(tmp_path):
    there = []

    class Write:
        def __init__(self, folder):
            self.folder = folder

        def exception(self):
            there.append(os.path.isdir(self.folder))

    def write():
        with store.DatasetWriter(str(tmp_path / "dataset")) as writer:
            train = writer.rows("train", FEATURES, rows_per_shard=64)
            train.append(_content())
            train._pending.append(Write(writer.folder))
            train.append({"inputs": np.full((1, 6), 70_000), "masks": np.zeros((1, 3), int)})

    with pytest.raises(errors.DataError, match="70000"):
        write()
    assert there == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_nothing_that_looks_finished_and_the_next_one_sweeps(tmp_path):
    target = tmp_path / "t-f"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(target)], check=False, timeout=60)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("t-f.tmp-")
    assert manifest.load(str(target)) is None
    _write(target)
    assert [path.name for path in tmp_path.iterdir()] == ["t-f"]
    _read_everything(target)


def test_of_two_writers_the_first_to_commit_wins_and_the_other_takes_its_dataset(tmp_path):
    target = tmp_path / "d"
    slow = store.DatasetWriter(str(target))
    slow_rows = slow.rows("train", FEATURES)
    first = _write(target)
    slow_rows.append(_content(20, seed=9))
    with slow:
        taken = slow.commit(
            Manifest(kind="task", name="t", fingerprint="f", parts={}, splits={"train": slow_rows.close()})
        )
    assert taken == first
    assert (store.RowReader(str(target)).read(0, ROWS)["inputs"] == _content()["inputs"]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_folder_without_a_manifest_is_replaced(tmp_path):
    target = tmp_path / "d"
    (target / "train").mkdir(parents=True)
    (target / "train/rubbish").write_text("x")
    _write(target)
    assert "train/rubbish" not in _files(target)
    _read_everything(target)


def test_no_right_to_write_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(errors.RunDirectoryError, match=r"cannot write .*/file/d: .*; free space or choose another"):
        store.DatasetWriter(str(tmp_path / "file/d"))


def _append_and_close(rows, content):
    rows.append(content)
    rows.close()


def test_no_space_is_one_line_and_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = store.DatasetWriter(str(tmp_path / "d"))
    rows = writer.rows("train", FEATURES, rows_per_shard=1024)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(errors.RunDirectoryError, match=r"cannot write .*/train: .*; free space or choose another"):
            _append_and_close(rows, _content(1024))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_opening_does_not_read_the_shards(dataset, monkeypatch):
    opened = []
    original = open

    def spy(path, *arguments, **options):
        opened.append(os.fspath(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", spy)
    reader = store.RowReader(str(dataset))
    assert [path for path in opened if "/c/" in path] == []
    reader.read(0, 10)
    assert {os.path.relpath(path, dataset) for path in opened if "/c/" in path} == {
        "train/inputs/c/0/0",
        "train/masks/c/0/0",
    }
