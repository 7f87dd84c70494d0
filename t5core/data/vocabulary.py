"""Vocabularies without TensorFlow: the same ids as SeqIO's, known by content and not by path."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from t5core import counting, errors, storage
from t5core.config.edges import VocabularyRef

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
_BYTES = 256
_FIRST_BYTE_ID = 3


class Vocabulary(Protocol):
    """Text to ids and back. Ids run from 0 to `vocab_size` - 1, the `extra_ids` sentinels being the last of them.

    Two vocabularies are equal when their fingerprints are, wherever they came from.
    """

    @property
    def kind(self) -> str:
        """The value of `data.vocabulary.kind`."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, sentinels included."""
        ...

    @property
    def extra_ids(self) -> int:
        """Number of ids put behind the pieces of the model file."""
        ...

    @property
    def pad_id(self) -> int:
        """The id that fills up a row; always 0."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends a text; always 1."""
        ...

    @property
    def unk_id(self) -> int | None:
        """The id of what cannot be spelt, None when everything can."""
        ...

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name kind, content and number of sentinels."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without EOS."""
        ...

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, without EOS."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first EOS, padding left out; ids beyond the vocabulary are unknown."""
        ...

    @property
    def sentinels(self) -> int:
        """Number of sentinels: `extra_ids`, or those that the model file brings."""
        ...

    def sentinel(self, index: int) -> int:
        """Returns the id of the sentinel `index`; the first, 0, is the highest id."""
        ...


class _Identified:
    """Equality by content, and what both kinds share."""

    kind: str
    vocab_size: int
    extra_ids: int
    sentinels: int
    fingerprint: str
    pad_id = PAD_ID
    eos_id = EOS_ID

    @property
    def pieces(self) -> int:
        """Number of ids without `extra_ids`."""
        return self.vocab_size - self.extra_ids

    def sentinel(self, index: int) -> int:
        if not 0 <= index < self.sentinels:
            raise IndexError(f"sentinel {index} of {self.sentinels}")
        return self.vocab_size - 1 - index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identified) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.vocab_size}, extra_ids={self.extra_ids}, {self.fingerprint})"


class SentencePieceVocabulary(_Identified):
    """A SentencePiece model with sentinels behind its pieces.

    Some models bring their sentinels, as mT5's does; they go with `extra_ids` 0 and count as `sentinels` all the same.

    Raises:
      DataError: `model` is not one, its padding and end-of-sequence ids are not T5's, or it has sentinels already.

    Source: `seqio.SentencePieceVocabulary`, whose ids it gives. Deliberate difference: equality by content.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, *, extra_ids: int, origin: str = "the SentencePiece model") -> None:
        self.model = model
        self.extra_ids = extra_ids
        self.fingerprint = storage.fingerprint([self.kind, storage.digest(model), extra_ids])
        self._processor, self.sentinels = _processor(model, extra_ids=extra_ids, origin=origin)
        self.vocab_size = self._processor.get_piece_size()
        self.unk_id: int | None = self._processor.unk_id()

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without EOS."""
        return self._processor.encode(text)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, without EOS."""
        return self._processor.encode(texts)

    def encode_arrays(self, texts: list[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32, without EOS, on the calling thread alone."""
        return self._processor.encode(texts, return_type="numpy", num_threads=1)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids` up to the first EOS; a sentinel reads `<extra_id_0>`."""
        known = [int(i) if i < self.vocab_size else UNK_ID for i in _content(ids)]
        return self._processor.decode(known)

    def unknown_parts(self, text: str) -> list[str]:
        """Returns the parts of `text` that have no id of their own, as often as they occur."""
        pieces = self._processor.encode(text, return_type="proto").pieces
        return [piece.surface for piece in pieces if piece.id == self.unk_id]

    def normalised(self, text: str) -> str:
        """Returns `text` as it is before it is cut into pieces, which is what its ids read as."""
        return self._processor.normalize(text).replace("▁", " ")

    @property
    def stray_sentinels(self) -> list[str]:
        """The pieces that look like sentinels but are none, as they are not in T5's order at the end."""
        pieces = (self._processor.id_to_piece(number) for number in range(self.vocab_size - self.sentinels))
        return [piece for piece in pieces if re.fullmatch(r"▁?<extra_id_\d+>", piece)]

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "extra_ids": self.extra_ids}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"], extra_ids=state["extra_ids"])


class ByteVocabulary(_Identified):
    """UTF-8 bytes behind padding, EOS and UNK, then the sentinels.

    Source: `seqio.ByteVocabulary` (ByT5, arXiv:2105.13626), whose ids it gives.
    """

    kind = "bytes"
    unk_id: int | None = None

    def __init__(self, *, extra_ids: int) -> None:
        self.extra_ids = self.sentinels = extra_ids
        self.vocab_size = _FIRST_BYTE_ID + _BYTES + extra_ids
        self.fingerprint = storage.fingerprint([self.kind, extra_ids])

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of `text`, without EOS."""
        return [byte + _FIRST_BYTE_ID for byte in text.encode("utf-8")]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the bytes of each text, without EOS."""
        return [self.encode(text) for text in texts]

    def normalised(self, text: str) -> str:
        """Returns `text`, which bytes leave as it is."""
        return text

    def encode_arrays(self, texts: list[str]) -> list[np.ndarray]:
        """Returns the bytes of each text, int32, without EOS."""
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + _FIRST_BYTE_ID for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text up to the first EOS; sentinels and broken characters are left out."""
        inside = range(_FIRST_BYTE_ID, _FIRST_BYTE_ID + _BYTES)
        return bytes(int(i) - _FIRST_BYTE_ID for i in _content(ids) if i in inside).decode("utf-8", errors="ignore")


def _content(ids: Iterable[int]) -> list[int]:
    """Returns `ids` up to the first EOS; padding among them reads as nothing in both kinds."""
    return list(itertools.takewhile(lambda i: i != EOS_ID, ids))


def _processor(model: bytes, *, extra_ids: int, origin: str) -> tuple[Any, int]:
    """Returns a SentencePiece processor with sentinels behind the pieces, the first last, and how many there are."""
    import sentencepiece
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue] - made at import
    with contextlib.suppress(DecodeError):
        proto.ParseFromString(model)
    if not proto.pieces:
        raise errors.DataError(f"{origin} is not a SentencePiece model; name a .model file")
    own = own_sentinels(piece.piece for piece in reversed(proto.pieces))
    if own and extra_ids:
        raise errors.DataError(
            f"{origin} brings {counting.count(own, 'sentinel')} of its own; set data.vocabulary.extra_ids=0"
        )
    for index in reversed(range(extra_ids)):
        proto.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    found = (processor.pad_id(), processor.eos_id(), processor.unk_id())
    if found != (PAD_ID, EOS_ID, UNK_ID):
        raise errors.DataError(
            f"{origin} has the ids pad={found[0]}, eos={found[1]}, unk={found[2]} (-1: none), but T5 needs 0, 1 and 2; "
            "train it with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1"
        )
    return processor, own or extra_ids


def own_sentinels(pieces_from_the_last: Iterable[str]) -> int:
    """Returns how many pieces at the end of a model are sentinels, the first of them being the last piece."""
    count = 0
    for piece in pieces_from_the_last:
        if piece.lstrip("▁") != f"<extra_id_{count}>":
            break
        count += 1
    return count


def load_vocabulary(reference: VocabularyRef) -> SentencePieceVocabulary | ByteVocabulary:
    """Returns the vocabulary that `reference` names; the last few are kept.

    Raises:
      DataError: there is no file where it should be.
      IntegrityError: its content is no longer what it was when the reference was made.
    """
    if reference.kind == ByteVocabulary.kind:
        return ByteVocabulary(extra_ids=reference.extra_ids)
    return _load_model(reference.uri, extra_ids=reference.extra_ids, fingerprint=reference.fingerprint)


@functools.lru_cache(maxsize=4)
def _load_model(uri: str, *, extra_ids: int, fingerprint: str) -> SentencePieceVocabulary:
    vocabulary = SentencePieceVocabulary(read_model(uri), extra_ids=extra_ids, origin=uri)
    if vocabulary.fingerprint != fingerprint:
        raise errors.IntegrityError(
            f"{uri} has changed: its fingerprint is {vocabulary.fingerprint}, expected {fingerprint}; "
            "put the old file back or start a new run"
        )
    return vocabulary


def read_model(uri: str) -> bytes:
    """Returns the bytes of a SentencePiece model.

    Raises:
      DataError: it cannot be read.
    """
    try:
        return storage.path(uri).read_bytes()
    except OSError as error:
        raise errors.DataError(
            f"cannot read the vocabulary {uri}: {error.strerror or error}; set data.vocabulary.path to a .model file"
        ) from error
