"""Documents, and which of them are held out for validation."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping

_HASHES = 1 << 64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One document of a source.

    Attributes:
      columns: its texts, by the name of the column.
      key: documents with equal keys always fall on the same side of a split.
      place: where it stands, for messages: FILE:LINE.
    """

    columns: Mapping[str, str]
    key: str
    place: str


def key_hash(key: str) -> int:
    """Returns a number below 2**64 that is the same for equal keys on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Which keys are held out: those whose hash is below `threshold`, and those in `hashes`."""

    threshold: int = 0
    hashes: frozenset[int] = frozenset()

    def holds(self, key: str) -> bool:
        """Tells whether documents with this key are for validation."""
        number = key_hash(key)
        return number < self.threshold or number in self.hashes


def hold_out_share(documents: Iterable[Document], *, fraction: float) -> HoldOut:
    """Returns a rule that holds out about `fraction` of the distinct documents.

    It depends on each document alone, so that sources which share documents agree on their sides. Where chance would
    hold out none of them, the one with the smallest hash is, provided that another one is left to train on; 0 holds
    out none.
    """
    threshold = int(fraction * _HASHES)
    smallest, largest = _HASHES, -1
    for document in documents:
        number = key_hash(document.key)
        smallest, largest = min(smallest, number), max(largest, number)
    if threshold and threshold <= smallest < largest:
        return HoldOut(threshold=threshold, hashes=frozenset({smallest}))
    return HoldOut(threshold=threshold)


def hold_out_all(documents: Iterable[Document]) -> HoldOut:
    """Returns a rule that holds out exactly these documents, wherever else they turn up."""
    return HoldOut(hashes=frozenset(key_hash(document.key) for document in documents))
