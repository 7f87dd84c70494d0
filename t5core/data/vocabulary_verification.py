"""Checks that a vocabulary fits the model, the tasks and the text, before an accelerator is touched."""

from __future__ import annotations

import collections
import unicodedata
from collections.abc import Iterable, Sequence

from t5core import counting, errors, storage
from t5core.config.base import StrictModel
from t5core.config.edges import DatasetRef, ResolvedRun, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.data import manifest as manifests
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary, read_model

ROWS_MULTIPLE = 128
COVERAGE_FILE = "coverage.json"
_WORST_CHARACTERS = 5
# Texts that are encoded and decoded again, and characters of them in messages.
_READ_BACK, _EXCERPT = 1000, 60


class Coverage(StrictModel):
    """How well a vocabulary spells a sample of a task's text.

    Attributes:
      characters: counts those it cannot spell.
      read_back: texts that were encoded and decoded again.
      changed: those of them that read differently then, as the vocabulary normalises them.
      misread: some of those that do not even read as normalised, though nothing in them is unknown: text, and reading.
    """

    texts: int
    tokens: int
    unknown_tokens: int
    characters: dict[str, int]
    read_back: int = 0
    changed: int = 0
    misread: list[list[str]] = []


class VocabularyReport(StrictModel):
    """What the verification found.

    Attributes:
      unknown_rates: shares of all tokens, by task.
      changed_rates: shares of the sampled texts that read differently once encoded and decoded, by task.
    """

    pieces: int
    extra_ids: int
    sentinels: int
    rounded_size: int
    embedding_rows: int
    unknown_rates: dict[str, float]
    changed_rates: dict[str, float] = {}
    unknown_characters: dict[str, int]


def rounded_size(pieces: int, extra_ids: int) -> int:
    """Returns the embedding rows for a vocabulary: pieces and sentinels, rounded up to a multiple of 128 as in T5."""
    return -(-(pieces + extra_ids) // ROWS_MULTIPLE) * ROWS_MULTIPLE


def with_embedding_rows(config: PretrainConfig) -> PretrainConfig:
    """Returns `config` with the embedding rows in `model.vocab_size`: given, or those that the vocabulary needs.

    Raises:
      DataError: the vocabulary is in a file that cannot be used.
    """
    if config.model.vocab_size is not None:
        return config
    settings = config.data.vocabulary
    assert settings.kind != "parent", "it is settled first"
    pieces = settings.size
    if settings.kind == ByteVocabulary.kind:
        pieces = ByteVocabulary(extra_ids=settings.extra_ids).pieces
    elif settings.path is not None:
        model = read_model(settings.path)
        pieces = SentencePieceVocabulary(model, extra_ids=settings.extra_ids, origin=settings.path).pieces
    rows = rounded_size(pieces, settings.extra_ids)
    return config.model_copy(update={"model": config.model.model_copy(update={"vocab_size": rows})})


def check_embedding_rows(config: PretrainConfig, *, pieces: int, sentinels: int) -> None:
    """Checks the size of a vocabulary, before it is trained if need be.

    A model that starts from a checkpoint may have more rows than its vocabulary has use for.

    Raises:
      ConfigError: it does not fit the model's embedding rows, or a task needs sentinels and there are none.
    """
    extra_ids, rows = config.data.vocabulary.extra_ids, config.model.architecture().vocab_size
    needed = rounded_size(pieces, extra_ids)
    is_given = config.run.init_from is not None  # by a checkpoint, and those of others may have any number of rows
    if rows < (pieces + extra_ids if is_given else needed):
        raise errors.ConfigError(
            f"a vocabulary of {pieces} pieces + {extra_ids} extra ids = {pieces + extra_ids}, rounded up to {needed}, "
            f"does not fit the model's {rows} embedding rows; set model.vocab_size={needed} or change data.vocabulary"
        )
    if rows > needed and not is_given:
        raise errors.ConfigError(
            f"model.vocab_size={rows} is more than the {needed} embedding rows that a vocabulary of {pieces} pieces + "
            f"{extra_ids} extra ids has use for; leave model.vocab_size out, or change data.vocabulary"
        )
    needing = [task.name for task in config.data.tasks if task.needs_sentinels and not task.is_seqio]
    if needing and not sentinels:
        raise errors.ConfigError(
            f"task {needing[0]!r}: span corruption needs sentinels, but data.vocabulary.extra_ids=0; set it to 100"
        )


def coverage(vocabulary: SentencePieceVocabulary | ByteVocabulary, texts: Iterable[str]) -> Coverage:
    """Returns how well `vocabulary` spells `texts`."""
    sample = list(texts)
    encoded = vocabulary.encode_batch(sample)
    characters: collections.Counter[str] = collections.Counter()
    unknown = 0
    for text, ids in zip(sample, encoded, strict=True):
        if vocabulary.unk_id is not None and isinstance(vocabulary, SentencePieceVocabulary):
            count = ids.count(vocabulary.unk_id)
            unknown += count
            if count:
                characters.update("".join(vocabulary.unknown_parts(text)))
    changed, misread = _read_back(vocabulary, sample[:_READ_BACK], encoded)
    return Coverage(
        texts=len(sample),
        tokens=sum(map(len, encoded)),
        unknown_tokens=unknown,
        characters=dict(characters.most_common(100)),
        read_back=len(sample[:_READ_BACK]),
        changed=changed,
        misread=misread[:_WORST_CHARACTERS],
    )


def _read_back(
    vocabulary: SentencePieceVocabulary | ByteVocabulary, texts: Sequence[str], encoded: Sequence[list[int]]
) -> tuple[int, list[list[str]]]:
    """Returns how many texts read differently from their ids, and those that should not."""
    changed, misread = 0, []
    for text, ids in zip(texts, encoded, strict=False):
        read = vocabulary.decode(ids)
        changed += read != text
        if vocabulary.unk_id not in ids and read.strip() != vocabulary.normalised(text).strip():
            misread.append([text[:_EXCERPT], read[:_EXCERPT]])
    return changed, misread


def verify_vocabulary(run: ResolvedRun, reference: VocabularyRef, datasets: Sequence[DatasetRef]) -> VocabularyReport:
    """Returns how the vocabulary goes with model and data.

    Args:
      run: the run.
      reference: its vocabulary; what the file holds counts, not where it lies.
      datasets: the datasets of its tasks, and the mixture made from them if it is there.

    Raises:
      ConfigError: its size does not fit the embedding rows.
      DataError: a dataset was made with another vocabulary, or too much of its text is unknown.
      IntegrityError: the file has changed.
    """
    vocabulary = load_vocabulary(reference)
    check_embedding_rows(run.config, pieces=vocabulary.pieces, sentinels=vocabulary.sentinels)
    _check_sentinels(vocabulary, origin=reference.uri)
    rates, changed, characters = {}, {}, collections.Counter()
    for dataset in datasets:
        manifest = manifests.load(dataset.uri)
        if manifest is None:
            raise errors.DataError(f"no dataset at {dataset.uri}; materialise task {dataset.name!r} first")
        if manifest.kind == "mixture":
            _check_lineage(manifest, datasets)
            continue
        made_with = manifest.parts.get("vocabulary")
        if made_with != vocabulary.fingerprint:
            raise errors.DataError(
                f"dataset {dataset.uri} was made with vocabulary {made_with}, but the run has "
                f"{vocabulary.fingerprint}; materialise it again"
            )
        rates[dataset.name] = _unknown_rate(manifest)
        found = _sampled(dataset.uri)
        spelt = collections.Counter(found.characters)
        _check_rate(rates[dataset.name], spelt, task=dataset.name, limit=run.config.data.vocabulary.max_unknown_rate)
        _check_read_back(found, task=dataset.name)
        characters.update(spelt)
        changed[dataset.name] = found.changed / max(1, found.read_back)
    return VocabularyReport(
        pieces=vocabulary.pieces,
        extra_ids=vocabulary.extra_ids,
        sentinels=vocabulary.sentinels,
        rounded_size=rounded_size(vocabulary.pieces, vocabulary.extra_ids),
        embedding_rows=run.config.model.architecture().vocab_size,
        unknown_rates=rates,
        changed_rates=changed,
        unknown_characters=dict(characters.most_common(100)),
    )


def _check_lineage(mixture: manifests.Manifest, datasets: Sequence[DatasetRef]) -> None:
    """Checks that a mixture was made from these datasets, which are checked themselves."""
    known = {dataset.fingerprint for dataset in datasets}
    for name, share in mixture.tasks.items():
        if share.fingerprint not in known:
            raise errors.DataError(
                f"mixture {mixture.name!r} was made from dataset {share.fingerprint} of task {name!r}, which is not "
                "the run's; assemble it again"
            )


def _unknown_rate(manifest: manifests.Manifest) -> float:
    unknown = sum(split.unknown_tokens for split in manifest.splits.values())
    return unknown / max(1, sum(sum(split.tokens.values()) for split in manifest.splits.values()))


def _sampled(uri: str) -> Coverage:
    try:
        return Coverage.model_validate(storage.read_json(f"{uri}/{COVERAGE_FILE}"))
    except FileNotFoundError as error:
        raise errors.IntegrityError(f"{uri}/{COVERAGE_FILE} is missing; delete the dataset and run again") from error


def _check_sentinels(vocabulary: SentencePieceVocabulary | ByteVocabulary, *, origin: str) -> None:
    """Checks that every sentinel is where it should be, the first of them last, and that there are no others."""
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return
    stray = vocabulary.stray_sentinels
    if stray:
        raise errors.DataError(
            f"{origin} has {counting.count(len(stray), 'sentinel')} out of order, {stray[0]!r} before others; "
            "T5 counts them down to '<extra_id_0>' at the very end: write the model again in that order"
        )
    for index in range(vocabulary.sentinels):
        read = vocabulary.decode([vocabulary.sentinel(index)])
        if read != f"<extra_id_{index}>":
            raise errors.DataError(
                f"{origin}: the id {vocabulary.sentinel(index)} reads {read!r}, but should be sentinel {index}; "
                "take another vocabulary"
            )


def _check_read_back(found: Coverage, *, task: str) -> None:
    if found.misread:
        text, read = found.misread[0]
        raise errors.DataError(
            f"task {task!r}: the vocabulary reads {text!r} back as {read!r}, though it knows every character; "
            "take another vocabulary"
        )


def _check_rate(rate: float, characters: collections.Counter[str], *, task: str, limit: float) -> None:
    if rate <= limit:
        return
    worst = ", ".join(
        f"{character!r} ({unicodedata.name(character, f'U+{ord(character):04X}')}, {count} times)"
        for character, count in characters.most_common(_WORST_CHARACTERS)
    )
    raise errors.DataError(
        f"task {task!r}: {rate:.2%} of the tokens are unknown to the vocabulary, more than max_unknown_rate={limit:.2%}"
        f"{f'; most often {worst}' if worst else ''}; set data.vocabulary.byte_fallback, raise character_coverage, "
        "or take another vocabulary"
    )
