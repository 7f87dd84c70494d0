"""Batches as a function of the step, for any number of hosts, any start, with and without prefetching."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from t5core import errors
from t5core.data import mixture, store
from t5core.data.converters import converter_for
from t5core.data.prefetch import Prefetcher
from t5core.data.reader import BatchReader, evaluation_batches
from tests.t5core.data.making import VOCABULARY, examples, resolved_run, task_dataset

CONVERTER = converter_for("encoder_decoder", {"inputs": 12, "targets": 8})
BATCH = 8


def _mixture(root, **data):
    task = task_dataset(str(root), "a", examples(83, first=1000), validation=examples(9, first=2000, seed=3))
    return mixture.assemble_mixture(resolved_run(str(root), {"a": None}, **data), vocabulary=VOCABULARY, tasks=[task])


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return _mixture(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    return _mixture(tmp_path_factory.mktemp("unpacked"), pack=False)


def _reader(reference, **options):
    return BatchReader(reference.uri, **{"batch_size": BATCH, "converter": CONVERTER, **options})


def _same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _names(reader, epoch):
    """Returns the names of an epoch's rows, in order."""
    first, last = epoch * reader.num_rows, (epoch + 1) * reader.num_rows
    steps = range(first // BATCH, -(-last // BATCH))
    names = np.concatenate([reader.batch(step)["decoder_target_tokens"][:, 0] for step in steps])
    return names[first - steps[0] * BATCH :][: reader.num_rows].tolist()


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_the_parts_of_the_hosts_are_the_global_batch(packed, hosts):
    reader, share = _reader(packed), BATCH // hosts
    for step in (0, 3, 5, 6, 40):  # 5 and 6 lie about the end of the first epoch
        parts = [reader.batch(step, rows=slice(i * share, (i + 1) * share)) for i in range(hosts)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert _same(joined, reader.batch(step))


def test_a_host_reads_its_rows_and_no_others(packed, monkeypatch):
    reader, asked = _reader(packed), []
    original = store.RowReader.read
    monkeypatch.setattr(
        store.RowReader, "read", lambda self, start, stop: asked.append((start, stop)) or original(self, start, stop)
    )
    reader.batch(2, rows=slice(4, 6))
    assert asked == [(2 * BATCH + 4, 2 * BATCH + 6)]


def test_a_step_is_the_same_wherever_reading_began(packed):
    straight = [batch for _, batch in _reader(packed).prefetch(0, 30)]
    for start in (1, 7, 29):
        for step, batch in _reader(packed).prefetch(start, 30):
            assert _same(batch, straight[step])


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetching_changes_nothing(packed, depth):
    reader = _reader(packed)
    fetched = list(reader.prefetch(3, 20, depth=depth))
    assert [step for step, _ in fetched] == list(range(3, 20))
    assert all(_same(batch, reader.batch(step)) for step, batch in fetched)


def test_prefetching_a_hosts_part(packed):
    reader, part = _reader(packed), slice(2, 4)
    assert all(_same(batch, reader.batch(step, rows=part)) for step, batch in reader.prefetch(0, 5, rows=part))


def test_every_row_comes_once_in_each_epoch(unpacked):
    reader = _reader(unpacked)
    assert reader.num_rows == 83
    for epoch in range(4):
        assert sorted(_names(reader, epoch)) == list(range(1000, 1083))


def test_epochs_differ_when_shuffled(unpacked):
    orders = [tuple(_names(_reader(unpacked), epoch)) for epoch in range(4)]
    assert len(set(orders)) == 4
    assert orders == [tuple(_names(_reader(unpacked), epoch)) for epoch in range(4)]


def test_epochs_are_the_same_without_shuffle(tmp_path):
    reader = _reader(_mixture(tmp_path, pack=False, shuffle=False))
    assert [_names(reader, epoch) for epoch in range(3)] == [list(range(1000, 1083))] * 3


def test_the_first_epoch_is_the_dataset_as_it_lies(packed):
    stored = store.RowReader(packed.uri).read(BATCH, 2 * BATCH)
    batch = _reader(packed).batch(1)
    assert (batch["encoder_input_tokens"] == stored["encoder_input_tokens"]).all()
    assert (batch["decoder_target_tokens"] == stored["decoder_target_tokens"]).all()


def test_a_batch_holds_t5x_features_in_int32(packed):
    batch = _reader(packed).batch(0)
    assert {name: values.shape for name, values in batch.items()} == {
        **{f"encoder_{name}": (BATCH, 12) for name in ("input_tokens", "segment_ids", "positions")},
        **{
            f"decoder_{name}": (BATCH, 8)
            for name in ("input_tokens", "target_tokens", "loss_weights", "segment_ids", "positions")
        },
    }
    assert {values.dtype.name for values in batch.values()} == {"int32"}


def test_a_dataset_smaller_than_a_batch_is_refused(packed):
    rows = packed.rows
    with pytest.raises(errors.DataError, match=rf"holds {rows} rows of 'train', fewer than one batch of {rows + 1}"):
        _reader(packed, batch_size=rows + 1)
    assert len(_reader(packed, batch_size=rows).batch(1)["encoder_positions"]) == rows


def test_damage_surfaces_through_prefetching(tmp_path):
    reference = _mixture(tmp_path)
    path = f"{reference.uri}/train/encoder_input_tokens/c/0/0"
    with open(path, "r+b") as handle:
        handle.seek(10)
        handle.write(b"\xff")
    with (
        pytest.raises(errors.IntegrityError, match="train/encoder_input_tokens/c/0/0 has checksum"),
        _reader(reference).prefetch(0, 3) as batches,
    ):
        next(batches)


def _threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_prefetcher_closes_in_the_middle_and_leaves_no_thread():
    made = []
    with Prefetcher(lambda item: made.append(item) or item, range(1000), depth=2) as items:
        assert next(items) == (0, 0)
        assert _threads()
    assert not _threads()
    assert len(made) <= 4
    with pytest.raises(StopIteration):
        next(items)


def test_a_prefetcher_works_ahead_and_no_further_than_its_depth():
    made = []
    with Prefetcher(lambda item: made.append(item) or item, range(100), depth=3) as items:
        deadline = time.monotonic() + 10
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert made == [0, 1, 2]
        next(items)


def test_what_fails_ahead_is_raised_when_it_is_due():
    def make(item):
        if item == 2:
            raise KeyError(item)
        return item

    items = Prefetcher(make, range(5), depth=4)
    assert [next(items), next(items)] == [(0, 0), (1, 1)]
    with pytest.raises(KeyError):
        next(items)
    assert not _threads()
    assert list(items) == []


@pytest.mark.parametrize("batch_size", [1, 4, 8, 9, 16])
def test_evaluation_reads_each_row_once_in_order_and_pads_with_weight_zero(packed, tmp_path, batch_size):
    cases = examples(9, first=2000, seed=3)
    task = task_dataset(str(tmp_path), "a", examples(3), validation=cases)
    batches = list(evaluation_batches(task.uri, split="validation", batch_size=batch_size, converter=CONVERTER))
    assert [batch.first_row for batch in batches] == list(range(0, 9, batch_size))
    assert sum(batch.num_rows for batch in batches) == 9
    targets = []
    for batch in batches:
        assert {len(values) for values in batch.features.values()} == {batch_size}
        assert all((values[batch.num_rows :] == 0).all() for values in batch.features.values())
        for row in batch.features["decoder_target_tokens"][: batch.num_rows]:
            targets.append(row[row > 0].tolist())
    assert targets == [example["targets"] for example in cases]
    weights = sum(batch.features["decoder_loss_weights"].sum() for batch in batches)
    assert weights == sum(len(example["targets"]) for example in cases)


def test_evaluation_stops_after_max_rows(tmp_path):
    task = task_dataset(str(tmp_path), "a", examples(3), validation=examples(9))
    options = {"split": "validation", "batch_size": 4, "converter": CONVERTER}
    assert [b.num_rows for b in evaluation_batches(task.uri, max_rows=6, **options)] == [4, 2]
    assert [b.num_rows for b in evaluation_batches(task.uri, max_rows=50, **options)] == [4, 4, 1]
