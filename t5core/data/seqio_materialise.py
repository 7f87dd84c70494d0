"""The part of a materialisation that needs SeqIO; runs in the worker."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5core import errors, storage
from t5core.config.data_schema import DataConfig, TaskConfig
from t5core.data import manifest, seqio_cached, seqio_counts, seqio_registered, seqio_tasks, worker
from t5core.data.documents import key_hash
from t5core.data.examples import ExampleWriter, Ragged
from t5core.data.manifest import FeatureSpec, Manifest, SplitRecord, token_dtype
from t5core.data.materialise import Work, task_named
from t5core.data.sources import TRAIN, VALIDATION, TaskSource
from t5core.data.store import DatasetWriter
from t5core.data.vocabulary import load_vocabulary
from t5core.data.vocabulary_verification import COVERAGE_FILE, coverage

EXAMPLES_FILE = "validation.jsonl"
_BATCH = 512
# TensorFlow's stubs know too little of data sets whose elements are dictionaries.
Dataset = Any
_SAMPLE_CHARACTERS = 4_000_000
# Validation examples are masked alike in every run, so that runs with different seeds can be compared.
_VALIDATION_SEED = 0


def materialise(work: Work) -> Manifest:
    """Tokenises a task, commits the dataset at `work.uri`, and returns its manifest.

    Raises:
      ConfigError: the task does not fit the run: another vocabulary, or features that the run does not have.
      DataError: a split is missing, or there is nothing to train on.
    """
    data, config = work.request.run.config.data, task_named(work.request.run.config.data, work.request.task)
    source = None if work.scan is None else TaskSource(config, scan=work.scan)
    task = _task(work, config, source)
    _check(task, data, use_cached=config.use_cached)
    seqio_counts.taken()  # of a call that was broken off
    with DatasetWriter(work.uri) as dataset:
        splits = {TRAIN: _write_training(dataset, task, work)}
        raw: list[dict[str, Any]] = []
        if VALIDATION in task.splits and not (data.allow_missing_split and _is_empty(task, work, VALIDATION)):
            splits[VALIDATION], raw = _write_validation(dataset, task, work, limit=config.max_validation_examples)
            lines = (json.dumps(example, ensure_ascii=False) + "\n" for example in raw)
            storage.write_text(f"{dataset.folder}/{EXAMPLES_FILE}", "".join(lines))
        texts = _sample(source) if source is not None else _texts_in(raw)
        found = coverage(load_vocabulary(work.request.vocabulary), texts)
        storage.write_json(f"{dataset.folder}/{COVERAGE_FILE}", found.model_dump(mode="json"))
        return dataset.commit(
            Manifest(
                kind="task",
                name=config.name,
                fingerprint=manifest.fingerprint_of(work.parts),
                parts=work.parts,
                splits=splits,
            )
        )


def _task(work: Work, config: TaskConfig, source: TaskSource | None) -> seqio.Task:
    reference, data = work.request.vocabulary, work.request.run.config.data
    if source is not None:
        return seqio_tasks.task_from_config(
            config, source=source, vocabulary=seqio_tasks.vocabulary_for_seqio(reference)
        )
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


def _write_training(dataset: DatasetWriter, task: seqio.Task, work: Work) -> SplitRecord:
    """Writes all passes over the corpus, one after another, each with noise of its own."""
    writer, features = _writer(dataset, task, work, TRAIN)
    run, pass_rows = work.request.run, []
    for number in range(run.config.data.passes):
        before = writer.rows.rows
        examples = _examples(task, work, TRAIN, seed=_seed(run.seed, number))
        for batch in _batches(examples, features, lengths=run.config.data.feature_lengths):
            written = writer.append(batch)
            worker.report(len(written))
        pass_rows.append(writer.rows.rows - before)
    record = _record(writer, work, TRAIN)
    if not record.rows:
        reasons = "".join(f", {count} dropped: {reason}" for reason, count in record.dropped.items())
        source: Dataset = task.source.get_dataset(TRAIN, shuffle=False)
        read = int(source.reduce(np.int64(0), lambda count, _: count + 1))
        raise errors.DataError(
            f"task {task.name!r} gives no training examples from the {read} in its source{reasons}; "
            "look at its text and its filters"
        )
    return record.model_copy(update={"pass_rows": tuple(pass_rows) if len(pass_rows) > 1 else ()})


def _write_validation(
    dataset: DatasetWriter, task: seqio.Task, work: Work, *, limit: int | None
) -> tuple[SplitRecord, list[dict[str, Any]]]:
    """Writes up to `limit` examples and returns, row for row, what else they hold: the raw texts, above all."""
    writer, features = _writer(dataset, task, work, VALIDATION)
    raw: list[dict[str, Any]] = []
    examples = _examples(task, work, VALIDATION, seed=_VALIDATION_SEED).take(-1 if limit is None else limit)
    for example in examples.as_numpy_iterator():
        batch = {
            side: Ragged(values=example[side], sizes=np.array([len(example[side])]), texts=_text_of(example, side))
            for side in features
        }
        if writer.append(batch)[0]:
            raw.append({name: plain_value(value) for name, value in example.items() if name not in features})
    record = _record(writer, work, VALIDATION)
    if not record.rows:
        raise errors.DataError(f"task {task.name!r}: its validation split gives no examples; mend its text or filters")
    return record, raw


def _is_empty(task: seqio.Task, work: Work, split: str) -> bool:
    first = next(iter(_examples(task, work, split, seed=_VALIDATION_SEED).take(1)), None)
    seqio_counts.taken()
    return first is None


def _writer(dataset: DatasetWriter, task: seqio.Task, work: Work, split: str) -> tuple[ExampleWriter, list[str]]:
    features = list(task.output_features)
    dtype = token_dtype(work.request.vocabulary.size)
    lengths = {side: work.request.run.config.data.feature_lengths[side] for side in features}
    specs = {side: FeatureSpec(dtype=dtype, length=length) for side, length in lengths.items()}
    vocabulary = load_vocabulary(work.request.vocabulary)
    return ExampleWriter(dataset.rows(split, specs), lengths=lengths, vocabulary=vocabulary), features


def _examples(task: seqio.Task, work: Work, split: str, *, seed: int) -> Dataset:
    return task.get_dataset(
        sequence_length=work.request.run.config.data.feature_lengths,
        split=split,
        shuffle=False,
        seed=seed,
        num_epochs=1,
        use_cached=task_named(work.request.run.config.data, work.request.task).use_cached,
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


def _record(writer: ExampleWriter, work: Work, split: str) -> SplitRecord:
    scan, counts = work.scan, seqio_counts.taken()
    dropped, noted = writer.dropped + Counter(counts.dropped), Counter(counts.noted)
    if scan is not None:
        dropped, noted = dropped + Counter(scan.dropped[split]), noted + Counter(scan.noted[split])
    return writer.rows.close().model_copy(
        update={
            "truncated": dict(+writer.truncated),
            "dropped": dict(dropped),
            "noted": dict(noted),
            "first": dict(scan.first[split]) if scan is not None else {},
            "unknown_tokens": writer.unknown_tokens,
        }
    )


def _seed(run_seed: int, number: int) -> int:
    """Returns the seed of a pass; neighbouring seeds would share noise, as SeqIO counts up from the one given."""
    return int.from_bytes(hashlib.sha256(f"{run_seed} {number}".encode()).digest()[:4], "big") >> 1


def _sample(source: TaskSource) -> Iterator[str]:
    """Yields the texts of about every n-th training document where there are many."""
    stride = -(-source.scan.characters // _SAMPLE_CHARACTERS)
    for document in source.documents(TRAIN):
        if key_hash(f"coverage {document.key}") % stride == 0:
            yield from document.columns.values()


def _texts_in(raw: list[dict[str, Any]]) -> Iterator[str]:
    for example in raw:
        for name, value in example.items():
            if name.endswith("_pretokenized") and isinstance(value, str):
                yield value
