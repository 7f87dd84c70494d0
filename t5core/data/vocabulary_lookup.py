"""The vocabulary of a dataset, found from the fingerprint that the dataset carries."""

from __future__ import annotations

from collections.abc import Iterator

from t5core import errors, storage
from t5core.data import manifest, vocabulary_training
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, read_model

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
    for extra_ids in range(_MOST_EXTRA_IDS):
        if storage.fingerprint([ByteVocabulary.kind, extra_ids]) == wanted:
            return ByteVocabulary(extra_ids=extra_ids)
    models = [path] if path is not None else list(_models_near(uri))
    for model in models:
        content = read_model(model)
        extra_ids = _extra_ids(storage.digest(content), wanted)
        if extra_ids is not None:
            return SentencePieceVocabulary(content, extra_ids=extra_ids, origin=model)
    looked = path or f"{_vocabularies(uri)} ({len(models)} there)"
    raise errors.DataError(
        f"{uri} was tokenised with vocabulary {wanted}, which is not {looked}; give its file with --vocabulary"
    )


def _extra_ids(digest: str, wanted: str) -> int | None:
    kind = SentencePieceVocabulary.kind
    return next((n for n in range(_MOST_EXTRA_IDS) if storage.fingerprint([kind, digest, n]) == wanted), None)


def _vocabularies(uri: str) -> str:
    """Returns the folder of vocabularies beside the folder of datasets that holds `uri`."""
    return str(storage.path(uri.rstrip("/")).parent.parent / "vocabularies")


def _models_near(uri: str) -> Iterator[str]:
    folder = storage.path(_vocabularies(uri))
    for entry in sorted(folder.iterdir(), key=str) if folder.is_dir() else ():
        if (entry / vocabulary_training.MODEL_FILE).exists():
            yield str(entry / vocabulary_training.MODEL_FILE)
