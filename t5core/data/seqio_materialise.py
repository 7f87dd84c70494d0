"""Makes shards of tasks that only SeqIO can read: registered ones and caches; runs in the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5core import errors
from t5core.config.data_schema import DataConfig
from t5core.data import seqio_cached, seqio_counts, seqio_registered, seqio_tasks, worker
from t5core.data.examples import ExampleWriter
from t5core.data.ragged import Ragged
from t5core.data.shards import Part, Plan, ShardRecord, ShardRows
from t5core.data.sources import TRAIN, VALIDATION
from t5core.data.vocabulary import load_vocabulary
from t5core.data.work import VALIDATION_SEED, Work, pass_seed

_BATCH = 512
_MOST_SHARDS = 256
# TensorFlow's stubs know too little of data sets whose elements are dictionaries.
Dataset = Any


def plan(work: Work) -> Plan:
    """Returns the parts that the shards of a task are made of: as many as its source has files, or one.

    Which example belongs to which, and what SeqIO draws for it, depends on their number, and that on the source alone.

    Raises:
      ConfigError: the task does not fit the run: another vocabulary, or features that the run does not have.
      DataError: a split is missing.
    """
    task = _task(work)
    _check(task, work.data, use_cached=work.task.use_cached)
    files = _source_shards(task) if not work.task.use_cached else []
    count = max(1, min(_MOST_SHARDS, len(files)))
    parts = [
        Part(split=TRAIN, index=index, passes=work.data.passes, of=count if count > 1 else None)
        for index in range(count)
    ]
    if VALIDATION in task.splits and not (work.data.allow_missing_split and _is_empty(task, work, VALIDATION)):
        parts.append(Part(split=VALIDATION, index=0, passes=1))
    return Plan(sides=tuple(task.output_features), parts=tuple(parts), size=_bytes_of(files) if count > 1 else 0)


def _source_shards(task: seqio.Task) -> list[str]:
    try:
        return list(task.source.list_shards(TRAIN))
    except NotImplementedError:
        return []


def _bytes_of(shards: list[str]) -> int:
    """Returns the bytes of those shards that are files; other sources only name theirs."""
    return sum(tf.io.gfile.stat(shard).length for shard in shards if tf.io.gfile.exists(shard))


def make(work: Work, part: Part, folder: str) -> None:
    """Writes the shards of a part into `folder`."""
    task = _task(work)
    seqio_counts.taken()  # of a call that was broken off
    if part.split == VALIDATION:
        _make_validation(task, work, part, folder)
    else:
        _make_training(task, work, part, folder)


def examples_in_source(work: Work) -> int:
    """Returns how many examples the source of a task has to train on."""
    source: Dataset = _task(work).source.get_dataset(TRAIN, shuffle=False)
    return int(source.reduce(np.int64(0), lambda count, _: count + 1))


def _task(work: Work) -> seqio.Task:
    reference, data, config = work.request.vocabulary, work.data, work.task
    if config.cache is not None:
        seqio_cached.check_tokens(config, vocabulary=load_vocabulary(reference))
        return seqio_cached.task_from_cache(config, vocabulary=seqio_tasks.vocabulary_for_seqio(reference))
    assert data.module is not None, "the configuration checks that"
    task = seqio_registered.registered_task(config.name, module=data.module, cache_dirs=data.seqio_cache_dirs)
    seqio_registered.check_vocabulary(task, reference)
    if config.use_cached:
        seqio_registered.check_cached(task)
    return task


def _check(task: seqio.Task, data: DataConfig, *, use_cached: bool) -> None:
    for side in task.output_features:
        if side not in data.feature_lengths:
            raise errors.ConfigError(
                f"task {task.name!r} has the feature {side!r}, but data.feature_lengths has none of that name; "
                f"it has {', '.join(sorted(data.feature_lengths))}"
            )
    if task.requires_caching and not use_cached:
        raise errors.ConfigError(
            f"SeqIO task {task.name!r} requires a SeqIO cache; set use_cached and data.seqio_cache_dirs, or register "
            "it without `required=True`"
        )
    for split, needed in ((TRAIN, True), (VALIDATION, not data.allow_missing_split)):
        if needed and split not in task.splits:
            remedy = "add it" if split == TRAIN else "add it, or set data.allow_missing_split=true"
            known = ", ".join(sorted(task.splits)) or "none"
            raise errors.DataError(f"task {task.name!r} has no {split} split, only {known}; {remedy}")


def _make_training(task: seqio.Task, work: Work, part: Part, folder: str) -> None:
    features, lengths = list(task.output_features), work.data.feature_lengths
    shard = seqio.ShardInfo(index=part.index, num_shards=part.of) if part.of else None
    for number in range(part.passes):
        writer = _writer(task, work)
        examples = _examples(task, work, TRAIN, seed=pass_seed(work.request.run.seed, number), shard=shard)
        for batch in _batches(examples, features, lengths=lengths):
            worker.report(len(writer.append(batch)))
        writer.rows.save(f"{folder}/{part.file(number)}", _record(writer))


def _make_validation(task: seqio.Task, work: Work, part: Part, folder: str) -> None:
    """Makes as many examples as the task has at most, with what else they hold: the raw texts, above all."""
    writer, features, limit = _writer(task, work), list(task.output_features), work.task.max_validation_examples
    others: list[dict[str, Any]] = []
    examples = _examples(task, work, VALIDATION, seed=VALIDATION_SEED).take(-1 if limit is None else limit)
    for example in examples.as_numpy_iterator():
        batch = {
            side: Ragged(values=example[side], sizes=np.array([len(example[side])]), texts=_text_of(example, side))
            for side in features
        }
        if writer.append(batch)[0]:
            others.append({name: plain_value(value) for name, value in example.items() if name not in features})
    record = _record(writer).model_copy(update={"others": others, "sample": list(_texts_in(others))})
    writer.rows.save(f"{folder}/{part.file(0)}", record)


def _is_empty(task: seqio.Task, work: Work, split: str) -> bool:
    first = next(iter(_examples(task, work, split, seed=VALIDATION_SEED).take(1)), None)
    seqio_counts.taken()
    return first is None


def _writer(task: seqio.Task, work: Work) -> ExampleWriter:
    lengths = {side: work.data.feature_lengths[side] for side in task.output_features}
    return ExampleWriter(ShardRows(), lengths=lengths, vocabulary=load_vocabulary(work.request.vocabulary))


def _examples(task: seqio.Task, work: Work, split: str, *, seed: int, shard: seqio.ShardInfo | None = None) -> Dataset:
    return task.get_dataset(
        sequence_length=work.data.feature_lengths,
        split=split,
        shuffle=False,
        seed=seed,
        shard_info=shard,
        num_epochs=1,
        use_cached=work.task.use_cached,
        trim_output_features=False,  # the writer trims, and counts what it trims
        try_in_mem_cache=False,
    )


def _batches(examples: Dataset, features: list[str], *, lengths: Mapping[str, int]) -> Iterator[dict[str, Ragged]]:
    """Yields the examples by the hundreds, with the texts of those that may have been trimmed."""
    with_text = [side for side in features if _is_text(examples.element_spec.get(f"{side}_pretokenized"))]

    def reduced(example: dict[str, Any]) -> dict[str, Any]:
        full = {side: tf.size(example[side]) >= lengths[side] for side in with_text}
        texts = {f"{side}_text": tf.where(full[side], example[f"{side}_pretokenized"], "") for side in with_text}
        return {side: example[side] for side in features} | texts

    for batch in examples.map(reduced, num_parallel_calls=tf.data.AUTOTUNE).ragged_batch(_BATCH):
        yield {side: _ragged(batch[side], batch.get(f"{side}_text")) for side in features}


def _ragged(tokens: Any, texts: Any) -> Ragged:
    if not isinstance(tokens, tf.RaggedTensor):  # so are features whose length the task fixes
        tokens = tf.RaggedTensor.from_tensor(tokens)  # pyright: ignore[reportAttributeAccessIssue]
    return Ragged(
        values=tokens.flat_values.numpy(),
        sizes=tokens.row_lengths().numpy(),
        texts=() if texts is None else tuple(text.decode("utf-8", "replace") for text in texts.numpy()),
    )


def _is_text(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank == 0


def _text_of(example: Mapping[str, Any], side: str) -> tuple[str, ...]:
    text = example.get(f"{side}_pretokenized")
    return (text.decode("utf-8", "replace"),) if isinstance(text, bytes) else ()


def plain_value(value: Any) -> Any:
    """Returns a value of an example as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return [plain_value(element) for element in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


def _record(writer: ExampleWriter) -> ShardRecord:
    counts = seqio_counts.taken()
    return ShardRecord(
        truncated=dict(+writer.truncated),
        dropped=dict(+(writer.dropped + Counter(counts.dropped))),
        noted=dict(counts.noted),
        unknown_tokens=writer.unknown_tokens,
    )


def _texts_in(others: list[dict[str, Any]]) -> Iterator[str]:
    for example in others:
        for name, value in example.items():
            if name.endswith("_pretokenized") and isinstance(value, str):
                yield value
