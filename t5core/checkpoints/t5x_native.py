"""Checkpoints in T5X's native layout, version 3: what its public models are published in.

`<folder>/checkpoint_<step>/checkpoint` is a msgpack of {"version": 3, "optimizer": {"target": parameters, "state":
{"step", "param_states"}}}. A leaf is an array, or a tensorstore spec that points at a zarr array in a folder beside
it, named like the leaf with dots for slashes. Only data is decoded: arrays of numbers by name of their dtype, from
places inside the checkpoint's own folder.

Source: t5x/checkpoints.py@cc342d4. Differences from T5X: a chunk that is missing is an error (there: zeros), shapes
of all arrays are checked, bfloat16 that version 2 wrote as uint16 is read as bfloat16, and an existing checkpoint is
not silently kept in place of the new one.
"""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np
import tensorstore
from flax import serialization

from t5core import errors, storage, trees
from t5core.checkpoints import enclosure, msgpack_structure
from t5core.data.scratch import Scratch

Tree = dict[str, Any]

INDEX_FILE = "checkpoint"
VERSION = 3
MAX_BYTES = 256 << 30
_CHUNK_BYTES = 64 << 20
_EXTENSIONS = (1, 2, 3)  # what flax writes: array, complex number, numpy scalar
_BEST_COMPRESSION = 1032  # of gzip, which T5X compresses chunks with
_STEP_FOLDER = re.compile(r"checkpoint_(\d+)")
_SPEC_KEYS = {"driver", "kvstore", "metadata"}
_DTYPES = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def t5x_checkpoint_steps(uri: str) -> tuple[int, ...]:
    """Returns the steps, ascending, of the finished checkpoints in the folder `uri`; none where there is no folder."""
    folder = storage.path(uri)
    if not folder.is_dir():
        return ()
    found = [(match, child) for child in folder.iterdir() if (match := _STEP_FOLDER.fullmatch(child.name))]
    return tuple(sorted(int(match[1]) for match, child in found if (child / INDEX_FILE).is_file()))


def read_t5x_checkpoint(uri: str, *, select: Callable[[str], bool] | None = None, max_bytes: int = MAX_BYTES) -> Tree:
    """Returns the nested dict of numpy arrays that a checkpoint holds, with 'target' and 'state' at its top.

    Args:
      uri: the folder of one step, `.../checkpoint_<step>`, local or on gs://.
      select: tells by path, such as 'target/decoder/decoder_norm/scale', what to read; None reads all.
      max_bytes: what the arrays may need in memory; a checkpoint that declares more is refused before it is read.

    Raises:
      CheckpointError: nothing there, another kind of checkpoint, or one that is damaged, too large or reaches out of
        its folder.
    """
    folder = str(uri).rstrip("/")
    version, found = _indexed(folder, max_bytes)
    on_disk = sum(enclosure.files_of(folder).values())
    leaves = {path: leaf for path, leaf in found.items() if select is None or select(path)}
    specs = {path: _Array(folder, path, leaf) for path, leaf in leaves.items() if isinstance(leaf, dict)}
    total = sum(spec.size_bytes for spec in specs.values())
    if total > max_bytes:
        raise errors.CheckpointError(
            f"{folder} declares {total} bytes of arrays; raise max_bytes={max_bytes} to read it"
        )
    if total > on_disk * _BEST_COMPRESSION:
        raise errors.CheckpointError(
            f"{folder} declares {total} bytes of arrays, and its files have {on_disk}; copy the checkpoint again"
        )
    opened = {path: spec.open() for path, spec in specs.items()}
    reads = {path: specs[path].start_read(future) for path, future in opened.items()}
    for path, future in reads.items():
        array = specs[path].finish_read(future)
        leaves[path] = array.view(ml_dtypes.bfloat16) if version == 2 and array.dtype == np.uint16 else array
    return trees.unflatten(leaves)


def read_t5x_shapes(uri: str, *, max_bytes: int = MAX_BYTES) -> Tree:
    """Returns the nested dict of the shapes and dtypes that a checkpoint declares; no array is opened.

    Raises:
      CheckpointError: as `read_t5x_checkpoint`.
    """
    folder = str(uri).rstrip("/")
    version, leaves = _indexed(folder, max_bytes)
    declared = {
        path: _Array(folder, path, leaf).declared(version) if isinstance(leaf, dict) else _shape_of(leaf)
        for path, leaf in leaves.items()
    }
    return trees.unflatten(declared)


def _shape_of(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _indexed(folder: str, max_bytes: int) -> tuple[int, dict[str, Any]]:
    """Returns the version of a checkpoint, and the array or the spec of each leaf by path."""
    content = _unpacked(folder, max_bytes)
    version = content.get("version")
    if not isinstance(version, int) or version not in (2, VERSION) or not isinstance(content.get("optimizer"), dict):
        raise errors.CheckpointError(
            f"{folder} has version {version!r}, not 2 or {VERSION}; save it again with a current T5X"
        )
    return version, dict(_leaves(content["optimizer"], folder))


def _unpacked(folder: str, max_bytes: int) -> Tree:
    index = storage.path(folder) / INDEX_FILE
    if not index.is_file():
        raise errors.CheckpointError(_nothing_at(folder))
    if index.stat().length > max_bytes:
        raise errors.CheckpointError(f"{index} has {index.stat().length} bytes; raise max_bytes={max_bytes} to read it")
    packed = index.read_bytes()
    if packed.startswith(b"model_checkpoint_path"):
        raise errors.CheckpointError(f"{folder} is a TensorFlow checkpoint; convert it with T5X to its native format")
    try:
        msgpack_structure.check(packed, extensions=_EXTENSIONS)
        content = serialization.msgpack_restore(packed)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.CheckpointError(f"{index} is damaged ({_first_line(error)}); copy the checkpoint again") from error
    if not isinstance(content, dict):
        raise errors.CheckpointError(f"{index} holds a {type(content).__name__}, not a T5X checkpoint; check the path")
    return content


def _nothing_at(folder: str) -> str:
    if any((storage.path(folder) / name).exists() for name in ("_METADATA", "state/_METADATA", "state/manifest.ocdbt")):
        return f"{folder} is an Orbax checkpoint, not a native T5X one; restore it as a run's own"
    steps = t5x_checkpoint_steps(folder)
    if steps:
        return f"{folder} holds the checkpoints of steps {steps}; name one, such as {folder}/checkpoint_{steps[-1]}"
    return f"no T5X checkpoint at {folder}: it has no file {INDEX_FILE!r}; check the path"


def _leaves(tree: Mapping[Any, Any], folder: str, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields the path and the array or spec of each leaf; frozen parameters have None for a state, which is left out.

    Raises:
      CheckpointError: what is there is neither.
    """
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise errors.CheckpointError(f"{folder} has the name {key!r} below {'/'.join(prefix)!r}; names are words")
        path = "/".join((*prefix, key))
        if isinstance(value, dict) and not value.keys() >= _SPEC_KEYS:
            yield from _leaves(value, folder, (*prefix, key))
        elif isinstance(value, dict):
            yield path, value
        elif isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
            array = np.asarray(value)
            if array.dtype.name not in _DTYPES:
                raise errors.CheckpointError(f"{folder}: {path} has dtype {array.dtype}, which is not of numbers")
            yield path, array
        elif value is not None:
            raise errors.CheckpointError(f"{folder}: {path} is a {type(value).__name__}, not an array; check the file")


class _Array:
    """One zarr array of a checkpoint.

    Of the spec that the checkpoint carries only the name of the array's folder, the dtype and the shape count: it was
    written for the storage of its time ('gfile', or 'gcs' with a placeholder bucket), so the place is where the
    checkpoint lies now.
    """

    def __init__(self, folder: str, path: str, spec: Mapping[str, Any]) -> None:
        self._where = f"{folder}: {path}"
        kvstore, metadata = spec["kvstore"], spec["metadata"]
        if spec["driver"] != "zarr" or not isinstance(kvstore, dict) or not isinstance(metadata, dict):
            raise errors.CheckpointError(f"{self._where} is not a zarr array but {spec['driver']!r}; check the file")
        self._uri = f"{folder}/{self._safe_name(kvstore.get('path'))}"
        self._shape = self._checked_shape(metadata.get("shape"), spec.get("transform"))
        dtype = spec.get("dtype")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise errors.CheckpointError(f"{self._where} has dtype {dtype!r}, which is not of numbers")
        self._dtype = tensorstore.dtype(dtype)

    def _safe_name(self, name: Any) -> str:
        parts = name.rstrip("/").split("/") if isinstance(name, str) else []
        climbs = any(part in ("", ".", "..") or set(part) & set("\\:\0") for part in parts)
        if not parts or climbs:
            raise errors.CheckpointError(
                f"{self._where} lies at {name!r}, not in a folder of its checkpoint; do not trust this checkpoint"
            )
        return "/".join(parts)

    def _checked_shape(self, shape: Any, transform: Any) -> tuple[int, ...]:
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise errors.CheckpointError(f"{self._where} has shape {shape!r}; check the file")
        if transform is not None:
            ends = transform.get("input_exclusive_max") if isinstance(transform, dict) else None
            starts = transform.get("input_inclusive_min", [0] * len(shape)) if isinstance(transform, dict) else None
            is_whole = ends in (shape, [[size] for size in shape]) and starts == [0] * len(shape)
            if not is_whole or "output" in transform:
                raise errors.CheckpointError(f"{self._where} is a part of an array, which T5X never writes")
        return tuple(shape)

    @property
    def size_bytes(self) -> int:
        """What the array takes in memory, as declared."""
        return math.prod(self._shape) * self._dtype.numpy_dtype.itemsize

    def declared(self, version: int) -> jax.ShapeDtypeStruct:
        """Returns what the array reads as, by the checkpoint's word."""
        dtype = self._dtype.numpy_dtype
        return jax.ShapeDtypeStruct(self._shape, ml_dtypes.bfloat16 if version == 2 and dtype == np.uint16 else dtype)

    def open(self) -> Any:
        """Returns a future of the opened array."""
        spec = {"driver": "zarr", "kvstore": _kvstore(self._uri), "fill_missing_data_reads": False}
        return tensorstore.open(spec, open=True, read=True)

    def start_read(self, opened: Any) -> Any:
        """Returns a future of the numpy array, once it is clear that the array is what the checkpoint declares."""
        store = self._result(opened)
        if store.shape != self._shape or store.dtype != self._dtype:
            raise errors.CheckpointError(
                f"{self._where} is {store.dtype.name}{list(store.shape)} on disk, but the checkpoint says "
                f"{self._dtype.name}{list(self._shape)}; copy the checkpoint again"
            )
        chunk = math.prod(store.chunk_layout.read_chunk.shape) * self._dtype.numpy_dtype.itemsize
        if chunk > max(self.size_bytes, _CHUNK_BYTES):
            raise errors.CheckpointError(f"{self._where} has chunks of {chunk} bytes, which T5X never writes")
        return store.read()

    def finish_read(self, read: Any) -> np.ndarray:
        """Returns the numpy array."""
        return np.asarray(self._result(read))

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except ValueError as error:
            raise errors.CheckpointError(
                f"{self._where} cannot be read: {_first_line(error)}; copy the checkpoint again"
            ) from error


def _kvstore(folder: str) -> str | dict[str, str]:
    if storage.is_remote(folder):
        return urllib.parse.quote(folder, safe=":/") + "/"
    return {"driver": "file", "path": os.path.abspath(folder) + "/"}


def _first_line(error: Exception) -> str:
    lines = str(error).partition(" [tensorstore_spec=")[0].splitlines()
    return lines[0] if lines else type(error).__name__


def write_t5x_checkpoint(uri: str, step: int, tree: Mapping[str, Any]) -> str:
    """Writes a checkpoint that T5X and its converters read, and returns its folder, `<uri>/checkpoint_<step>`.

    On a disk the folder appears whole or not at all; on gs:// the index file comes last, without which the rest does
    not count. Parameters, and state of a parameter's shape, become zarr arrays; the rest goes into the index.

    Args:
      uri: the folder that holds the checkpoints of a run.
      step: updates done; must be what `tree` says.
      tree: nested dicts of arrays with 'target' and 'state' at the top, whole on this process (one process writes).

    Raises:
      CheckpointError: `tree` is not of that form, or that step has a checkpoint.
      RunDirectoryError: no right to write there, or no space.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in trees.flatten(tree).items()}
    target = f"{str(uri).rstrip('/')}/checkpoint_{step}"
    _check_tree(leaves, step)
    if (storage.path(target) / INDEX_FILE).exists():
        raise errors.CheckpointError(f"{target} exists; remove it, or write another step")
    scratch = Scratch(target)
    try:
        index = _write_arrays(scratch.folder, leaves)
        packed = serialization.msgpack_serialize({"version": VERSION, "optimizer": trees.unflatten(index)})
        storage.write_bytes(f"{scratch.folder}/{INDEX_FILE}", packed)
        if not scratch.publish(marker=INDEX_FILE):
            raise errors.CheckpointError(f"{target} was written by another process meanwhile; remove it, or let it be")
    finally:
        scratch.discard()
    return target


def _check_tree(leaves: Mapping[str, np.ndarray], step: int) -> None:
    stored = leaves.get("state/step")
    if stored is None or stored.shape != () or int(stored) != step:
        raise errors.CheckpointError(f"state/step is {stored}, not {step}; give the state of the step to be written")
    tops = {path.split("/")[0] for path in leaves}
    if "target" not in tops:
        raise errors.CheckpointError(f"the tree holds {sorted(tops)} but no 'target'; give the parameters as 'target'")
    for path, leaf in leaves.items():
        if leaf.dtype.name not in _DTYPES:
            raise errors.CheckpointError(f"{path} has dtype {leaf.dtype}, which T5X cannot store; convert it first")
    names = [_folder_name(path) for path in leaves]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise errors.CheckpointError(f"two arrays would be stored as {twice!r}; rename one")


def _write_arrays(folder: str, leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Writes the arrays that get a folder of their own; returns what the index holds for each leaf."""
    shapes = {path.removeprefix("target/"): leaf.shape for path, leaf in leaves.items() if path.startswith("target/")}
    index: dict[str, Any] = dict(leaves)
    writes = []
    try:
        for path, leaf in leaves.items():
            if path.startswith("target/") or _is_like_parameter(path, leaf, shapes) or leaf.nbytes > _CHUNK_BYTES:
                index[path] = _spec(_folder_name(path) + "/", leaf)
                spec = {**index[path], "kvstore": _kvstore(f"{folder}/{_folder_name(path)}")}
                store = tensorstore.open(spec, create=True, delete_existing=True).result()
                writes.append(store.write(leaf))
        for write in writes:
            write.result()
    except ValueError as error:
        raise errors.RunDirectoryError(
            f"cannot write {folder}: {_first_line(error)}; free space or choose another folder"
        ) from error
    return index


def _is_like_parameter(path: str, leaf: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Tells whether a leaf of the state belongs to a parameter, as its path says, and has its shape."""
    return any(shapes.get(owner) == leaf.shape for owner in trees.paths_within(path))


def _folder_name(path: str) -> str:
    return path.replace("/", ".")


def _spec(name: str, leaf: np.ndarray) -> dict[str, Any]:
    metadata = {
        "shape": list(leaf.shape),
        "chunks": _chunk_shape(leaf.shape, leaf.dtype.itemsize),
        "compressor": {"id": "gzip", "level": 1},
    }
    return {
        "driver": "zarr",
        "dtype": leaf.dtype.name,
        "kvstore": {"driver": "file", "path": name},
        "metadata": metadata,
    }


def _chunk_shape(shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Returns the chunk that results when the largest dimension is cut to a divisor until 64 MiB hold it."""
    chunk = [max(size, 1) for size in shape]
    while math.prod(chunk) * itemsize > _CHUNK_BYTES:
        dim = chunk.index(max(chunk))
        chunk[dim] = next(size for size in range(chunk[dim] // 2, 0, -1) if chunk[dim] % size == 0)
    return chunk
