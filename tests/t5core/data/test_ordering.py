"""Orders that are computed: permutations, the reads of a task, and the interleaving of a mixture."""

from __future__ import annotations

import collections
import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from t5core.data import ordering
from t5core.data.ordering import Permutation, TaskOrder, interleave, key


@hypothesis.given(size=strategies.integers(1, 3000), seed=strategies.integers(0, 2**31))
@hypothesis.settings(max_examples=60, deadline=None)
def test_permutation_hits_every_index_once(size, seed):
    assert sorted(Permutation(size, key=key(seed))(np.arange(size))) == list(range(size))


def test_permutation_of_an_index_does_not_depend_on_the_others():
    order = Permutation(1000, key=key(5))
    whole = order(np.arange(1000))
    assert [int(order(np.array([index]))[0]) for index in (0, 7, 999)] == whole[[0, 7, 999]].tolist()


def test_permutation_of_a_billion_is_cheap_for_a_few():
    values = Permutation(10**9, key=key(5))(np.arange(128) * 7_000_000)
    assert len(set(values.tolist())) == 128
    assert values.min() >= 0
    assert values.max() < 10**9


def test_all_orders_of_four_are_about_equally_likely():
    draws = 2400
    counts = collections.Counter(tuple(Permutation(4, key=key(n))(np.arange(4)).tolist()) for n in range(draws))
    expected = draws / math.factorial(4)
    chi_squared = sum((counts[p] - expected) ** 2 / expected for p in itertools.permutations(range(4)))
    assert chi_squared < 49.7  # 23 degrees of freedom, one in a thousand


def test_permutation_moves_everything_everywhere():
    places = np.stack([Permutation(100, key=key("spread", n))(np.arange(100)) for n in range(200)])
    table = np.histogram2d(np.tile(np.arange(100), 200), places.ravel(), bins=10)[0]
    assert np.abs(table - 200).max() < 75  # five standard deviations


def test_permutation_is_pinned():
    """Resumed runs rely on these very numbers: a change here changes the order of data under a running training."""
    assert Permutation(10, key=key(0, "epoch", 1))(np.arange(10)).tolist() == [6, 0, 9, 5, 4, 2, 1, 7, 3, 8]


def test_keys_differ_with_every_part():
    keys = {key(0), key(1), key(0, 1), key(1, 0), key("0"), key(0, "a"), key("a", 0)}
    assert len(keys) == 7


def test_task_order_reads_every_row_once_before_any_again():
    order = TaskOrder(pass_rows=(10, 7), seed=0, name="a")
    rows = order.rows(np.arange(51)).reshape(3, 17)
    for turn in rows:
        assert sorted(turn[:10]) == list(range(10))
        assert sorted(turn[10:]) == list(range(10, 17))
    assert len({tuple(turn) for turn in rows.tolist()}) == 3


def test_task_order_unshuffled_is_the_same_each_time():
    order = TaskOrder(pass_rows=(4, 2), seed=None, name="a")
    assert order.rows(np.arange(12)).tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_tasks_of_the_same_size_have_orders_of_their_own():
    one, two = (TaskOrder(pass_rows=(20,), seed=0, name=name).rows(np.arange(20)).tolist() for name in "ab")
    assert one != two


def test_task_order_does_not_depend_on_how_it_is_asked():
    order = TaskOrder(pass_rows=(10, 7), seed=3, name="a")
    whole = order.rows(np.arange(40))
    assert order.rows(np.array([39, 3, 18])).tolist() == whole[[39, 3, 18]].tolist()


def _whole(counts, **options):
    tasks, reads = zip(*interleave(counts, **options), strict=True)
    return np.concatenate(tasks), np.concatenate(reads)


@hypothesis.given(
    counts=strategies.lists(strategies.integers(0, 300), min_size=1, max_size=5),
    seed=strategies.none() | strategies.integers(0, 100),
    block=strategies.integers(1, 200),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_interleaving_holds_every_read_in_order_whatever_the_block(counts, seed, block):
    tasks, reads = _whole(counts, seed=seed, block=block)
    for task, count in enumerate(counts):
        assert reads[tasks == task].tolist() == list(range(count))
    at_once = _whole(counts, seed=seed, block=10**6)
    assert (tasks.tolist(), reads.tolist()) == (at_once[0].tolist(), at_once[1].tolist())


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_every_stretch_has_the_rates(seed):
    counts = [1000, 300, 40]
    tasks, _ = _whole(counts, seed=seed)
    for task, count in enumerate(counts):
        seen = np.concatenate([[0], np.cumsum(tasks == task)])
        expected = np.arange(len(seen)) * count / sum(counts)
        assert np.abs(seen - expected).max() < 3


def test_interleaving_follows_the_seed():
    assert _whole([50, 20], seed=0)[0].tolist() != _whole([50, 20], seed=1)[0].tolist()
    assert _whole([50, 20], seed=1)[0].tolist() == _whole([50, 20], seed=1)[0].tolist()


def test_the_last_read_is_not_lost_to_rounding(monkeypatch):
    """(n - 1 + 0.99...) / n is 1.0 in floating point, which no half-open window below 1 holds."""
    monkeypatch.setattr(ordering, "hashed", lambda values, key: np.full(len(values), 2**64 - 1, np.uint64))
    tasks, _ = _whole([3000], seed=0, block=64)
    assert len(tasks) == 3000
