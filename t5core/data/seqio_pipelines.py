"""SeqIO's tf.data pipelines for training and evaluation in this process; imports TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf

from t5core import counting, errors, progress
from t5core.data import vocabulary_content
from t5core.dataset_config import DatasetConfig

Provider = seqio.Task | seqio.Mixture

with contextlib.suppress(RuntimeError):  # somebody has used TensorFlow before, and decided for himself
    tf.config.set_visible_devices([], "GPU")  # it would take the memory that JAX needs


def provider(cfg: DatasetConfig) -> Provider:
    """Returns the SeqIO task or mixture of `cfg`; of a name that both have, the mixture.

    Raises:
      ConfigError: `module` cannot be imported, or there is no such name.
    """
    if cfg.module is not None:
        try:
            importlib.import_module(cfg.module)
        except ImportError as error:
            raise errors.ConfigError(
                f"module={cfg.module!r} cannot be imported: {error}; check its name and PYTHONPATH"
            ) from error
    given = cfg.mixture_or_task_name
    if not isinstance(given, str):
        return given
    for registry in (seqio.MixtureRegistry, seqio.TaskRegistry):
        if given in registry.names():
            return registry.get(given)
    known = {*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()}
    raise errors.ConfigError(
        f"{errors.unknown_name('SeqIO task or mixture', given, known)}; a dataset of another kind needs its own "
        f"get_dataset_fn and verify_matching_vocabs_fn=None"
    )


def subtasks(cfg: DatasetConfig) -> list[seqio.Task]:
    """Returns the tasks of a mixture, or the task itself."""
    return list(seqio.get_subtasks(provider(cfg)))


def training_dataset(
    cfg: DatasetConfig, shard_id: int, num_shards: int, converter: Any, *, num_epochs: int | None
) -> tf.data.Dataset:
    """Returns the batches of one shard of the data, as often as `num_epochs` says (None: for ever).

    Raises:
      DataError: preprocessing leaves less than one batch of examples, which would repeat itself or never come.
    """
    assert cfg.batch_size, "a resolved configuration has a batch size"
    rows = cfg.batch_size // num_shards
    arguments = {
        "mixture_or_task_name": provider(cfg),
        "task_feature_lengths": cfg.task_feature_lengths,
        "dataset_split": cfg.split,
        "feature_converter": converter,
        "shard_info": seqio.ShardInfo(shard_id, num_shards),
        "use_cached": cfg.use_cached,
        "seed": cfg.seed,
        "trim_output_features": cfg.trim_output_features,
        "verbose": False,
    }
    once = seqio.get_dataset(**arguments, shuffle=False, num_epochs=1)
    found = sum(1 for _ in once.take(rows))
    if found < rows:
        raise errors.DataError(
            f"split {cfg.split!r} of {cfg.name!r} gives {counting.count(found, 'row')} in all, fewer than the "
            f"{rows} of a batch; add data, filter less, or lower the batch size"
        )
    return seqio.get_dataset(**arguments, shuffle=cfg.shuffle, num_epochs=num_epochs, batch_size=rows)


@dataclasses.dataclass(frozen=True)
class PipelineSplit:
    """Iterates over this process's part of the batches of a task's split: every row once, zeros behind the last.

    Attributes:
      dataset: of converted rows, made anew for each pass.
      batch_size: rows of a global batch.
      rows: those of a global batch that this process feeds to its devices.
      max_rows: ends after so many.
    """

    dataset: tf.data.Dataset
    batch_size: int
    rows: slice
    max_rows: int

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        batches = self.dataset.take(self.max_rows).batch(self.batch_size).as_numpy_iterator()
        for batch in cast("Iterator[dict[str, np.ndarray]]", batches):
            missing = self.batch_size - len(next(iter(batch.values())))
            padded = {name: np.pad(v, ((0, missing), *[(0, 0)] * (v.ndim - 1))) for name, v in batch.items()}
            yield {name: values[self.rows] for name, values in padded.items()}


def evaluation_splits(
    cfg: DatasetConfig, make_converter: Callable[[], Any], *, rows: slice, max_rows: int
) -> dict[str, Iterable[Any]]:
    """Returns the evaluation split of each task of `cfg` that has one, by task."""
    assert cfg.batch_size, "a resolved configuration has a batch size"
    if cfg.task_feature_lengths is None:
        raise errors.ConfigError(f"task_feature_lengths=None, but batches of {cfg.name!r} need lengths; give them")
    splits: dict[str, Iterable[Any]] = {}
    for task in subtasks(cfg):
        if cfg.split not in task.splits:
            progress.say(f"  task {task.name!r} has no split {cfg.split!r} and is not evaluated")
            continue
        dataset = seqio.get_dataset(
            task,
            task_feature_lengths=cfg.task_feature_lengths,
            dataset_split=cfg.split,
            feature_converter=make_converter(),
            shuffle=cfg.shuffle,
            num_epochs=1,
            use_cached=cfg.use_cached,
            seed=cfg.seed,
            trim_output_features=cfg.trim_output_features,
            verbose=False,
        )
        splits[task.name] = PipelineSplit(dataset, cfg.batch_size, rows, max_rows)
    return splits


def vocabularies(cfg: DatasetConfig) -> tuple[seqio.Vocabulary, seqio.Vocabulary]:
    """Returns the vocabularies of the inputs and of the targets.

    Without both features the one vocabulary that all features share stands for either; those that pass ids through
    count only when there is no other.

    Raises:
      ConfigError: the features have no vocabulary, or differ in it.
    """
    features = provider(cfg).output_features
    if "inputs" in features and "targets" in features:
        return features["inputs"].vocabulary, features["targets"].vocabulary
    every = [feature.vocabulary for feature in features.values()]
    real = [vocabulary for vocabulary in every if not isinstance(vocabulary, seqio.PassThroughVocabulary)]
    candidates = real or every
    if not candidates:
        raise errors.ConfigError(f"{cfg.name!r} has no features, so no vocabulary; give it 'targets'")
    if any(content(vocabulary) != content(candidates[0]) for vocabulary in candidates):
        raise errors.ConfigError(f"the features of {cfg.name!r} have different vocabularies: {candidates}; give it one")
    return candidates[0], candidates[0]


def content(vocabulary: Any) -> Any:
    """Returns what two vocabularies of SeqIO have in common when they give the same ids."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabulary_content.of_bytes(extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        file = vocabulary.sentencepiece_model_file
        with tf.io.gfile.GFile(file, "rb") as handle:
            return vocabulary_content.of_sentencepiece(handle.read(), extra_ids=vocabulary.extra_ids, origin=file)
    return vocabulary
