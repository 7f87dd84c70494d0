"""Rows on disk: one sharded zarr3 array per feature, split by split, and nothing that is read without a check.

Layout of a dataset at `<uri>`: `<split>/<feature>/zarr.json` and `<split>/<feature>/c/<shard>/0`, any other files, and
`manifest.json`, whose presence says that the rest is complete. Three nets catch damage: the size of every file is
compared when the dataset is opened, the checksum of a shard before its first row is used, and zarr's crc32c with each
chunk that is decoded. A chunk that is missing is an error, not a row of zeros.
"""

from __future__ import annotations

import contextlib
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorstore
from jaxtyping import Int, Shaped

from t5core import errors, storage
from t5core.data import checksums, zarr
from t5core.data import manifest as manifests
from t5core.data.manifest import FeatureSpec, Manifest, SplitRecord
from t5core.data.scratch import Scratch, refusals_as_errors

SHARD_BYTES = 8 << 20
CHUNK_ROWS = 16
READ_CACHE_BYTES = 8 << 20


class RowWriter:
    """Appends rows to one split below `folder`, holding at most two shards of each feature in memory."""

    def __init__(
        self,
        folder: str,
        features: Mapping[str, FeatureSpec],
        *,
        split: str = "train",
        rows_per_shard: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self._features = dict(features)
        self._folder = f"{folder}/{split}"
        self._rows_per_shard = rows_per_shard or _rows_of_a_shard(self._features, chunk_rows)
        assert self._rows_per_shard % chunk_rows == 0, "a shard holds whole chunks"
        self._grid = {"chunk_rows": chunk_rows, "rows_per_shard": self._rows_per_shard}
        self._buffers = {
            name: np.zeros((self._rows_per_shard, spec.length), spec.dtype) for name, spec in self._features.items()
        }
        self._arrays = {
            name: zarr.start(f"{self._folder}/{name}", spec, **self._grid) for name, spec in self._features.items()
        }
        self._written = self._buffered = 0
        self._tokens = dict.fromkeys(self._features, 0)
        self._pending: list[Any] = []

    @property
    def rows(self) -> int:
        """The number of rows appended so far."""
        return self._written + self._buffered

    def append(self, rows: Mapping[str, Int[np.ndarray, "rows length"]]) -> None:
        """Appends rows; `rows` holds every feature, each [n, length].

        Raises:
          DataError: a value does not fit the stored dtype.
          RunDirectoryError: no right to write there, or no space.
        """
        assert set(rows) == set(self._features), f"got {sorted(rows)}, expected {sorted(self._features)}"
        arrays = {name: self._checked(name, np.asarray(rows[name])) for name in self._features}
        counts = {len(array) for array in arrays.values()}
        assert len(counts) == 1, f"features differ in their number of rows: {sorted(counts)}"
        (count,) = counts
        taken = 0
        while taken < count:
            step = min(count - taken, self._rows_per_shard - self._buffered)
            for name, array in arrays.items():
                self._buffers[name][self._buffered : self._buffered + step] = array[taken : taken + step]
            taken += step
            self._buffered += step
            if self._buffered == self._rows_per_shard:
                self._flush()

    def _checked(self, name: str, array: np.ndarray) -> np.ndarray:
        spec = self._features[name]
        assert array.shape == (len(array), spec.length), f"{name} is {array.shape}, expected [n, {spec.length}]"
        limits = np.iinfo(spec.dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            value = array.max() if array.max() > limits.max else array.min()
            raise errors.DataError(f"feature {name!r} holds {value}, which {spec.dtype} cannot; give it a wider dtype")
        self._tokens[name] += int(np.count_nonzero(array))
        return array

    def _flush(self) -> None:
        """Hands the buffered rows on to be written while the next ones are gathered."""
        if not self._buffered:
            return
        self._settle()
        begin, end = self._written, self._written + self._buffered
        self._pending = [
            array[begin:end].write(self._buffers[name][: end - begin]) for name, array in self._arrays.items()
        ]
        for write in self._pending:
            write.copy.exception()  # from here on the buffer may change; what failed is told when it is settled
        self._written, self._buffered = end, 0

    def _settle(self) -> None:
        """Waits until what was handed on is on disk."""
        with zarr.write_errors(self._folder):
            # All are waited for: after a refusal nothing may write any more into a folder that is given up.
            for refusal in [write.exception() for write in self._pending]:
                if refusal is not None:
                    raise refusal
        self._pending = []

    def wait(self) -> None:
        """Waits until nothing is being written any more, whatever came of it."""
        for write in self._pending:
            write.exception()

    def close(self) -> SplitRecord:
        """Writes what is left and returns what the split holds."""
        self._flush()
        self._settle()
        for name, spec in self._features.items():
            zarr.finish(f"{self._folder}/{name}", spec, rows=self._written, **self._grid)
        self._buffers.clear()
        return SplitRecord(rows=self._written, features=self._features, tokens=self._tokens)


def _rows_of_a_shard(features: Mapping[str, FeatureSpec], chunk_rows: int) -> int:
    """Returns the rows that fill a shard of the widest feature, in whole chunks."""
    widest = max(spec.length * np.dtype(spec.dtype).itemsize for spec in features.values())
    return max(1, SHARD_BYTES // widest // chunk_rows) * chunk_rows


class DatasetWriter:
    """Writes a dataset so that it appears at `uri` whole or not at all; a context manager.

    Whatever is written below `folder` before `commit` belongs to the dataset and is protected by its manifest. When
    two processes write the same dataset at once, the first to commit wins and the other's work is dropped. On an object
    store both write the same keys: equal fingerprints mean equal bytes, and if they should not, the checksums tell.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._scratch = Scratch(self.uri)
        self.folder = self._scratch.folder
        self._writers: list[RowWriter] = []

    def rows(self, split: str, features: Mapping[str, FeatureSpec], *, rows_per_shard: int | None = None) -> RowWriter:
        """Returns the writer of one split's rows."""
        self._writers.append(RowWriter(self.folder, features, split=split, rows_per_shard=rows_per_shard))
        return self._writers[-1]

    def commit(self, manifest: Manifest) -> Manifest:
        """Makes the dataset visible and returns its manifest with the files filled in, or the one that was first."""
        write_manifest(self.folder, manifest)
        self._scratch.publish(marker=manifests.FILE_NAME)
        return read_manifest(self.uri)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.wait()  # a late write would bring the folder back
        self._scratch.discard()


def write_manifest(uri: str, manifest: Manifest) -> Manifest:
    """Writes the manifest of the files below `uri`, the last step of making a dataset, and returns it."""
    with refusals_as_errors(uri):
        files = checksums.records_below(uri, skip=manifests.FILE_NAME)
    complete = manifest.model_copy(update={"files": files, "created": manifests.now()})
    storage.write_text(f"{uri}/{manifests.FILE_NAME}", manifests.render(complete))
    return complete


def read_manifest(uri: str) -> Manifest:
    """Returns the manifest of the dataset at `uri` after comparing the size of every file it names.

    Raises:
      DataError: there is no committed dataset at `uri`.
      IntegrityError: a file is missing or has another size, or the manifest is damaged.
    """
    manifest = manifests.load(uri)
    if manifest is None:
        raise errors.DataError(f"no dataset at {uri}: it has no {manifests.FILE_NAME}; materialise it first")
    checksums.check_sizes(uri, manifest.files)
    return manifest


def read_text(uri: str, file: str) -> str:
    """Returns the text of a file that was committed with the dataset at `uri`, by its path below it.

    Raises:
      DataError: there is no committed dataset at `uri`.
      IntegrityError: the file is missing, is not what was committed, or is none of the dataset's.
    """
    checksums.Checker(uri, read_manifest(uri).files).check(file)
    return storage.path(f"{uri}/{file}").read_text(encoding="utf-8")


@contextlib.contextmanager
def nearby(uri: str) -> Iterator[str]:
    """Gives a folder of this machine that holds the dataset: `uri` itself, or a copy that is removed afterwards.

    For reading all rows in another order: on an object store each row would cost a request.
    """
    if not storage.is_remote(uri):
        yield uri
        return
    import fsspec

    filesystem, prefix = fsspec.core.url_to_fs(uri)
    with tempfile.TemporaryDirectory(prefix="dataset-") as folder:
        with refusals_as_errors(folder):
            filesystem.get(f"{prefix}/", f"{folder}/", recursive=True)
        yield folder


class RowReader:
    """Reads rows of one split, each feature in its stored dtype.

    Raises:
      DataError: no dataset at `uri`, or it lacks the split.
      IntegrityError: a file is missing or has another size, or an array is not what the manifest says.
    """

    def __init__(self, uri: str, *, split: str = "train") -> None:
        self.uri = uri.rstrip("/")
        self.manifest = read_manifest(self.uri)
        if split not in self.manifest.splits:
            raise errors.DataError(f"{uri}: {errors.unknown_name('split', split, self.manifest.splits)}")
        self.split = split
        self.record = self.manifest.splits[split]
        self._checker = checksums.Checker(self.uri, self.manifest.files)
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": READ_CACHE_BYTES}})
        self._arrays = {name: self._open(name, spec, context) for name, spec in self.record.features.items()}
        (self._rows_per_shard,) = {array.chunk_layout.write_chunk.shape[0] for array in self._arrays.values()}

    @property
    def num_rows(self) -> int:
        """The number of rows in the split."""
        return self.record.rows

    def _open(self, name: str, spec: FeatureSpec, context: tensorstore.Context) -> Any:
        folder = f"{self.split}/{name}"
        self._checker.check(f"{folder}/zarr.json")
        array = zarr.open_for_reading(f"{self.uri}/{folder}", context=context)
        if array.shape != (self.record.rows, spec.length) or array.dtype.name != spec.dtype:
            raise errors.IntegrityError(
                f"{self.uri}/{folder}/zarr.json is {array.dtype.name}{list(array.shape)}, but the manifest says "
                f"{spec.dtype}{[self.record.rows, spec.length]}; delete the dataset and run again"
            )
        return array

    def read(self, start: int, stop: int) -> dict[str, Shaped[np.ndarray, "rows length"]]:
        """Returns rows [start, stop) of every feature.

        Raises:
          IntegrityError: what is stored differs from what was written.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise IndexError(f"rows [{start}, {stop}) of {self.num_rows}")
        if start == stop:
            return self._no_rows()
        shards = range(start // self._rows_per_shard, (stop - 1) // self._rows_per_shard + 1)
        return self._gather(slice(start, stop), shards=shards)

    def read_rows(self, indices: Int[np.ndarray, " rows"]) -> dict[str, Shaped[np.ndarray, "rows length"]]:
        """Returns the rows at `indices`, in that order; a row may be asked for twice.

        Raises:
          IntegrityError: what is stored differs from what was written.
        """
        indices = np.asarray(indices, np.int64)
        if not indices.size:
            return self._no_rows()
        if indices.min() < 0 or indices.max() >= self.num_rows:
            raise IndexError(f"rows {indices.min()}..{indices.max()} of {self.num_rows}")
        return self._gather(indices, shards=np.unique(indices // self._rows_per_shard).tolist())

    def _no_rows(self) -> dict[str, np.ndarray]:
        return {name: np.empty((0, spec.length), spec.dtype) for name, spec in self.record.features.items()}

    def _gather(self, selection: slice | np.ndarray, *, shards: Iterable[int]) -> dict[str, np.ndarray]:
        """Checks every shard that is about to be used, then reads `selection` of all features at once."""
        for shard in shards:
            for name in self._arrays:
                self._checker.check(f"{self.split}/{name}/c/{shard}/0")
        pending = {name: array[selection].read() for name, array in self._arrays.items()}
        result = {}
        for name, future in pending.items():
            with zarr.read_errors(f"{self.uri}/{self.split}/{name}"):
                result[name] = np.asarray(future.result())
        return result
