"""What a vocabulary is by content: which text becomes which ids, and not where its file lies or how it was made."""

from __future__ import annotations

from t5core import errors, storage
from t5core.data.vocabulary import own_sentinels


def of_sentencepiece(model: bytes, *, extra_ids: int, origin: str = "the SentencePiece model") -> str:
    """Returns a fingerprint of the pieces with their scores, the normalisation, and the number of sentinels.

    A model that brings its sentinels and one that gets as many as `extra_ids` are the same vocabulary. Difference from
    T5X, which compares the path of the file and the arguments.

    Raises:
      DataError: `model` is not one.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] - made at import
    try:
        proto.ParseFromString(model)
    except DecodeError as error:
        raise errors.DataError(f"{origin} is not a SentencePiece model; name a .model file") from error
    own = own_sentinels(piece.piece for piece in reversed(proto.pieces))
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces[: len(proto.pieces) - own]]
    normalizer = storage.digest(proto.normalizer_spec.SerializeToString(deterministic=True))
    kind = [proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback, proto.trainer_spec.unk_id]
    return storage.fingerprint(["sentencepiece", pieces, normalizer, kind, own + extra_ids])


def of_bytes(*, extra_ids: int) -> str:
    """Returns a fingerprint of the vocabulary of bytes."""
    return storage.fingerprint(["bytes", extra_ids])
