"""Digests: the same wherever an array lies, another for any other bits."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5core.checkpoints import digest

RNG = np.random.default_rng(0)
LARGE = RNG.standard_normal((3, 40_000)).astype(np.float32)  # more than one block of words
ARRAYS = {
    "float32": LARGE,
    "bfloat16": LARGE[:, :500].astype(ml_dtypes.bfloat16),
    "float16": LARGE[0, :7].astype(np.float16),
    "int32": RNG.integers(-(2**31), 2**31, (5, 4, 3)).astype(np.int32),
    "uint32": RNG.integers(0, 2**32, (17,)).astype(np.uint32),
    "uint16": RNG.integers(0, 2**16, (40_000,)).astype(np.uint16),
    "int8": RNG.integers(-128, 128, (9, 9)).astype(np.int8),
    "bool": RNG.integers(0, 2, (33,)).astype(np.bool_),
    "scalar": np.float32(3.5).reshape(()),
    "empty": np.zeros((0, 4), np.float32),
}


def digest_of(array):
    return digest.leaf_digests({"leaf": array})["leaf"]


@pytest.mark.parametrize("name", ARRAYS)
def test_the_device_computes_what_the_host_computes(name):
    array = ARRAYS[name]
    assert tuple(map(int, digest._device_sums(jnp.asarray(array)))) == digest._host_sums(array)


def test_the_device_computes_what_the_host_computes_for_eight_bytes():
    with jax.enable_x64(True):
        for array in (RNG.standard_normal((4, 5)), RNG.integers(-(2**63), 2**63, (7,))):
            assert tuple(map(int, digest._device_sums(jnp.asarray(array)))) == digest._host_sums(array)


def test_an_array_and_its_copy_on_the_device_have_one_digest():
    assert digest_of(LARGE) == digest_of(jnp.asarray(LARGE)) == digest_of(np.asfortranarray(LARGE))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool", "scalar"])
def test_any_flipped_bit_shows(name):
    original = ARRAYS[name]
    clean = digest_of(original)
    raw = np.frombuffer(original.tobytes(), np.uint8)
    for place in RNG.integers(0, raw.size * 8, 40):
        damaged = raw.copy()
        damaged[place // 8] ^= 1 << (place % 8)
        assert digest_of(damaged.view(original.dtype).reshape(original.shape)) != clean, f"bit {place}"


def test_order_shows():
    swapped = LARGE.copy()
    swapped[0, 1], swapped[2, 39_999] = LARGE[2, 39_999], LARGE[0, 1]
    others = [swapped, np.roll(LARGE, 1), LARGE[::-1], np.sort(LARGE.reshape(-1)).reshape(LARGE.shape)]
    assert len({digest_of(array) for array in [LARGE, *others]}) == 5


def test_two_flipped_signs_do_not_cancel_out():
    # The top bits of two words sum to nothing modulo 2**32 unless they are mixed first.
    damaged = LARGE.copy()
    damaged[0, 10] *= -1
    damaged[1, 20] *= -1
    assert digest_of(damaged) != digest_of(LARGE)


def test_a_zeroed_block_shows_even_in_small_numbers():
    counts = np.arange(5000, dtype=np.int32)
    damaged = counts.copy()
    damaged[1000:1512] = 0
    assert digest_of(damaged) != digest_of(counts)


def test_shape_and_dtype_show_where_the_bits_do_not_differ():
    bits = np.zeros((4, 6), np.float32)
    others = [bits.reshape(6, 4), bits.reshape(24), bits.view(np.int32), bits.view(np.uint32)]
    assert len({digest_of(array) for array in [bits, *others]}) == 5


def test_negative_zero_is_not_zero():
    assert digest_of(np.float32([0.0])) != digest_of(np.float32([-0.0]))


def test_digests_stay_what_they_are_in_checkpoints_that_exist():
    # If one of these changes, no checkpoint written before verifies any more.
    assert digest_of(np.arange(10, dtype=np.float32)) == "4ff5af009d8bc6a5"
    assert digest_of(np.zeros((), np.int32)) == "5957803b28046e33"
    assert digest_of(np.ones((2, 3), ml_dtypes.bfloat16)) == "d915e01e10cba31d"


def test_leaves_are_named_by_their_path():
    tree = {"step": np.int32(1), "params": {"encoder": {"layers_0": {"kernel": np.zeros(2)}}}}
    assert set(digest.leaf_digests(tree)) == {"step", "params/encoder/layers_0/kernel"}


def test_the_state_digest_depends_on_names_and_content_but_not_on_order():
    leaves = {"a": "1", "b": "2"}
    assert digest.state_digest(leaves) == digest.state_digest({"b": "2", "a": "1"})
    others = [{"a": "2", "b": "1"}, {"a": "1", "c": "2"}, {"a": "1"}]
    assert len({digest.state_digest(other) for other in [leaves, *others]}) == 4
    assert len(digest.state_digest(leaves)) == 64
