"""The vocabulary of a dataset, found from the fingerprint that the dataset carries."""

from __future__ import annotations

from collections.abc import Iterable

from t5core import errors, storage
from t5core.config.edges import VocabularyRef
from t5core.data import manifest, vocabulary_training
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, load_vocabulary, read_model

# A dataset says which vocabulary it was made with, not how many sentinels that has; as many are tried.
_MOST_EXTRA_IDS = 4096

AnyVocabulary = SentencePieceVocabulary | ByteVocabulary


def vocabulary_of(uri: str, *, path: str | None = None) -> AnyVocabulary:
    """Returns the vocabulary that the dataset at `uri` was tokenised with.

    Args:
      uri: of the dataset; vocabularies are looked for under the same root.
      path: of a SentencePiece model to take instead of looking; it has to be the dataset's.

    Raises:
      DataError: there is no dataset, no such vocabulary under its root, or `path` is another one.
    """
    described = manifest.load(uri)
    if described is None:
        raise errors.DataError(
            f"no dataset at {uri}: it has no {manifest.FILE_NAME}; name a dataset or a run directory"
        )
    wanted = described.parts["vocabulary"]
    models = [path] if path is not None else models_below(_vocabularies(uri))
    found = named(wanted, models)
    if found is not None:
        return load_vocabulary(found)
    looked = path or f"{_vocabularies(uri)} ({len(models)} there)"
    raise errors.DataError(
        f"{uri} was tokenised with vocabulary {wanted}, which is not {looked}; give its file with --vocabulary"
    )


def named(fingerprint: str, models: Iterable[str]) -> VocabularyRef | None:
    """Returns the vocabulary of that fingerprint: bytes or one of the SentencePiece `models`; None: there is none."""
    for extra_ids in range(_MOST_EXTRA_IDS):
        if storage.fingerprint([ByteVocabulary.kind, extra_ids]) == fingerprint:
            return _reference(ByteVocabulary(extra_ids=extra_ids), uri="")
    for model in models:
        content = read_model(model)
        extra_ids = _extra_ids(storage.digest(content), fingerprint)
        if extra_ids is not None:
            return _reference(SentencePieceVocabulary(content, extra_ids=extra_ids, origin=model), uri=model)
    return None


def _reference(found: AnyVocabulary, *, uri: str) -> VocabularyRef:
    return VocabularyRef(
        uri=uri, kind=found.kind, extra_ids=found.extra_ids, size=found.vocab_size, fingerprint=found.fingerprint
    )


def _extra_ids(digest: str, wanted: str) -> int | None:
    kind = SentencePieceVocabulary.kind
    return next((n for n in range(_MOST_EXTRA_IDS) if storage.fingerprint([kind, digest, n]) == wanted), None)


def _vocabularies(uri: str) -> str:
    """Returns the folder of vocabularies beside the folder of datasets that holds `uri`."""
    return str(storage.path(uri.rstrip("/")).parent.parent / "vocabularies")


def models_below(uri: str) -> list[str]:
    """Returns the SentencePiece models in a folder of vocabularies, sorted."""
    folder = storage.path(uri)
    entries = sorted(folder.iterdir(), key=str) if folder.is_dir() else []
    models = [entry / vocabulary_training.MODEL_FILE for entry in entries]
    return [str(model) for model in models if model.exists()]
