"""Files in the safetensors format, read with suspicion: 8 bytes of length, a JSON header, the tensors' bytes.

The header is checked against the file before any of it is used. The package `safetensors` writes; it cannot read, as it
gives bfloat16 to PyTorch only.

Source of the format: github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from t5core import errors, storage

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
_MOST_DIMS = 8


def read(uri: str) -> dict[str, np.ndarray]:
    """Returns the tensors of the file at `uri` by name; those of a local file are read when they are looked at.

    Raises:
      CheckpointError: the file is damaged, or not of this format.
    """
    content = _bytes_of(uri)
    try:
        header, start = _header(content)
        tensors = {name: _tensor(name, entry, size=len(content) - start) for name, entry in header.items()}
        _require_gapless(tensors, size=len(content) - start)
    except ValueError as error:
        raise errors.CheckpointError(f"{uri} is damaged ({error}); copy the checkpoint again") from error
    return {
        name: content[start + begin : start + end].view(dtype).reshape(shape)
        for name, (dtype, shape, begin, end) in tensors.items()
    }


def _bytes_of(uri: str) -> np.ndarray:
    path = storage.path(uri)
    if storage.is_remote(uri):
        return np.frombuffer(path.read_bytes(), np.uint8)
    if path.stat().length == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(str(path), np.uint8, mode="r").view(np.ndarray)


def _header(content: np.ndarray) -> tuple[dict[str, Any], int]:
    """Returns the entries of the tensors, and where their bytes begin."""
    if len(content) < 8:
        raise ValueError(f"it has {len(content)} bytes, and 8 tell the length of its header")
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > min(len(content) - 8, MAX_HEADER_BYTES):
        raise ValueError(f"its header claims {length} bytes, and {len(content) - 8} follow, {MAX_HEADER_BYTES} at most")
    text = content[8 : 8 + length].tobytes().decode("utf-8")
    if not text.startswith("{"):
        raise ValueError("its header does not begin with '{'")
    try:
        header = json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is not text by name")
    return header, 8 + length


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"its header names {twice!r} twice")
    return found


def _tensor(name: str, entry: Any, *, size: int) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Returns dtype, shape, begin and end of a tensor, once they go together."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header says {str(entry)[:60]} of {name!r}, not dtype, shape and data_offsets")
    dtype, shape, offsets = _DTYPES.get(str(entry["dtype"])), entry["shape"], entry["data_offsets"]
    if dtype is None:
        raise ValueError(errors.unknown_name(f"dtype of {name!r}", str(entry["dtype"]), _DTYPES))
    if not _are_counts(shape) or len(shape) > _MOST_DIMS:
        raise ValueError(f"{name!r} has the shape {str(shape)[:60]}")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise ValueError(f"{name!r} lies at {str(offsets)[:60]}, and the file has {size} bytes of tensors")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise ValueError(f"{name!r} has {offsets[1] - offsets[0]} bytes, and {needed} go with {entry['dtype']}{shape}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _require_gapless(tensors: Mapping[str, tuple[np.dtype, tuple[int, ...], int, int]], *, size: int) -> None:
    """Every byte belongs to one tensor: no overlaps, nothing hidden in between."""
    at = 0
    for name, (_, _, begin, end) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise ValueError(f"{name!r} begins at {begin}, where {at} was to be expected")
        at = end
    if at != size:
        raise ValueError(f"its tensors end at {at}, and the file has {size} bytes of them")


def write(uri: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `tensors` to a file at `uri`, which appears whole or not at all.

    Raises:
      RunDirectoryError: no right to write there, or no space.
    """
    from safetensors.numpy import save

    # The library takes the memory as it lies.
    rows_first = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    storage.write_bytes(uri, save(rows_first, metadata={"format": "pt"}))
