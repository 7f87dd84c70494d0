"""Documents, and which of them are held out for validation."""

from __future__ import annotations

import collections
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
      mended: whether something in it was not UTF-8 and gave way to U+FFFD.
      malformed: the reason why its row could not be read, '' when it could.
    """

    columns: Mapping[str, str]
    key: str
    place: str
    mended: bool = False
    malformed: str = ""


class Tally:
    """Counts documents by reason and remembers where the first one of each stands."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, document: Document) -> None:
        """Counts a document under `reason`."""
        self.counts[reason] += 1
        self.first.setdefault(reason, document.place)


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


class Share:
    """Finds the rule that holds out about `fraction` of the distinct documents, in one look at each.

    The rule depends on each document alone, so that sources which share documents agree on their sides. Where chance
    would hold out none, it holds out the one with the smallest hash, provided that another is left to train on; a
    fraction of 0 holds out none.
    """

    def __init__(self, fraction: float) -> None:
        self._threshold = int(fraction * _HASHES)
        self._smallest, self._largest = _HASHES, -1
        self._total = self._below = self._smallest_count = 0

    def add(self, key: str) -> None:
        """Counts a document."""
        number = key_hash(key)
        self._total += 1
        self._below += number < self._threshold
        if number < self._smallest:
            self._smallest, self._smallest_count = number, 0
        self._smallest_count += number == self._smallest
        self._largest = max(self._largest, number)

    @property
    def _none_by_chance(self) -> bool:
        return 0 < self._threshold <= self._smallest < self._largest

    @property
    def rule(self) -> HoldOut:
        """What is held out, given the documents counted so far."""
        hashes = frozenset({self._smallest}) if self._none_by_chance else frozenset[int]()
        return HoldOut(threshold=self._threshold, hashes=hashes)

    @property
    def held(self) -> int:
        """How many of the documents counted so far `rule` holds out."""
        return self._smallest_count if self._none_by_chance else self._below

    @property
    def kept(self) -> int:
        """How many of them it leaves to train on."""
        return self._total - self.held


def hold_out_all(documents: Iterable[Document]) -> HoldOut:
    """Returns a rule that holds out exactly these documents, wherever else they turn up."""
    return HoldOut(hashes=frozenset(key_hash(document.key) for document in documents))
