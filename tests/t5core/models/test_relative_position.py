import math

import jax
import numpy as np
import pytest

from t5core.config.presets import PRESETS
from t5core.models.layers import NetworkConfig
from t5core.models.relative_position import RelativePositionBias, distance_buckets


def published_bucket(relative_position, *, bidirectional, num_buckets=32, max_distance=128):
    """The formula of the T5 paper's code for one relative position (key minus query)."""
    bucket, distance = 0, -relative_position
    if bidirectional:
        num_buckets //= 2
        bucket = num_buckets if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    num_exact = num_buckets // 2
    if distance < num_exact:
        return bucket + distance
    # In exact arithmetic: a hair of tolerance keeps logarithms of powers of two on their own side.
    fraction = math.log2(distance / num_exact) / math.log2(max_distance / num_exact)
    return bucket + min(num_exact + math.floor(fraction * (num_buckets - num_exact) + 1e-9), num_buckets - 1)


# Parameters that name their bucket: 100 * head + bucket.
PARAMS = {"rel_embedding": np.arange(32.0, dtype=np.float32) + 100.0 * np.arange(4, dtype=np.float32)[:, None]}


def compiled(bidirectional, method, *arguments):
    module = RelativePositionBias(NetworkConfig(architecture=PRESETS["t5_1_1_tiny"]), bidirectional=bidirectional)
    return jax.jit(lambda params: module.apply({"params": params}, *arguments, method=method))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_pair_of_positions_has_its_published_bucket(bidirectional):
    values = np.asarray(compiled(bidirectional, "__call__", 200, 230)(PARAMS))
    assert values.shape == (1, 4, 200, 230)
    expected = [[published_bucket(k - q, bidirectional=bidirectional) for k in range(230)] for q in range(200)]
    np.testing.assert_array_equal(values[0, 0], expected)
    np.testing.assert_array_equal(values[0, 3], values[0, 0] + 300.0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_rows_of_single_positions_have_their_published_buckets(bidirectional):
    positions = np.array([0, 7, 140, 3])
    rows = np.asarray(compiled(bidirectional, "rows", positions, 150)(PARAMS))
    assert rows.shape == (4, 4, 1, 150)
    expected = [[published_bucket(k - q, bidirectional=bidirectional) for k in range(150)] for q in positions]
    np.testing.assert_array_equal(rows[:, 0, 0], expected)
    np.testing.assert_array_equal(rows[:, 2], rows[:, 0] + 200.0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradient_counts_each_pair_once(bidirectional):
    bias = compiled(bidirectional, "__call__", 5, 9)
    gradient = jax.jit(jax.grad(lambda params: bias(params).sum()))(PARAMS)
    buckets = [published_bucket(k - q, bidirectional=bidirectional) for q in range(5) for k in range(9)]
    np.testing.assert_array_equal(gradient["rel_embedding"][0], np.bincount(buckets, minlength=32))


def test_far_distances_share_the_last_bucket():
    assert distance_buckets(16, 128)[-1] == 15
    assert distance_buckets(32, 128)[-1] == 31
