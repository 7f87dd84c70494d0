"""Shards: whole or not there, and one writer at a time."""

import os

import numpy as np
import pytest

from t5core import errors
from t5core.data import shards
from t5core.data.ragged import Ragged
from t5core.data.shards import Part, ShardFolder, ShardRecord, ShardRows

ROWS = {"inputs": [[3, 4, 5], [], [7, 0, 8]], "targets": [[9], [70000, 1], [2, 2]]}


def ragged(rows):
    return Ragged(
        values=np.array([token for row in rows for token in row], np.int32), sizes=np.array([len(row) for row in rows])
    )


def saved(uri):
    rows = ShardRows()
    rows.append({side: ragged(values[:1]) for side, values in ROWS.items()})
    rows.append({side: ragged(values[1:]) for side, values in ROWS.items()})
    record = ShardRecord(truncated={"inputs": 2}, others=[{"text": "☃"}], sample=["a"], unknown_tokens=3)
    rows.save(uri, record)
    return record


def test_rows_come_back_as_they_were(tmp_path):
    record = saved(f"{tmp_path}/a.npz")
    shard = shards.load(f"{tmp_path}/a.npz")
    assert (shard.rows, shard.record) == (3, record)
    for side, rows in ROWS.items():
        padded = [[*row, *[0] * (3 - len(row))] for row in rows]
        assert shard.features[side].padded(3).tolist() == padded


def test_nothing_is_a_shard_too(tmp_path):
    ShardRows().save(f"{tmp_path}/a.npz", ShardRecord())
    assert shards.load(f"{tmp_path}/a.npz").rows == 0


def test_a_flipped_bit_is_found_and_the_shard_made_anew(tmp_path):
    saved(f"{tmp_path}/a.npz")
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(np.array([3, 4, 5], np.uint16).tobytes())] ^= 1
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(errors.RecoverableError) as caught:
        shards.load(f"{tmp_path}/a.npz")
    assert str(caught.value) == f"{tmp_path}/a.npz was damaged and is deleted; run again"
    assert not (tmp_path / "a.npz").exists()


def test_a_truncated_shard_is_found(tmp_path):
    saved(f"{tmp_path}/a.npz")
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    with pytest.raises(errors.RecoverableError, match="was damaged and is deleted; run again"):
        shards.load(f"{tmp_path}/a.npz")


def test_a_shard_that_went_away(tmp_path):
    with pytest.raises(errors.RecoverableError, match="is gone while its dataset is made of it; run again"):
        shards.load(f"{tmp_path}/a.npz")


def test_only_finished_shards_count(tmp_path):
    folder = ShardFolder(f"{tmp_path}/d")
    assert folder.names() == set()
    part = Part(split="train", index=3, passes=2)
    saved(f"{folder.uri}/{part.file(1)}")
    with open(f"{folder.uri}/.{part.file(0)}.0.tmp", "w") as handle:
        handle.write("half")
    assert folder.names() == {"train-000003-001.npz"} == {part.files[1]}
    folder.remove()
    assert not os.path.exists(folder.uri)
