"""The SeqIO tasks that a configuration describes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5core import storage
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import VocabularyRef
from t5core.data import filters, preprocessors
from t5core.data.documents import Document
from t5core.data.sources import TaskSource
from t5core.data.vocabulary import ByteVocabulary, load_vocabulary

# Documents, or characters, that cross from Python to TensorFlow at once.
_BATCH, _BATCH_CHARACTERS = 256, 4_000_000

Step = Callable[..., Any]


def vocabulary_for_seqio(reference: VocabularyRef) -> seqio.Vocabulary:
    """Returns the SeqIO vocabulary that gives the ids of `reference`.

    SeqIO wants a file that TensorFlow can read, so the model is copied to a local one, named by its content.
    """
    vocabulary = load_vocabulary(reference)
    if isinstance(vocabulary, ByteVocabulary):
        return seqio.ByteVocabulary(extra_ids=vocabulary.extra_ids)
    file = f"{_scratch_folder().name}/{vocabulary.fingerprint}.model"
    storage.write_bytes(file, vocabulary.model)
    return seqio.SentencePieceVocabulary(file, extra_ids=vocabulary.extra_ids)


@functools.cache
def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="t5core-vocabulary-")


def task_from_config(config: TaskConfig, *, source: TaskSource, vocabulary: seqio.Vocabulary) -> seqio.Task:
    """Returns the task that `config` describes, reading `source`; it is not registered.

    Its examples have `targets`, and `inputs` unless the objective is `lm`; supervised ones the raw texts as well.
    """
    sides = ("targets",) if config.objective == "lm" else ("inputs", "targets")
    scan = source.scan
    return seqio.Task(
        config.name.replace("-", "_"),  # which SeqIO does not allow in a name
        source=seqio.FunctionDataSource(
            functools.partial(_documents, source),
            splits=[split for split, count in scan.documents.items() if count],
            num_input_examples=scan.documents,
        ),
        output_features={side: seqio.Feature(vocabulary, add_eos=True) for side in sides},
        preprocessors=_preprocessors(config),
    )


def _preprocessors(config: TaskConfig) -> list[Step]:
    if config.objective == "supervised":
        return [
            functools.partial(preprocessors.supervised_template, inputs=config.inputs, targets=config.targets),
            seqio.preprocessors.tokenize,
            *token_filters(config),
            seqio.preprocessors.append_eos_after_trim,
        ]
    renamed = {"targets": config.text, preprocessors.IDENTITY: preprocessors.IDENTITY}
    return [
        functools.partial(seqio.preprocessors.rekey, key_map=renamed),
        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
        *token_filters(config),
        *unsupervised(config),
    ]


def token_filters(config: TaskConfig) -> list[Step]:
    """Returns the steps that leave out tokenised examples by their length, one for each filter and feature."""
    return [
        functools.partial(preprocessors.drop_by_length, **limit._asdict()) for limit in filters.token_limits(config)
    ]


def unsupervised(config: TaskConfig) -> list[Step]:
    """Returns the steps from texts tokenised as `targets` to examples, as the objective of the task asks."""
    if config.objective == "lm":
        return [preprocessors.full_lm]
    if config.objective == "prefix_lm":
        return [preprocessors.prefix_lm, seqio.preprocessors.append_eos]
    if config.objective == "ul2":
        denoise = functools.partial(
            preprocessors.mixture_of_denoisers, denoisers=config.ul2_denoisers, name=config.name
        )
        return [denoise, seqio.preprocessors.append_eos]
    corruption = functools.partial(
        preprocessors.span_corruption,
        noise_density=config.noise_density,
        mean_noise_span_length=config.mean_noise_span_length,
        name=config.name,
    )
    return [corruption, seqio.preprocessors.append_eos]


def _documents(source: TaskSource, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    """Returns the documents of a split, each with its number, in an order that neither shuffling nor seed changes."""
    del shuffle_files, seed
    signature = {name: tf.TensorSpec([None], tf.string) for name in source.columns}
    signature[preprocessors.IDENTITY] = tf.TensorSpec([None], tf.int64)
    batches = functools.partial(_batches, source, split)
    return tf.data.Dataset.from_generator(batches, output_signature=signature).unbatch()


def _batches(source: TaskSource, split: str) -> Iterator[dict[str, Any]]:
    """Yields documents by the hundreds, as crossing from Python to TensorFlow costs the same for one."""
    for batch in _in_batches(source.numbered(split)):
        columns = {name: [document.columns[name] for _, document in batch] for name in source.columns}
        yield {**columns, preprocessors.IDENTITY: np.array([number for number, _ in batch])}


def _in_batches(numbered: Iterable[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    batch, characters = [], 0
    for number, document in numbered:
        batch.append((number, document))
        characters += sum(map(len, document.columns.values()))
        if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
