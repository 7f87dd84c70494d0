"""SeqIO tasks and mixtures that the user's own module registers: found, checked, told apart by data and code."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import seqio
import tensorflow as tf

from t5core import errors, fingerprints, storage
from t5core.config.edges import VocabularyRef
from t5core.data import files, seqio_cache
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary

# Their code is told by the version of the library that it belongs to.
LIBRARIES = ("seqio", "tensorflow", "numpy")


def registered_task(name: str, *, module: str, cache_dirs: Sequence[str] = ()) -> seqio.Task:
    """Returns the task called `name` after importing `module`, which registers it.

    Args:
      name: of the task.
      module: registers it.
      cache_dirs: where SeqIO looks for its cache.

    Raises:
      ConfigError: `module` cannot be imported, or there is no such task; the message names the nearest one.
    """
    _register(module, cache_dirs)
    if name in seqio.TaskRegistry.names():
        return seqio.TaskRegistry.get(name)
    if name in seqio.MixtureRegistry.names():
        parts = ", ".join(task.name for task in seqio.MixtureRegistry.get(name).tasks)
        raise errors.ConfigError(f"{name!r} is a SeqIO mixture, not a task; name one of its tasks: {parts}")
    known = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    raise errors.ConfigError(errors.unknown_name("SeqIO task or mixture", name, known))


def _register(module: str, cache_dirs: Sequence[str]) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise errors.ConfigError(
            f"data.module={module!r} cannot be imported: {error}; check its name and PYTHONPATH"
        ) from error
    seqio.add_global_cache_dirs([folder for folder in cache_dirs if folder not in seqio.get_global_cache_dirs()])


def rates_of_mixtures(names: Sequence[str], module: str, cache_dirs: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the rate of every task in each of `names` that is a mixture; those that are tasks are left out.

    Raises:
      ConfigError: a name is neither, or a rate cannot be told.
    """
    _register(module, cache_dirs)
    found = {}
    for name in names:
        if name in seqio.TaskRegistry.names() or name not in seqio.MixtureRegistry.names():
            registered_task(name, module=module)
            continue
        mixture = seqio.MixtureRegistry.get(name)
        found[name] = {task.name: _rate(mixture, task) for task in sorted(mixture.tasks, key=lambda task: task.name)}
    return found


def _rate(mixture: seqio.Mixture, task: seqio.Task) -> float:
    try:
        rate = float(mixture.get_rate(task))
    except (ValueError, TypeError, AssertionError) as error:  # of a function of the task, that asks for its cache
        reason = " ".join(str(error).split())
        raise errors.ConfigError(
            f"SeqIO mixture {mixture.name!r}: the rate of {task.name!r} cannot be told ({reason}); give it as a "
            "number, or set use_cached and data.seqio_cache_dirs"
        ) from error
    if not 0 <= rate < math.inf:
        raise errors.ConfigError(
            f"SeqIO mixture {mixture.name!r}: {task.name!r} has rate {rate}; make it a number, 0 or more"
        )
    return rate


def check_vocabulary(task: seqio.Task, reference: VocabularyRef) -> None:
    """Checks that `task` tokenises with the vocabulary of the run, by content.

    Raises:
      ConfigError: it has another one; the message says which.
    """
    expected = load_vocabulary(reference)
    for side, feature in task.output_features.items():
        found = _same_kind(feature.vocabulary, task=task.name, side=side)
        if found == expected:
            continue
        file = getattr(feature.vocabulary, "sentencepiece_model_file", None)
        remedy = f"data.vocabulary.path={file}" if file else f"data.vocabulary.kind={found.kind}"
        raise errors.ConfigError(
            f"SeqIO task {task.name!r} writes {side} with a {found.kind} vocabulary of {found.vocab_size} ids, "
            f"{found.extra_ids} of them extra ({found.fingerprint}), but the run has {expected.vocab_size} and "
            f"{expected.extra_ids} ({expected.fingerprint}); set {remedy} and "
            f"data.vocabulary.extra_ids={found.extra_ids}"
        )


def _same_kind(vocabulary: seqio.Vocabulary, *, task: str, side: str) -> SentencePieceVocabulary | ByteVocabulary:
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return ByteVocabulary(extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        file = vocabulary.sentencepiece_model_file
        with tf.io.gfile.GFile(file, "rb") as handle:
            return SentencePieceVocabulary(handle.read(), extra_ids=vocabulary.extra_ids, origin=file)
    raise errors.ConfigError(
        f"SeqIO task {task!r}: {side} has a {type(vocabulary).__name__}, which is not supported; "
        "use a SentencePieceVocabulary or a ByteVocabulary"
    )


def check_cached(task: seqio.Task) -> None:
    """Checks that `task` can be read from its cache.

    Raises:
      ConfigError: it has no place for a cache among its preprocessors.
      DataError: there is no finished cache.
    """
    if not task.supports_caching:
        raise errors.ConfigError(
            f"SeqIO task {task.name!r} has no CacheDatasetPlaceholder among its preprocessors, so use_cached has no "
            "effect; add one, or remove it"
        )
    if task.cache_dir is None:
        raise errors.DataError(
            f"SeqIO task {task.name!r} has no finished cache in {', '.join(seqio.get_global_cache_dirs())}; "
            "check data.seqio_cache_dirs"
        )


def describe_task(name: str, module: str, cache_dirs: Sequence[str] = (), use_cached: bool = False) -> dict[str, str]:
    """Returns what decides the examples of a registered task: its data and its code, as fingerprints.

    The data are the contents of the files of its source or of its cache, or what SeqIO says of a source without files.
    The code is that of `module` and of every module that a step or the source of the task comes from, libraries told by
    their versions.
    """
    task = registered_task(name, module=module, cache_dirs=cache_dirs)
    steps = [*task.preprocessors, *_functions(task.source)]
    registering = [module] if fingerprints.has_source(module) else []
    return {
        "data": storage.fingerprint(_data_of(task.source)) if not use_cached else _cached_data(task),
        "code": fingerprints.functions_fingerprint(steps, modules=registering, told=LIBRARIES),
    }


def _functions(source: seqio.DataSource) -> list[Callable[..., Any]]:
    function = getattr(source, "_dataset_fn", None)
    return [function] if function is not None else []


def _data_of(source: seqio.DataSource) -> Any:
    contents = {}
    for split in source.splits:
        try:
            shards = list(source.list_shards(split))
        except NotImplementedError:
            shards = []
        contents[split] = [_content(shard) for shard in shards]
    return [fingerprints.spelt_object(source), contents]


def _cached_data(task: seqio.Task) -> str:
    check_cached(task)
    assert task.cache_dir is not None, "that was checked"
    return seqio_cache.digest(task.cache_dir, task=task.name)


def _content(shard: str) -> str:
    """Returns the digest of a shard that is a file; other sources only name their shards."""
    return files.digest(shard) if tf.io.gfile.exists(shard) else shard
