"""TensorFlow's stateless random numbers in numpy, bit for bit, for many seeds at once.

With them examples can be masked in processes that do not carry TensorFlow, and come out as SeqIO would mask them.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), Philox-4x32-10; how seeds become keys and
bits become numbers is `tf.random.stateless_uniform(alg="philox")` of TensorFlow 2.21.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int64, UInt32, UInt64

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# The key under which TensorFlow scrambles seeds, and the seed that it gives to a data set which has only one.
_SCRAMBLING_KEY = (0x3EC8F720, 0x02461E29)
_GRAPH_SEED = 87654321
_OUTPUTS = 4
# The bits of a word that become a number.
MANTISSA = 0x7FFFFF

Words = tuple[Any, ...]  # uint64 arrays, or scalars of it, that broadcast


def uniform_bits(seeds: Int64[np.ndarray, "n 2"], count: int) -> UInt32[np.ndarray, "n count"]:
    """Returns the first `count` random words of each seed; more of them begin with the same ones."""
    blocks = np.arange(-(-count // _OUTPUTS), dtype=np.uint64)[None, :]
    words = _words(tuple(word[:, None] for word in _scrambled(seeds)), blocks)
    return words.reshape(len(seeds), blocks.size * _OUTPUTS)[:, :count]


def ragged_uniform(seeds: Int64[np.ndarray, "n 2"], counts: Int[np.ndarray, " n"]) -> Float32[np.ndarray, " numbers"]:
    """Returns `tf.random.stateless_uniform([count], seed)` of each seed, one after another: 23 bits in [0, 1)."""
    blocks = -(-counts // _OUTPUTS)
    row = np.repeat(np.arange(len(counts)), blocks)
    block = np.arange(len(row)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    words = _words(tuple(word[row] for word in _scrambled(seeds)), block.astype(np.uint64))
    wanted = block[:, None] * _OUTPUTS + np.arange(_OUTPUTS) < counts[row][:, None]
    mantissa = words[wanted] & np.uint32(MANTISSA)
    return (mantissa | np.uint32(127 << 23)).view(np.float32) - np.float32(1)


def integers(
    seeds: Int64[np.ndarray, "n 2"], low: Int[np.ndarray, " n"], high: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Returns `tf.random.stateless_uniform([], seed, low, high, tf.int32)` of each seed; `high` is excluded."""
    return low + uniform_bits(seeds, 1)[:, 0] % (high - low)


def first_of_dataset(seed: int) -> int:
    """Returns the first element of `tf.data.Dataset.random(seed)`."""
    key = tuple(np.uint64(word) for word in (_GRAPH_SEED, 0))
    zero = np.zeros((), np.uint64)
    return int(_philox((zero, zero, *_halves(np.array(seed, np.int64))), key)[0])


def _scrambled(seeds: Int64[np.ndarray, "n 2"]) -> Words:
    """Returns key and counter of each seed: two words of each."""
    first, second = _halves(seeds[:, 0]), _halves(seeds[:, 1])
    return _philox((*first, *second), tuple(np.uint64(word) for word in _SCRAMBLING_KEY))


def _words(scrambled: Words, blocks: UInt64[np.ndarray, ...]) -> UInt32[np.ndarray, "... 4"]:
    words = _philox((blocks, np.zeros_like(blocks), *scrambled[2:]), scrambled[:2])
    return np.stack(words, axis=-1).astype(np.uint32)


def _halves(values: Int64[np.ndarray, ...]) -> Words:
    unsigned = values.astype(np.uint64)
    return unsigned & _LOW, unsigned >> _HALF


def _philox(counter: Words, key: Words) -> Words:
    for number in range(_ROUNDS):
        if number:
            key = tuple((word + step) & _LOW for word, step in zip(key, _KEY_STEPS, strict=True))
        first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
        counter = (
            (second >> _HALF) ^ counter[1] ^ key[0],
            second & _LOW,
            (first >> _HALF) ^ counter[3] ^ key[1],
            first & _LOW,
        )
    return counter
