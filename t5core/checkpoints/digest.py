"""Digests of arrays: equal for equal bits, however the arrays lie over devices and processes.

Each 32-bit word of an array is mixed with its position, and the mixed words are summed modulo 2**32, twice with
different mixers. Sums do not care who adds which part, so shards can be digested where they lie; mixing makes them
care about every bit and every position. Both mixers are bijections of the word, so one changed element always shows;
anything else escapes with a chance of 2**-64.

Source of the mixing constants: MurmurHash3's 32-bit finaliser and xxHash32's primes (both in the public domain).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_POSITION_A, _POSITION_B = 0x9E3779B1, 0x85EBCA77
_MIX_A1, _MIX_A2 = 0x85EBCA6B, 0xC2B2AE35
_MIX_B1, _MIX_B2 = 0xC2B2AE3D, 0x27D4EB2F
_WORD = 0xFFFFFFFF
_BLOCK = 1 << 15  # words at a time: small enough to stay in the processor's cache


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of `tree` by path, such as `params/encoder/layers_0/mlp/wo/kernel`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def leaf_digests(tree: Any) -> dict[str, str]:
    """Returns a digest of 16 hex digits for each leaf of `tree`, by path.

    Equal for equal shape, dtype and bits. Arrays in this machine's memory are read where they lie, without compiling
    anything; those on accelerators or spread over processes are digested by their devices, and then every process has
    to call this.
    """
    sums = {}
    for path, leaf in named_leaves(tree).items():
        sums[path] = _host_sums(np.asarray(leaf)) if _in_host_memory(leaf) else _device_sums(leaf)
    described = {path: _description(leaf) for path, leaf in named_leaves(tree).items()}
    # One fetch for all leaves, after every device has its work.
    return {path: _name(described[path], int(a), int(b)) for path, (a, b) in jax.device_get(sums).items()}


def state_digest(leaves: Mapping[str, str]) -> str:
    """Returns the SHA-256 over `leaves`, digests by path, in hex; their order does not matter."""
    lines = "".join(f"{path} {leaves[path]}\n" for path in sorted(leaves))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()


def _in_host_memory(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable and all(device.platform == "cpu" for device in leaf.devices())


def _description(leaf: Any) -> str:
    shape, dtype = np.shape(leaf), np.dtype(getattr(leaf, "dtype", None) or np.asarray(leaf).dtype)
    return f"{dtype.name}{list(shape)}"


def _name(description: str, sum_a: int, sum_b: int) -> str:
    return hashlib.sha256(f"{description}:{sum_a:08x}{sum_b:08x}".encode()).hexdigest()[:16]


def _host_words(array: np.ndarray) -> np.ndarray:
    """Returns the bits of `array` as unsigned words: one for each element, two (low, high) for one of 8 bytes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}[array.dtype.itemsize])


def _host_sums(array: np.ndarray) -> tuple[int, int]:
    words = _host_words(array)
    offsets = np.arange(_BLOCK, dtype=np.uint32)
    positions_a, positions_b = offsets * np.uint32(_POSITION_A), offsets * np.uint32(_POSITION_B)
    mixed, scratch = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    sum_a = sum_b = 0
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        x, y = mixed[: block.size], scratch[: block.size]
        np.add(positions_a[: block.size], np.uint32(start * _POSITION_A & _WORD), out=x)
        np.bitwise_xor(x, block, out=x)
        _mix_in_place(x, y, shifts=(16, 13, 16), factors=(_MIX_A1, _MIX_A2))
        sum_a += int(np.add.reduce(x, dtype=np.uint32))
        np.add(positions_b[: block.size], np.uint32(start * _POSITION_B & _WORD), out=y)
        np.bitwise_xor(x, y, out=x)
        _mix_in_place(x, y, shifts=(17, 15), factors=(_MIX_B1, _MIX_B2))
        sum_b += int(np.add.reduce(x, dtype=np.uint32))
    return sum_a & _WORD, sum_b & _WORD


def _mix_in_place(x: np.ndarray, scratch: np.ndarray, *, shifts: tuple[int, ...], factors: tuple[int, int]) -> None:
    for index, shift in enumerate(shifts):
        np.right_shift(x, shift, out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        if index < len(factors):
            np.multiply(x, np.uint32(factors[index]), out=x)


@jax.jit
def _device_sums(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of `_host_sums`, computed where `array` lies; scalars, so every process gets them."""
    words = _device_words(array)
    position = jnp.zeros(words.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(words.ndim)):
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride & _WORD)
        stride *= words.shape[axis]
    a = _mix(words ^ position * jnp.uint32(_POSITION_A), shifts=(16, 13, 16), factors=(_MIX_A1, _MIX_A2))
    b = _mix(a ^ position * jnp.uint32(_POSITION_B), shifts=(17, 15), factors=(_MIX_B1, _MIX_B2))
    return jnp.sum(a, dtype=jnp.uint32), jnp.sum(b, dtype=jnp.uint32)


def _device_words(array: jax.Array) -> jax.Array:
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[array.dtype.itemsize]
    return jnp.atleast_1d(jax.lax.bitcast_convert_type(array, unsigned)).astype(jnp.uint32)


def _mix(x: jax.Array, *, shifts: tuple[int, ...], factors: tuple[int, int]) -> jax.Array:
    for index, shift in enumerate(shifts):
        x ^= x >> jnp.uint32(shift)
        if index < len(factors):
            x *= jnp.uint32(factors[index])
    return x
