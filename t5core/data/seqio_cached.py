"""Tasks whose source is a cache that SeqIO wrote: its tokens are taken as they are, and no text is tokenised."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import seqio
import tensorflow as tf
from seqio.dataset_providers import _CachedDataSource

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.data import preprocessors, seqio_cache, seqio_tasks
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary

_CHECKED_EXAMPLES = 64


def task_from_cache(config: TaskConfig, *, vocabulary: seqio.Vocabulary) -> seqio.Task:
    """Returns the task whose examples are those of the cache that `config` names; it is not registered.

    A supervised task takes the cached `inputs` and `targets`, with EOS at their end if it is not there yet; any other
    objective takes the cached `targets` as its text.

    Raises:
      DataError: there is no finished cache, or it lacks a feature.
    """
    assert config.cache is not None, "the task has a cache"
    folder = config.cache.rstrip("/")
    counts = seqio_cache.splits(folder, task=config.name)
    sides = ("targets",) if config.objective == "lm" else ("inputs", "targets")
    features = {side: seqio.Feature(vocabulary, add_eos=True) for side in sides}
    return seqio.Task(
        config.name.replace("-", "_"),
        source=seqio.FunctionDataSource(
            functools.partial(_examples, folder, config), splits=list(counts), num_input_examples=counts
        ),
        output_features=features,
        preprocessors=_preprocessors(config),
    )


def check_tokens(config: TaskConfig, *, vocabulary: SentencePieceVocabulary | ByteVocabulary) -> None:
    """Checks on some examples that the texts in a cache, where it keeps them, give its tokens in this vocabulary.

    Raises:
      DataError: one does not.
    """
    assert config.cache is not None, "the task has a cache"
    folder = config.cache.rstrip("/")
    for split in seqio_cache.splits(folder, task=config.name):
        examples: Any = _examples(folder, config, split, False).as_numpy_iterator()
        for number, example in enumerate(itertools.islice(examples, _CHECKED_EXAMPLES)):
            for side in ("inputs", "targets"):
                text = example.get(f"{side}_pretokenized")
                if side in example and isinstance(text, bytes):
                    tokens = _without_eos(example[side].tolist(), vocabulary.eos_id)
                    _check_tokens(
                        tokens, text.decode("utf-8", "replace"), vocabulary, place=f"{folder} ({split} {number})"
                    )


def _check_tokens(
    tokens: list[int], text: str, vocabulary: SentencePieceVocabulary | ByteVocabulary, *, place: str
) -> None:
    expected = vocabulary.encode(text)
    if tokens != expected[: len(tokens)]:  # a cache may hold trimmed tokens
        raise errors.DataError(
            f"{place}: the text {text[:40]!r} gives the tokens {expected[:5]}... in this vocabulary, but the cache has "
            f"{tokens[:5]}...; name the vocabulary that it was written with in data.vocabulary"
        )


def _examples(
    folder: str, config: TaskConfig, split: str, shuffle_files: bool, seed: int | None = None
) -> tf.data.Dataset:
    """Returns the cached examples of a split, each with its number, in an order that nothing changes."""
    del shuffle_files, seed
    source = _CachedDataSource(cache_dir=folder, split=split)
    examples = source.get_dataset(split=split, shuffle=False)
    for side in ("inputs", "targets") if config.objective == "supervised" else ("targets",):
        if side not in examples.element_spec:
            unknown = errors.unknown_name("feature", side, examples.element_spec)
            raise errors.DataError(
                f"task {config.name!r}: the SeqIO cache {folder} does not give what objective {config.objective!r} "
                f"needs: {unknown}"
            )
    return examples.enumerate().map(lambda number, example: {**example, preprocessors.IDENTITY: number})


def _preprocessors(config: TaskConfig) -> list[seqio_tasks.Step]:
    filters = seqio_tasks.token_filters(config)
    if config.objective == "supervised":
        return [_end_anew, *filters, seqio.preprocessors.append_eos_after_trim]
    return [_targets_as_text, *filters, *seqio_tasks.unsupervised(config)]


def _end_anew(dataset: tf.data.Dataset, output_features: preprocessors.Features) -> tf.data.Dataset:
    """Returns the examples without EOS at their end, which is appended after they are trimmed."""

    def without_eos(example: preprocessors.Example) -> preprocessors.Example:
        ended = {
            side: _without_eos_tf(tf.cast(example[side], tf.int32), feature.vocabulary.eos_id)
            for side, feature in output_features.items()
        }
        others = {name: value for name, value in example.items() if name != preprocessors.IDENTITY}
        return {**others, **ended}

    return dataset.map(without_eos, num_parallel_calls=tf.data.AUTOTUNE)


def _targets_as_text(dataset: tf.data.Dataset, output_features: preprocessors.Features) -> tf.data.Dataset:
    eos_id = output_features["targets"].vocabulary.eos_id

    def only_tokens(example: preprocessors.Example) -> preprocessors.Example:
        tokens = _without_eos_tf(tf.cast(example["targets"], tf.int32), eos_id)
        return {"targets": tokens, preprocessors.IDENTITY: example[preprocessors.IDENTITY]}

    return dataset.map(only_tokens, num_parallel_calls=tf.data.AUTOTUNE)


def _without_eos_tf(tokens: preprocessors.Tensor, eos_id: int | None) -> preprocessors.Tensor:
    return tf.cond(tf.reduce_all(tokens[-1:] == eos_id), lambda: tokens[:-1], lambda: tokens)


def _without_eos(tokens: list[int], eos_id: int) -> list[int]:
    return tokens[:-1] if tokens[-1:] == [eos_id] else tokens
