"""The vocabulary of a run: trained on the text of its tasks, taken from a file, or bytes; kept by content."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from t5core import errors, fingerprints, sharing, storage
from t5core.config.data_schema import TaskConfig, VocabularyConfig
from t5core.config.edges import ResolvedRun, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.data import filters, vocabulary
from t5core.data.documents import key_hash
from t5core.data.sources import TRAIN, TaskSource
from t5core.data.vocabulary_verification import check_embedding_rows

MODEL_FILE, RECORD_FILE = "sentencepiece.model", "vocabulary.json"
# Enough for any number of pieces in use, and 10 s of training.
MAX_CHARACTERS = 8_000_000
# SentencePiece leaves out longer sentences without a word; ours are cut instead.
_MAX_SENTENCE_CHARACTERS = 1000
# The result depends on the number of threads, so it is part of the recipe and not of the machine.
_THREADS = 4
# What SentencePiece says when a size does not hold the characters that it has to have.
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


class BuiltVocabulary(NamedTuple):
    """A vocabulary, whether it was there already, and why it was or was not."""

    reference: VocabularyRef
    reused: bool
    reason: str


def build_vocabulary(run: ResolvedRun) -> BuiltVocabulary:
    """Returns the vocabulary that the run's configuration describes.

    Raises:
      ConfigError: it does not fit the embedding rows of the model, or there is no text to train it on.
      DataError: the file or the text cannot be used.
    """
    config = run.config.data.vocabulary
    if config.kind == vocabulary.SentencePieceVocabulary.kind and config.path is None:
        check_embedding_rows(run.config, pieces=config.size, sentinels=config.extra_ids)
        return train_vocabulary(run.config.run.root, _own_tasks(run.config), config)
    found = find_vocabulary(run)
    return found if isinstance(found, BuiltVocabulary) else _copied(run, str(config.path))


def find_vocabulary(run: ResolvedRun) -> BuiltVocabulary | str:
    """Returns the run's vocabulary if it is there already, or why it is not; nothing is written.

    Raises:
      ConfigError: it does not fit the embedding rows of the model.
      DataError: the file or the text cannot be used.
    """
    config = run.config.data.vocabulary
    if config.kind == vocabulary.ByteVocabulary.kind:
        found = vocabulary.ByteVocabulary(extra_ids=config.extra_ids)
        check_embedding_rows(run.config, pieces=found.pieces, sentinels=found.sentinels)
        reference = VocabularyRef(
            uri="", kind=found.kind, extra_ids=found.extra_ids, size=found.vocab_size, fingerprint=found.fingerprint
        )
        return BuiltVocabulary(reference, True, "bytes need no training")
    if config.path is not None:
        folder, unchanged = _folder_of_copy(run, config.path), f"content of {config.path} unchanged"
        missing = f"will be taken from {config.path}"
    else:
        folder, parts = _folder_of_trained(run.config.run.root, _own_tasks(run.config), config)
        unchanged, missing = f"fingerprint {folder[-16:]} unchanged", _why_not(folder, parts)
    if isinstance(_look(folder), str):
        return missing
    return BuiltVocabulary(_reference(folder, config.extra_ids), True, unchanged)


def _own_tasks(config: PretrainConfig) -> Sequence[TaskConfig]:
    foreign = [task.name for task in config.data.tasks if not task.has_documents]
    if foreign:
        raise errors.ConfigError(
            f"data.vocabulary.path is missing, and the SeqIO task {foreign[0]!r} has a vocabulary of its own; "
            "set data.vocabulary.path to its .model file, or data.vocabulary.kind=bytes"
        )
    return config.data.tasks


def _copied(run: ResolvedRun, path: str) -> BuiltVocabulary:
    """Copies the model below the root, so that the run does not depend on what becomes of `path`."""
    folder, loaded = _folder_of_copy(run, path), loaded_from(run, path)
    extra_ids, parts = run.config.data.vocabulary.extra_ids, {"model": storage.digest(loaded.model)[:16]}

    def make() -> BuiltVocabulary:
        _commit(folder, loaded.model, pieces=loaded.pieces, parts=parts)
        return BuiltVocabulary(_reference(folder, extra_ids), False, f"taken from {path}")

    return _made_once(folder, extra_ids, make, unchanged=f"content of {path} unchanged")


def _folder_of_copy(run: ResolvedRun, path: str) -> str:
    name = re.sub(r"[^\w.-]", "_", os.path.basename(path).removesuffix(".model")) or "vocabulary"
    return _folder(run.config.run.root, name, storage.digest(loaded_from(run, path).model)[:16])


def loaded_from(run: ResolvedRun, path: str) -> vocabulary.SentencePieceVocabulary:
    """Returns the vocabulary in the file that the run names, once it is known to fit the model.

    Raises:
      ConfigError: it does not.
      DataError: the file cannot be used.
    """
    extra_ids = run.config.data.vocabulary.extra_ids
    loaded = vocabulary.SentencePieceVocabulary(vocabulary.read_model(path), extra_ids=extra_ids, origin=path)
    check_embedding_rows(run.config, pieces=loaded.pieces, sentinels=loaded.sentinels)
    return loaded


def train_vocabulary(root: str, tasks: Sequence[TaskConfig], config: VocabularyConfig) -> BuiltVocabulary:
    """Returns a SentencePiece model trained on what `tasks` train on, or the same one from an earlier run.

    The number of sentinels does not matter to the model, so it does not matter to its reuse.

    Raises:
      ConfigError: the text does not give as many pieces.
      DataError: a source cannot be read or holds no text.
    """
    folder, parts = _folder_of_trained(root, tasks, config)

    def make() -> BuiltVocabulary:
        reason = _why_not(folder, parts)
        model = trained_on(tasks, config)
        _commit(folder, model, pieces=config.size, parts=parts)
        return BuiltVocabulary(_reference(folder, config.extra_ids), False, reason)

    return _made_once(folder, config.extra_ids, make, unchanged=f"fingerprint {folder[-16:]} unchanged")


def _made_once(folder: str, extra_ids: int, make: Callable[[], BuiltVocabulary], *, unchanged: str) -> BuiltVocabulary:
    """Returns the vocabulary in `folder`, made unless it is there; runs that need it at once make it once."""

    def find() -> BuiltVocabulary | None:
        if isinstance(_look(folder), str):
            return None
        return BuiltVocabulary(_reference(folder, extra_ids), True, unchanged)

    return sharing.made_once(*_place(folder), find=find, make=make)


def _place(folder: str) -> tuple[str, str]:
    """Returns the root that the vocabulary in `folder` belongs to, and its name."""
    root, _, name = folder.rpartition("/vocabularies/")
    return root, name


def _folder_of_trained(root: str, tasks: Sequence[TaskConfig], config: VocabularyConfig) -> tuple[str, dict[str, str]]:
    """Returns where the vocabulary trained on `tasks` belongs, and what decides it."""
    parts = {
        "data": storage.fingerprint(sorted({_text_digest(task, TaskSource(task)) for task in tasks})),
        "settings": storage.fingerprint(config.model_dump(include={"size", "character_coverage", "byte_fallback"})),
        "code": fingerprints.code_fingerprint(
            __name__,
            "t5core.data.sources",
            "t5core.data.files",
            "t5core.data.plain_rows",
            "t5core.data.filters",
            "t5core.data.utf8",
            "t5core.data.corpus",
        ),
        "libraries": fingerprints.library_versions("sentencepiece"),
    }
    return _folder(root, f"sentencepiece-{config.size}", storage.fingerprint(parts)), parts


def _text_digest(task: TaskConfig, source: TaskSource) -> str:
    """Returns what decides the text of a task: its content, the columns read, and what is held out or left out."""
    held_out = task.validation_fraction if not task.validation_files else None
    left_out = [task.invalid_utf8, task.malformed_rows, filters.fingerprint(task, tokens=False)]
    return storage.fingerprint([source.digest(), list(source.columns), held_out, left_out])


def trained_on(tasks: Sequence[TaskConfig], config: VocabularyConfig) -> bytes:
    """Returns the SentencePiece model of what `tasks` train on; nothing is kept.

    Raises:
      ConfigError: the text does not give as many pieces.
      DataError: a source cannot be read or holds no text.
    """
    return train_model(_sentences([TaskSource(task) for task in tasks]), config)


def train_model(sentences: Iterable[str], config: VocabularyConfig) -> bytes:
    """Returns a SentencePiece model trained on `sentences`.

    Args:
      sentences: of at most _MAX_SENTENCE_CHARACTERS.
      config: its size and coverage count.

    Raises:
      ConfigError: the text does not give as many pieces.
    """
    try:
        return _trained(sentences, config, size=config.size)
    except RuntimeError as error:
        raise errors.ConfigError(_explained(str(error), config)) from error


def train_sample(sentences: Sequence[str], config: VocabularyConfig) -> bytes:
    """Returns the same of a sample of the text, with the nearest size that the sample gives.

    Raises:
      ConfigError: it gives none.
    """
    try:
        try:
            return _trained(sentences, config, size=config.size, at_most=True)
        except RuntimeError as error:
            needed = _TOO_SMALL.search(str(error))
            if not needed:
                raise
            return _trained(sentences, config, size=int(needed[1]), at_most=True)
    except RuntimeError as error:
        raise errors.ConfigError(_explained(str(error), config)) from error


def _trained(sentences: Iterable[str], config: VocabularyConfig, *, size: int, at_most: bool = False) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        character_coverage=config.character_coverage,
        byte_fallback=config.byte_fallback,
        hard_vocab_limit=not at_most,
        pad_id=vocabulary.PAD_ID,
        eos_id=vocabulary.EOS_ID,
        unk_id=vocabulary.UNK_ID,
        bos_id=-1,
        num_threads=_THREADS,
        max_sentence_length=8 * _MAX_SENTENCE_CHARACTERS,
        minloglevel=2,
    )
    return model.getvalue()


def _explained(message: str, config: VocabularyConfig) -> str:
    limit = re.search(r"(?:set it to a value <= |vocab_size\(\d+\) is too high.*?<= )(\d+)", message)
    size = f"data.vocabulary.size={config.size}"
    if limit:
        return f"{size} is more than the text gives, {limit[1]} at most; lower it, or add text"
    needed = _TOO_SMALL.search(message)
    if needed:
        return (
            f"{size} does not even hold the single characters and bytes; raise it to {needed[1]} at least, or lower "
            "data.vocabulary.character_coverage"
        )
    reason = " ".join(message.split())
    return f"SentencePiece cannot train {size} on this text ({reason}); change the size or the text"


def _sentences(sources: Sequence[TaskSource]) -> Iterator[str]:
    """Yields lines of text to train on, from about every n-th document where there is too much."""
    stride = -(-sum(source.scan.characters for source in sources) // MAX_CHARACTERS)
    for source in sources:
        for document in source.documents(TRAIN):
            if stride > 1 and key_hash(f"vocabulary {document.key}") % stride:
                continue
            for text in document.columns.values():
                yield from cut(text)


def cut(text: str) -> Iterator[str]:
    """Yields the lines of a text as sentences to train on, in pieces that SentencePiece does not leave out."""
    for line in text.split("\n"):
        stripped = line.strip()
        for begin in range(0, len(stripped), _MAX_SENTENCE_CHARACTERS):
            yield stripped[begin : begin + _MAX_SENTENCE_CHARACTERS]


def _folder(root: str, name: str, fingerprint: str) -> str:
    return f"{root.rstrip('/')}/vocabularies/{name}-{fingerprint}"


def _commit(folder: str, model: bytes, *, pieces: int, parts: dict[str, str]) -> None:
    """Writes the model, then the record, whose presence says that the model is complete."""
    storage.write_bytes(f"{folder}/{MODEL_FILE}", model)
    record = {"kind": "sentencepiece", "pieces": pieces, "sha256": hashlib.sha256(model).hexdigest(), "parts": parts}
    storage.write_json(f"{folder}/{RECORD_FILE}", record)


def _look(folder: str) -> dict[str, str] | str:
    """Returns what went into the vocabulary in `folder`, or why there is none: '' when it was never made."""
    try:
        record = storage.read_json(f"{folder}/{RECORD_FILE}")
        model = storage.path(f"{folder}/{MODEL_FILE}").read_bytes()
    except FileNotFoundError:
        day = sharing.when_made(*_place(folder))
        return "" if day is None else f"made on {day}, and gone from {folder}"
    except errors.IntegrityError as damage:
        return f"the one there is damaged: {str(damage).partition(';')[0]}"
    if storage.digest(model) != record["sha256"]:
        return f"the one there is damaged: {folder}/{MODEL_FILE} has changed since it was written"
    return record["parts"]


def _reference(folder: str, extra_ids: int) -> VocabularyRef:
    uri = f"{folder}/{MODEL_FILE}"
    loaded = vocabulary.SentencePieceVocabulary(vocabulary.read_model(uri), extra_ids=extra_ids, origin=uri)
    return VocabularyRef(
        uri=uri,
        kind=loaded.kind,
        extra_ids=extra_ids,
        size=loaded.vocab_size,
        fingerprint=loaded.fingerprint,
    )


def _why_not(folder: str, parts: dict[str, str]) -> str:
    """Says what became of it, or compares `parts` with the earlier one of this data that shares most of them."""
    if isinstance(lost := _look(folder), str) and lost:
        return lost
    parent, name = storage.path(folder).parent, os.path.basename(folder)[:-17]
    earlier = []
    if parent.exists():
        for entry in sorted(parent.iterdir(), key=str):
            if re.fullmatch(re.escape(name) + r"-[0-9a-f]{16}", entry.name):
                earlier.append((_look(os.fspath(entry)), entry.name[-16:]))
    whole = [(known, fingerprint) for known, fingerprint in earlier if isinstance(known, dict)]
    changes = [
        ([key for key in parts if parts[key] != known.get(key)], fingerprint)
        for known, fingerprint in whole
        if known.get("data") == parts["data"]
    ]
    if not changes:
        return "no vocabulary of this data yet" if whole else "no vocabulary yet"
    changed, fingerprint = min(changes, key=lambda change: len(change[0]))
    return f"{' and '.join(changed)} changed since fingerprint {fingerprint}"
