"""TensorFlow's random numbers without TensorFlow."""

import numpy as np
import pytest

from t5core.data import philox, worker

pytestmark = pytest.mark.xdist_group("seqio")

SEEDS = np.array([[0, 0], [1, -1], [1234567890123, -98765], [-(1 << 63), (1 << 63) - 1], [7, 1 << 32]], np.int64)


@pytest.fixture(scope="module")
def drawn():
    """What TensorFlow draws: 9 numbers a seed, an integer between 3 and 50, and the first of a data set."""
    low, high = [3, 0, -5, 10, 2], [50, 1, 5, 1_000_000, 3]
    numbers, integers, firsts = worker.call(f"{__package__}.seqio_probe:draws", SEEDS, 9, low, high)
    return {"numbers": numbers, "integers": integers, "firsts": firsts, "low": low, "high": high}


def test_numbers_are_tensorflows_bit_for_bit(drawn):
    found = philox.ragged_uniform(SEEDS, np.full(len(SEEDS), 9))
    assert np.array_equal(found.reshape(len(SEEDS), 9), drawn["numbers"])


def test_integers_are_tensorflows(drawn):
    found = philox.integers(SEEDS, np.array(drawn["low"]), np.array(drawn["high"]))
    assert found.tolist() == drawn["integers"]


def test_a_data_set_of_random_numbers_begins_alike(drawn):
    assert [philox.first_of_dataset(int(seed) & 0x7FFFFFFF) for seed, _ in SEEDS] == drawn["firsts"]


def test_more_numbers_begin_with_the_same_ones():
    counts = np.array([0, 1, 4, 5, 23])
    found = np.split(philox.ragged_uniform(SEEDS, counts), np.cumsum(counts)[:-1])
    longest = philox.ragged_uniform(SEEDS, np.full(len(SEEDS), 23)).reshape(len(SEEDS), 23)
    assert all(np.array_equal(some, longest[row, : len(some)]) for row, some in enumerate(found))
    bits = philox.uniform_bits(SEEDS, 23)
    assert np.array_equal((bits & philox.MANTISSA) / 2**23, longest)


def test_no_seeds_give_no_numbers():
    assert philox.uniform_bits(SEEDS[:0], 5).shape == (0, 5)
