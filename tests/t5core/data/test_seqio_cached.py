"""SeqIO caches that exist already, as the source of a task or in the place of a registered task's own source."""

import pathlib

import numpy as np
import pytest

from t5core import errors
from t5core.data import seqio_cache, store, worker
from tests.t5core.data.task_runs import made, raw, rows_of

pytestmark = pytest.mark.xdist_group("seqio")

MODULE = f"{__package__}.registered_tasks"
EOS = 1


def write(folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    worker.call(f"{__package__}.seqio_probe:write_cache", str(folder), settings)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("caches") / "registered_cached")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """The rows of the task whose cache it is, tokenised from its source."""
    return made(tmp_path_factory.mktemp("live"), [{"name": "registered_cached"}], module=MODULE)


def cached(root, folder, *, objective="supervised", **settings):
    return made(root, [{"name": "t", "cache": folder, "objective": objective, **settings}])


def test_its_tokens_are_those_of_the_task(folder, live, tmp_path):
    dataset = cached(tmp_path, folder, metrics=["sequence_accuracy"])
    for split in ("train", "validation"):
        found, expected = rows_of(dataset, split), rows_of(live, split)
        order = [np.lexsort(rows["inputs"].T) for rows in (found, expected)]
        for side in ("inputs", "targets"):
            assert np.array_equal(found[side][order[0]], expected[side][order[1]])
    assert dataset.rows == 40
    assert {example["targets_pretokenized"] for example in raw(dataset)} == {f"ANSWER {n} ☃ ☃ ☃" for n in range(6)}


def test_a_registered_task_reads_its_cache_when_told_to(live, tmp_path):
    write(tmp_path / "caches" / "registered_cached", shift=1)
    settings = {"module": MODULE, "seqio_cache_dirs": [str(tmp_path / "caches")]}
    dataset = made(tmp_path, [{"name": "registered_cached", "use_cached": True}], **settings)
    found, expected = (np.sort(rows_of(d)["inputs"].astype(int), axis=0) for d in (dataset, live))
    assert np.array_equal(found, np.where(expected > EOS, expected + 1, expected))


def test_other_objectives_take_the_cached_targets_as_text(folder, tmp_path):
    rows = rows_of(cached(tmp_path, folder, objective="span_corruption"))
    assert all((row >= 259).any() for row in rows["inputs"])
    both = np.concatenate([rows["inputs"], rows["targets"]], axis=1).astype(int)
    tokens = np.sort(both[(both > EOS) & (both < 259)])
    texts = [f"ANSWER {n} ☃ ☃ ☃".encode() for n in range(40)]
    assert tokens.tolist() == sorted(byte + 3 for text in texts for byte in text)


def test_token_filters_count(folder, tmp_path):
    dataset = cached(tmp_path, folder, filters=[{"min_tokens": 17, "column": "inputs"}])
    assert store.read_manifest(dataset.uri).splits["train"].dropped == {"inputs: min_tokens=17": 10}


def test_the_content_of_the_cache_counts_and_not_its_place(folder, tmp_path):
    same = write(tmp_path / "same")
    assert seqio_cache.digest(same, task="t") == seqio_cache.digest(folder, task="t")
    assert seqio_cache.digest(write(tmp_path / "other", shift=1), task="t") != seqio_cache.digest(folder, task="t")


def refusal(root, folder, error=errors.DataError, **settings):
    with pytest.raises(error) as caught:
        cached(root, folder, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_is_named(tmp_path):
    folder = write(tmp_path / "c")
    pathlib.Path(folder, "train.tfrecord-00001-of-00002").unlink()
    assert refusal(tmp_path, folder) == (
        f"task 't': the SeqIO cache {folder} lacks train.tfrecord-00001-of-00002 (1 of 2 missing); "
        "copy it again, as TFRecords"
    )
    pathlib.Path(folder, "COMPLETED").unlink()
    assert refusal(tmp_path, folder) == (
        f"task 't': the SeqIO cache {folder} was not finished, as COMPLETED is missing; write it again"
    )
    assert refusal(tmp_path, f"{tmp_path}/no") == (
        f"task 't': there is no folder {tmp_path}/no; check the path of the SeqIO cache"
    )
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path, f"{tmp_path}/empty") == (
        f"task 't': {tmp_path}/empty is no SeqIO cache, as it holds no info.SPLIT.json; name the folder of one task"
    )


def test_a_feature_that_the_objective_needs(tmp_path):
    folder = write(tmp_path / "c", without=("inputs",))
    assert refusal(tmp_path, folder).startswith(
        f"task 't': the SeqIO cache {folder} does not give what objective 'supervised' needs: unknown feature 'inputs'"
    )


def test_another_vocabulary_is_noticed_by_the_texts(tmp_path):
    folder = write(tmp_path / "c", shift=1)
    assert refusal(tmp_path, folder).startswith(f"{folder} (train 0): the text 'train question 0' gives the tokens [")


def test_a_token_beyond_the_vocabulary(tmp_path):
    folder = write(tmp_path / "c", shift=1000, without=("inputs_pretokenized",))
    assert refusal(tmp_path, folder).startswith("inputs hold the token 1")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "registered_good",
            errors.ConfigError,
            "SeqIO task 'registered_good' has no CacheDatasetPlaceholder among its",
        ),
        ("registered_required", errors.DataError, "SeqIO task 'registered_required' has no finished cache in "),
    ],
)
def test_a_task_without_a_cache(tmp_path, name, error, message):
    with pytest.raises(error) as caught:
        made(tmp_path, [{"name": name, "use_cached": True}], module=MODULE, seqio_cache_dirs=[str(tmp_path)])
    assert str(caught.value).startswith(message)
