"""Stage two of the data: several tokenised tasks become one dataset of rows in their final order.

Which example comes where is computed block by block from the seed, so memory does not grow with the corpus, and nothing
depends on who computes it. The number of steps plays no part: a longer run reads the same dataset further.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from t5core import counting, errors, progress, storage
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import DatasetRef, ResolvedRun, VocabularyRef
from t5core.data import converters, manifest, ordering, packing, store
from t5core.data.converters import FeatureConverter
from t5core.data.manifest import Manifest, TaskShare
from t5core.fingerprints import code_fingerprint

MAX_EPOCHS = 100
_DECIDING_MODULES = (
    "t5core.data.converters",
    "t5core.data.manifest",
    "t5core.data.mixture",
    "t5core.data.ordering",
    "t5core.data.packing",
    "t5core.data.store",
    "t5core.data.zarr",
)


def assemble_mixture(run: ResolvedRun, *, vocabulary: VocabularyRef, tasks: Sequence[DatasetRef]) -> DatasetRef:
    """Returns the dataset that `run` trains on, made from the datasets of its tasks unless it is there already.

    Raises:
      ConfigError: a task would have to be read more than MAX_EPOCHS times to reach its rate.
      DataError: a task gives nothing to train on, or all of them less than one batch.
    """
    root, parts = run.config.run.root, mixture_parts(run, vocabulary=vocabulary, tasks=tasks)

    def make(uri: str) -> Manifest:
        with contextlib.ExitStack() as open_copies:
            sources = _open_sources(run, tasks, open_copies)
            return _write(uri, run=run, vocabulary=vocabulary, sources=sources, parts=parts)

    reference = manifest.reuse_or_make(root, mixture_name(run), parts, make)
    if reference.rows < run.config.train.batch_size:
        rows = counting.count(reference.rows, "row")
        raise errors.DataError(
            f"the tasks give {rows}, fewer than one batch of {run.config.train.batch_size}; "
            "add data, lower train.batch_size or set data.pack=false"
        )
    return reference


def mixture_name(run: ResolvedRun) -> str:
    """Returns a folder-safe name for the mixture of a run, the same for every run of the same tasks."""
    name = "mixture-" + "+".join(task.name for task in active_tasks(run))
    return name if len(name) <= 100 else f"{name[:83]}-{storage.fingerprint(name)}"


def active_tasks(run: ResolvedRun) -> tuple[TaskConfig, ...]:
    """Returns the tasks that training reads: those whose rate is not 0."""
    return tuple(task for task in run.config.data.tasks if task.rate != 0)


def mixture_parts(run: ResolvedRun, *, vocabulary: VocabularyRef, tasks: Sequence[DatasetRef]) -> dict[str, str]:
    """Returns the fingerprint of everything that decides the mixture's bytes, by what it is."""
    data, by_name = run.config.data, {task.name: task for task in tasks}
    settings = {
        "family": run.config.model.architecture().family,
        "feature_lengths": data.feature_lengths,
        "pack": data.pack,
        "rates": {task.name: task.rate for task in active_tasks(run)},
        "order_seed": _order_seed(run),
    }
    return {
        "data": storage.fingerprint([_dataset_of(task, by_name).fingerprint for task in active_tasks(run)]),
        "vocabulary": vocabulary.fingerprint,
        "settings": storage.fingerprint(settings),
        "code": code_fingerprint(*_DECIDING_MODULES),
    }


def planned_reads(rates: Mapping[str, float | None], rows: Mapping[str, int]) -> dict[str, int]:
    """Returns how many examples the mixture takes from each task.

    The mixture is as short as it can be with every row of every task in it at least once and the tasks at their rates;
    so the task that is largest for its rate is read once, and the others as often as it takes.

    Args:
      rates: of each task relative to the others, None for all of them to mix in proportion to their rows.
      rows: of each task's dataset, all passes together.

    Raises:
      ConfigError: rates are given for some tasks only, or a task would be read more than MAX_EPOCHS times.
    """
    shares = _shares(rates, rows)
    total = max(rows[name] / share for name, share in shares.items())
    reads = {name: max(rows[name], round(total * share)) for name, share in shares.items()}
    for name, count in reads.items():
        if count > MAX_EPOCHS * rows[name]:
            examples = counting.count(rows[name], "example")
            raise errors.ConfigError(
                f"task {name!r} has {examples} and would be read {count / rows[name]:.0f} times to make up "
                f"{shares[name]:.3g} of the mixture; at most {MAX_EPOCHS} is sensible: lower its rate or add data"
            )
    return reads


def _shares(rates: Mapping[str, float | None], rows: Mapping[str, int]) -> dict[str, float]:
    """Returns the share of the mixture that each task is to have; they add up to 1."""
    unrated = [name for name, rate in rates.items() if rate is None]
    if unrated and len(unrated) < len(rates):
        raise errors.ConfigError(
            f"task {unrated[0]!r} has no rate and others have; give all of them a rate or none "
            f"(in proportion to its examples it would be {rows[unrated[0]]})"
        )
    weights = {name: float(rows[name]) if rate is None else rate for name, rate in rates.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    """A task's dataset, opened, and the order in which its rows are read."""

    name: str
    rate: float | None
    fingerprint: str
    reader: store.RowReader
    order: ordering.TaskOrder

    @property
    def rows(self) -> int:
        return self.reader.num_rows

    def examples(self, reads: Int[np.ndarray, " n"], converter: FeatureConverter) -> dict[str, np.ndarray]:
        """Returns the stored features of the examples that come at `reads` in this task's order."""
        return converter.from_task(self.reader.read_rows(self.order.rows(reads)))


def _dataset_of(task: TaskConfig, by_name: Mapping[str, DatasetRef]) -> DatasetRef:
    if task.name not in by_name:
        raise errors.DataError(f"no dataset was made for {errors.unknown_name('task', task.name, by_name)}")
    return by_name[task.name]


def _order_seed(run: ResolvedRun) -> int | None:
    return run.seed if run.config.data.shuffle else None


def _open_sources(run: ResolvedRun, tasks: Sequence[DatasetRef], open_copies: contextlib.ExitStack) -> list[_Source]:
    by_name = {task.name: task for task in tasks}
    sources = []
    for task in active_tasks(run):
        dataset = _dataset_of(task, by_name)
        if dataset.rows == 0:
            raise errors.DataError(
                f"task {task.name!r} has no training examples ({dataset.uri}); mend its source or set its rate to 0"
            )
        reader = store.RowReader(open_copies.enter_context(store.nearby(dataset.uri)))
        passes = reader.record.pass_rows or (reader.num_rows,)
        order = ordering.TaskOrder(pass_rows=passes, seed=_order_seed(run), name=task.name)
        sources.append(
            _Source(name=task.name, rate=task.rate, fingerprint=dataset.fingerprint, reader=reader, order=order)
        )
    return sources


def _write(
    uri: str,
    *,
    run: ResolvedRun,
    vocabulary: VocabularyRef,
    sources: Sequence[_Source],
    parts: Mapping[str, str],
) -> Manifest:
    """Writes the mixture and returns its committed manifest."""
    reads = planned_reads({source.name: source.rate for source in sources}, {s.name: s.rows for s in sources})
    converter = converters.converter_for(run.config.model.architecture().family, run.config.data.feature_lengths)
    features = converter.stored_features(packed=run.config.data.pack, vocab_size=vocabulary.size)
    packer = packing.Packer(converter) if run.config.data.pack else None
    tokens = {source.name: dict.fromkeys((names[0] for names in converter.members.values()), 0) for source in sources}
    with (
        store.DatasetWriter(uri) as writer,
        progress.stage("assemble", total=sum(reads.values()), unit="examples") as bar,
    ):
        rows = writer.rows("train", features)
        counts = [reads[source.name] for source in sources]
        for tasks, numbers in ordering.interleave(counts, seed=_order_seed(run)):
            block = _block(sources, tasks, numbers, converter=converter, tokens=tokens)
            rows.append(packer.add(block) if packer else block)
            bar.advance(len(tasks))
        if packer:
            rows.append(packer.finish())
        record = rows.close()
        described = Manifest(
            kind="mixture",
            name=mixture_name(run),
            fingerprint=manifest.fingerprint_of(parts),
            parts=dict(parts),
            splits={"train": record},
            tasks=_task_shares(sources, reads=reads, tokens=tokens),
            packing=packer.report(record) if packer else None,
            order_seed=_order_seed(run),
        )
        return writer.commit(described)


def _block(
    sources: Sequence[_Source],
    tasks: Int[np.ndarray, " n"],
    numbers: Int[np.ndarray, " n"],
    *,
    converter: FeatureConverter,
    tokens: Mapping[str, dict[str, int]],
) -> dict[str, np.ndarray]:
    """Returns the stored features of a stretch of the mixture, unpacked, and adds to the token counts."""
    block: dict[str, np.ndarray] = {}
    for number, source in enumerate(sources):
        here = tasks == number
        for name, values in source.examples(numbers[here], converter).items():
            whole = block.setdefault(name, np.zeros((len(tasks), values.shape[1]), np.int32))
            whole[here] = values
            if name in tokens[source.name]:
                tokens[source.name][name] += int(np.count_nonzero(values))
    return block


def _task_shares(
    sources: Sequence[_Source], *, reads: Mapping[str, int], tokens: Mapping[str, dict[str, int]]
) -> dict[str, TaskShare]:
    total = sum(reads.values())
    shares = _shares({source.name: source.rate for source in sources}, {source.name: source.rows for source in sources})
    return {
        source.name: TaskShare(
            fingerprint=source.fingerprint,
            requested_rate=shares[source.name],
            realised_rate=reads[source.name] / total,
            reads=reads[source.name],
            epochs=reads[source.name] / source.rows,
            tokens=tokens[source.name],
            source=source.reader.record,
        )
        for source in sources
    }
