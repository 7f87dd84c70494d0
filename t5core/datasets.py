"""Datasets for `train` under T5X's names: from SeqIO, imported when it is first needed, or from the data stages.

Source: t5x/utils.py@cc342d4.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from t5core import errors
from t5core.config.presets import Family
from t5core.data import stored, vocabulary_content
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary
from t5core.dataset_config import DatasetConfig
from t5core.models.base import BaseTransformerModel
from t5core.models.decoder_only import DecoderOnlyModel


class FeatureConverterOf:
    """Stands for a model's `FEATURE_CONVERTER_CLS`, and loads it, with SeqIO, when it is called."""

    def __init__(self, model: BaseTransformerModel) -> None:
        self._model = model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns a converter."""
        return self._model.FEATURE_CONVERTER_CLS(*arguments, **named)

    @property
    def family(self) -> Family:
        """The family of the model."""
        return "decoder_only" if isinstance(self._model, DecoderOnlyModel) else "encoder_decoder"


def _family(converter_cls: Any) -> Family:
    name = getattr(converter_cls, "__name__", "")
    return getattr(converter_cls, "family", None) or ("encoder_decoder" if "EncDec" in name else "decoder_only")


def get_dataset(
    cfg: DatasetConfig,
    shard_id: int,
    num_shards: int,
    feature_converter_cls: Any,
    num_epochs: int | None = None,
    continue_from_last_checkpoint: bool = False,
) -> Any:
    """Returns the training data of `cfg`: from a stored mixture with random access, from SeqIO as a tf.data.Dataset.

    SeqIO's pipeline goes on for ever and gives the same batches whenever it is started with the same seed, so a run is
    resumed by skipping those that it has had. Skipping takes time in proportion to their number; a stored mixture takes
    none, and gives the same batches for any number of shards, which SeqIO does not: it shards before it packs.

    Args:
      cfg: with a batch size and a seed.
      shard_id: which part of each batch this process takes.
      num_shards: parts of a batch.
      feature_converter_cls: makes the converter of the model.
      num_epochs: times that SeqIO reads the data; None: for ever. A stored mixture never ends.
      continue_from_last_checkpoint: refused, as in T5X.

    Raises:
      ConfigError: a setting that cannot work.
      DataError: there is no such dataset, or less than a batch in it.
    """
    if continue_from_last_checkpoint:
        raise errors.ConfigError("continue_from_last_checkpoint=True is not supported; train goes on by itself")
    if not cfg.batch_size or cfg.batch_size % num_shards:
        raise errors.ConfigError(f"batch_size={cfg.batch_size} does not divide by {num_shards} shards; use a multiple")
    uris = stored.uris(cfg)
    if uris:
        _refuse_several(uris)
        return stored.training_reader(cfg, uris[0], _family(feature_converter_cls))
    from t5core.data import seqio_pipelines

    converter = feature_converter_cls(pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops)
    return seqio_pipelines.training_dataset(cfg, shard_id, num_shards, converter, num_epochs=num_epochs)


def _refuse_several(uris: tuple[str, ...]) -> None:
    if len(uris) > 1:
        raise errors.ConfigError(f"{len(uris)} datasets cannot be trained on at once; assemble a mixture of {uris}")


@dataclasses.dataclass(frozen=True)
class JoinedSplits:
    """Iterates over the batches of several datasets, one after the other."""

    parts: tuple[Iterable[Any], ...]

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.parts)


def get_training_eval_datasets(
    cfg: DatasetConfig, shard_id: int, num_shards: int, eval_steps: int, feature_converter_cls: Any
) -> Mapping[str, Iterable[Any]]:
    """Returns this process's batches of the split of each task of `cfg`, and of the mixture of them, by name.

    A task without the split is left out. Of each task at most `eval_steps` batches are read, every row once, and
    the last batch is filled up with rows that count nothing. The mixture's batches are those of its tasks together.
    Differences from T5X: it repeats rows until there are `eval_steps` batches, and draws the mixture's rows by rate.

    Raises:
      ConfigError: a setting that cannot work.
      DataError: none of several tasks has the split.
    """
    if not cfg.batch_size or cfg.batch_size % num_shards:
        raise errors.ConfigError(f"batch_size={cfg.batch_size} does not divide by {num_shards} shards; use a multiple")
    share = cfg.batch_size // num_shards
    rows, max_rows = slice(shard_id * share, (shard_id + 1) * share), eval_steps * cfg.batch_size
    uris = stored.uris(cfg)
    if uris:
        family = _family(feature_converter_cls)
        named = [stored.evaluation_split(cfg, uri, family, rows=rows, max_rows=max_rows) for uri in uris]
        name, is_mixture = "+".join(name for name, _ in named), len(uris) > 1
        splits = {name: split for name, split in named if split is not None}
    else:
        name = cfg.name
        is_mixture, splits = _from_seqio(cfg, feature_converter_cls, rows=rows, max_rows=max_rows)
    if not is_mixture:
        return splits
    if not splits:
        raise errors.DataError(f"no task of {name!r} has the split {cfg.split!r}; name one that they have")
    return {**splits, name: JoinedSplits(tuple(splits.values()))}


def _from_seqio(
    cfg: DatasetConfig, converter_cls: Any, *, rows: slice, max_rows: int
) -> tuple[bool, dict[str, Iterable[Any]]]:
    from t5core.data import seqio_pipelines

    def make_converter() -> Any:
        return converter_cls(pack=cfg.pack, use_custom_packing_ops=cfg.use_custom_packing_ops)

    is_mixture = isinstance(seqio_pipelines.provider(cfg), seqio_pipelines.seqio.Mixture)
    return is_mixture, seqio_pipelines.evaluation_splits(cfg, make_converter, rows=rows, max_rows=max_rows)


def verify_matching_vocabs(cfg: DatasetConfig, model: Any) -> None:
    """Returns when the dataset of `cfg` was or will be tokenised as the model expects.

    Vocabularies are compared by content: the same file at another path is the same, another file at the same path is
    not. The ids have to fit into the model's embedding as well. A model without vocabularies, or of a class of the
    user's own, is not checked. Difference from T5X: which compares paths and looks at no sizes.

    Raises:
      ConfigError: they differ.
    """
    if not isinstance(model, BaseTransformerModel) or model.output_vocabulary is None:
        return
    uris = stored.uris(cfg)
    if uris:
        _verify_stored(uris, model)
        return
    from t5core.data import seqio_pipelines

    of_dataset = seqio_pipelines.vocabularies(cfg)
    of_model = (model.input_vocabulary, model.output_vocabulary)
    contents = [tuple(_content(vocabulary) for vocabulary in pair) for pair in (of_dataset, of_model)]
    if contents[0] != contents[1]:
        raise errors.ConfigError(
            f"{cfg.name!r} has the vocabularies {_names(of_dataset)}, and the model has {_names(of_model)}; build the "
            f"model with those of the task"
        )
    _check_size(max(vocabulary.vocab_size for vocabulary in of_dataset), cfg.name, model)


def _names(pair: tuple[Any, Any]) -> str:
    return " and ".join(f"{type(v).__name__}({v.vocab_size} ids, content {_content(v)})" for v in pair)


def _content(vocabulary: Any) -> Any:
    if isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary_content.of_sentencepiece(vocabulary.model, extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, ByteVocabulary):
        return vocabulary_content.of_bytes(extra_ids=vocabulary.extra_ids)
    from t5core.data import seqio_pipelines

    return seqio_pipelines.content(vocabulary)


def _verify_stored(uris: tuple[str, ...], model: BaseTransformerModel) -> None:
    vocabulary = model.output_vocabulary
    for uri in uris:
        written_with = stored.vocabulary_fingerprint(uri)
        ours = getattr(vocabulary, "fingerprint", None)
        if written_with is not None and ours is not None and written_with != ours:
            raise errors.ConfigError(
                f"{uri} was written with the vocabulary {written_with}, and the model has {ours}; build the model with "
                f"the vocabulary of the dataset"
            )
    if isinstance(vocabulary, SentencePieceVocabulary | ByteVocabulary):
        _check_size(vocabulary.vocab_size, uris[0], model)


def _check_size(ids: int, name: str, model: BaseTransformerModel) -> None:
    rows = model.module.config.architecture.vocab_size
    if ids > rows:
        raise errors.ConfigError(
            f"the vocabulary of {name!r} has {ids} ids, and the model's embedding {rows} rows; make vocab_size {ids} "
            f"or more"
        )
