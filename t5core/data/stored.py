"""Datasets that the data stages wrote, as a `DatasetConfig` names them: by URI or by reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5core import errors, storage
from t5core.config.edges import DatasetRef
from t5core.config.presets import Family
from t5core.data import manifest, reader
from t5core.data.converters import FeatureConverter, converter_for
from t5core.data.manifest import Manifest, SplitRecord
from t5core.data.reader import BatchReader
from t5core.dataset_config import DatasetConfig


def uris(cfg: DatasetConfig) -> tuple[str, ...]:
    """Returns where the datasets of `cfg` lie; () when it names something else."""
    given = cfg.mixture_or_task_name
    candidates = given if isinstance(given, list | tuple) else [given]
    found = [candidate.uri if isinstance(candidate, DatasetRef) else candidate for candidate in candidates]
    is_stored = all(isinstance(uri, str) and _holds_manifest(uri) for uri in found)
    return tuple(uri.rstrip("/") for uri in found) if is_stored else ()


def _holds_manifest(uri: str) -> bool:
    return "/" in uri and (storage.path(uri) / manifest.FILE_NAME).exists()


def training_reader(cfg: DatasetConfig, uri: str, family: Family) -> BatchReader:
    """Returns what reads the batches of any step of the mixture at `uri`.

    Raises:
      ConfigError: `cfg` asks for something that was decided otherwise when the dataset was written.
      DataError: the dataset lacks the split, or is smaller than a batch.
    """
    described = _loaded(uri)
    _check_decided(cfg, uri, described)
    converter = _converter(cfg, uri, family)
    _check_lengths(converter, described.splits[cfg.split], uri)
    assert cfg.batch_size, "a resolved configuration has a batch size"
    return BatchReader(uri, batch_size=cfg.batch_size, converter=converter, split=cfg.split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredSplit:
    """Iterates over this process's part of the batches of a task's split: every row once, zeros behind the last.

    Attributes:
      uri: of the dataset.
      split: of the dataset.
      batch_size: rows of a global batch.
      converter: of the model.
      rows: those of a global batch that this process feeds to its devices.
      max_rows: ends after so many; None reads all.
    """

    uri: str
    split: str
    batch_size: int
    converter: FeatureConverter
    rows: slice
    max_rows: int | None = None

    def batches(self) -> Iterator[reader.EvaluationBatch]:
        """Returns the batches whole, and which rows of the split they have."""
        return reader.evaluation_batches(
            self.uri,
            split=self.split,
            batch_size=self.batch_size,
            converter=self.converter,
            max_rows=self.max_rows,
        )

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for batch in self.batches():
            yield {name: values[self.rows] for name, values in batch.features.items()}


def evaluation_split(
    cfg: DatasetConfig, uri: str, family: Family, *, rows: slice, max_rows: int
) -> tuple[str, StoredSplit | None]:
    """Returns the name of a task's dataset and its evaluation split, None when it has no such split."""
    described = _loaded(uri)
    if described.kind != "task":
        raise errors.ConfigError(
            f"{uri} is a mixture as it is trained on, without examples to evaluate; name the datasets of its tasks"
        )
    if cfg.split not in described.splits:
        return described.name, None
    assert cfg.batch_size, "a resolved configuration has a batch size"
    converter = _converter(cfg, uri, family)
    split = StoredSplit(
        uri=uri, split=cfg.split, batch_size=cfg.batch_size, converter=converter, rows=rows, max_rows=max_rows
    )
    return described.name, split


def vocabulary_fingerprint(uri: str) -> str | None:
    """Returns the fingerprint of the vocabulary that the dataset at `uri` was tokenised with, if it is told."""
    return _loaded(uri).parts.get("vocabulary")


def fingerprint(uri: str) -> str:
    """Returns the fingerprint of the dataset at `uri`."""
    return _loaded(uri).fingerprint


def _loaded(uri: str) -> Manifest:
    found = manifest.load(uri)
    if found is None:
        raise errors.DataError(f"no dataset at {uri}: it has no {manifest.FILE_NAME}; materialise it first")
    return found


def _check_decided(cfg: DatasetConfig, uri: str, described: Manifest) -> None:
    """Refuses settings that were decided otherwise when the dataset was written."""
    if described.kind != "mixture":
        raise errors.ConfigError(f"{uri} is the dataset of one task; assemble a mixture of it to train on")
    if cfg.split not in described.splits:
        raise errors.DataError(f"{uri}: {errors.unknown_name('split', cfg.split, described.splits)}")
    packed = any(name.endswith("_segment_ids") for name in described.splits[cfg.split].features)
    decided: dict[str, tuple[Any, Any]] = {
        "pack": (cfg.pack, packed),
        "shuffle": (cfg.shuffle, described.order_seed is not None),
        "use_cached": (cfg.use_cached, False),
        "seed": (cfg.seed, described.order_seed if cfg.seed is not None else None),
    }
    for name, (asked, is_so) in decided.items():
        if asked != is_so:
            raise errors.ConfigError(
                f"train_dataset_cfg.{name}={asked} has no effect on {uri}, which was written with {name}={is_so}; "
                f"set it so, or write another dataset"
            )


def _converter(cfg: DatasetConfig, uri: str, family: Family) -> FeatureConverter:
    if cfg.task_feature_lengths is None:
        raise errors.ConfigError(f"task_feature_lengths=None, but the rows of {uri} have a length; give it, in tokens")
    return converter_for(family, cfg.task_feature_lengths)


def _check_lengths(converter: FeatureConverter, split: SplitRecord, uri: str) -> None:
    for group, (tokens, *_) in converter.members.items():
        stored = split.features.get(tokens)
        if stored is None or stored.length != converter.groups[group]:
            raise errors.ConfigError(
                f"{uri} has rows of {stored.length if stored else 0} {tokens}, and the model with task_feature_lengths "
                f"asks for {converter.groups[group]}; set them to what the dataset was written with"
            )
