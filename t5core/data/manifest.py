"""The manifest of a dataset: what lies in it, where it came from, and the size and checksum of its every file."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from t5core import errors, sharing, storage
from t5core.config.base import StrictModel
from t5core.config.edges import DatasetRef

FILE_NAME = "manifest.json"


StoredDtype = Literal["uint8", "uint16", "int32"]


class FeatureSpec(StrictModel):
    """One stored feature: a [rows, length] array, padded with 0."""

    dtype: StoredDtype
    length: PositiveInt


def token_dtype(vocab_size: int) -> StoredDtype:
    """Returns the narrowest stored dtype that holds the ids below `vocab_size`."""
    return "uint16" if vocab_size <= 1 << 16 else "int32"


class FileRecord(StrictModel):
    """What a file held when the dataset was committed; `size` in bytes, `md5` in hex."""

    size: NonNegativeInt
    md5: str


class SplitRecord(StrictModel):
    """What one split holds.

    Attributes:
      tokens: entries that are not padding, by feature.
      pass_rows: rows of each pass over the corpus, in the order in which they lie; () for a single pass.
      truncated: examples that were cut to fit, by feature.
      dropped: examples that were left out, by reason.
      noted: what befell how many of those that stayed, as that bytes were replaced which are not UTF-8.
      first: where the first document of a reason in `dropped` or `noted` stands, if it has a place.
      unknown_tokens: tokens that the vocabulary could not spell.
    """

    rows: NonNegativeInt
    features: dict[str, FeatureSpec]
    tokens: dict[str, NonNegativeInt] = {}
    pass_rows: tuple[NonNegativeInt, ...] = ()
    truncated: dict[str, NonNegativeInt] = {}
    dropped: dict[str, NonNegativeInt] = {}
    noted: dict[str, NonNegativeInt] = {}
    first: dict[str, str] = {}
    unknown_tokens: NonNegativeInt = 0

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that the vocabulary could not spell."""
        return self.unknown_tokens / max(1, sum(self.tokens.values()))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader should know of the examples, a line each: how many were cut, left out or mended."""
        cut = [f"{count} of {self.rows} {side} truncated" for side, count in sorted(self.truncated.items())]
        out = [f"{count} dropped: {reason}{self._first(reason)}" for reason, count in sorted(self.dropped.items())]
        kept = [f"{count} with {reason}{self._first(reason)}" for reason, count in sorted(self.noted.items())]
        return (*cut, *out, *kept)

    def _first(self, reason: str) -> str:
        return f" (first: {self.first[reason]})" if reason in self.first else ""


class TaskShare(StrictModel):
    """What a mixture took from one task.

    Attributes:
      fingerprint: of the task's dataset.
      requested_rate: the share of examples that the configuration asks for.
      realised_rate: the share of examples that the mixture holds.
      reads: examples in the mixture, repeated ones counted each time.
      epochs: how often each row of the task's dataset was read, on average.
      tokens: in the mixture, by stored feature.
      source: the training split of the task's dataset.
    """

    fingerprint: str
    requested_rate: float
    realised_rate: float
    reads: NonNegativeInt
    epochs: float
    tokens: dict[str, NonNegativeInt]
    source: SplitRecord


class Packing(StrictModel):
    """How well examples filled their rows: `efficiency` is the share of entries that are not padding, by feature."""

    examples: NonNegativeInt
    rows: NonNegativeInt
    open_rows: PositiveInt
    efficiency: dict[str, float]


class Manifest(StrictModel):
    """A dataset as committed.

    Attributes:
      parts: fingerprints of everything that decided the bytes; `fingerprint` is theirs together.
      tasks: what each task gave to a mixture; empty for a task's own dataset.
      order_seed: seed of the order in which the rows are read again, None when it is the same each time.
      files: size and checksum of each file, by path below the dataset; filled in when it is committed.
      created: when it was committed, UTC, ISO 8601.
    """

    version: Literal[1] = 1
    kind: Literal["task", "mixture"]
    name: str
    fingerprint: str
    parts: dict[str, str]
    splits: dict[str, SplitRecord]
    tasks: dict[str, TaskShare] = {}
    packing: Packing | None = None
    order_seed: int | None = None
    files: dict[str, FileRecord] = {}
    created: str = ""


class Lookup(NamedTuple):
    """Where a dataset belongs, the dataset itself when it is there already, and why it is or is not."""

    uri: str
    found: DatasetRef | None
    reason: str


def now() -> str:
    """Returns this moment as manifests record it."""
    return datetime.datetime.now(datetime.UTC).isoformat()


def render(manifest: Manifest) -> str:
    """Returns the text of `manifest.json`, which carries a digest of all the rest."""
    content = manifest.model_dump(mode="json")
    return _as_text({**content, "digest": _digest(content)})


def parse(text: bytes, *, uri: str) -> Manifest:
    """Returns the manifest in `text`, the bytes of the file `uri`.

    Raises:
      IntegrityError: a single byte differs from what `render` gave.
    """
    content: dict[str, Any] = {}
    try:
        content = json.loads(text.decode("utf-8"))
        digest = content.pop("digest")
        intact = _digest(content) == digest and _as_text({**content, "digest": digest}).encode("utf-8") == text
    except (ValueError, AttributeError, KeyError, TypeError):
        intact = False
    if not intact:
        raise errors.IntegrityError(f"{uri} is damaged: its digest does not match; delete the dataset and run again")
    try:
        return Manifest.model_validate(content)
    except pydantic.ValidationError as error:
        raise errors.IntegrityError(f"{uri} is of another version; delete the dataset and run again") from error


def _as_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return storage.digest(_as_text(content).encode("utf-8"))


def load(uri: str) -> Manifest | None:
    """Returns the manifest of the dataset at `uri`, None when nothing was committed there.

    Only the manifest itself is checked; `store.read_manifest` checks the files as well.
    """
    file = f"{uri}/{FILE_NAME}"
    try:
        return parse(storage.path(file).read_bytes(), uri=file)
    except FileNotFoundError:
        return None


def fingerprint_of(parts: Mapping[str, str]) -> str:
    """Returns the fingerprint of a dataset made from `parts` (what went into it -> its fingerprint)."""
    return storage.fingerprint(dict(parts))


def dataset_uri(root: str, name: str, parts: Mapping[str, str]) -> str:
    """Returns where the dataset `name` made from `parts` belongs."""
    return f"{str(root).rstrip('/')}/datasets/{key_of(name, parts)}"


def reuse_or_reason(root: str, name: str, parts: Mapping[str, str]) -> Lookup:
    """Returns the committed dataset `name` made from these very `parts`, or why it has to be made.

    Args:
      root: the folder of runs; datasets lie below it.
      name: of the task or mixture.
      parts: what went into the dataset -> its fingerprint, for instance data, vocabulary, settings and code.

    A dataset of which a file is missing or has another size is made again.
    """
    from t5core.data import store

    uri = dataset_uri(root, name, parts)
    try:
        if load(uri) is None:
            return Lookup(uri, None, _why_not(root, name, parts))
        manifest = store.read_manifest(uri)
    except errors.IntegrityError as damage:
        return Lookup(uri, None, f"the one there is damaged: {str(damage).partition(';')[0]}")
    reason = f"fingerprint {fingerprint_of(parts)} unchanged"
    return Lookup(uri, reference(uri, manifest, reused=True, reason=reason), reason)


def reuse_or_make(root: str, name: str, parts: Mapping[str, str], make: Callable[[str], Manifest]) -> DatasetRef:
    """Returns the dataset `name` made from `parts`; runs that need it at once make it once.

    Args:
      root: the folder of runs; datasets lie below it.
      name: of the task or mixture.
      parts: what went into the dataset -> its fingerprint.
      make: commits the dataset at the place that it is given, and returns its manifest.
    """
    reason = ""

    def find() -> DatasetRef | None:
        nonlocal reason
        _, found, reason = reuse_or_reason(root, name, parts)
        return found

    def made() -> DatasetRef:
        uri = dataset_uri(root, name, parts)
        storage.path(f"{uri}/{FILE_NAME}").unlink(missing_ok=True)  # of a damaged one, which must not count as first
        return reference(uri, make(uri), reused=False, reason=reason)

    return sharing.made_once(root, key_of(name, parts), find=find, make=made)


def key_of(name: str, parts: Mapping[str, str]) -> str:
    """Returns what the dataset `name` made from `parts` is called."""
    return f"{name}-{fingerprint_of(parts)}"


def reference(uri: str, manifest: Manifest, *, reused: bool, reason: str) -> DatasetRef:
    """Returns what travels to the next stage for the dataset at `uri`; its rows are those of the train split."""
    train = manifest.splits.get("train")
    return DatasetRef(
        name=manifest.name,
        uri=uri,
        fingerprint=manifest.fingerprint,
        rows=train.rows if train else 0,
        reused=reused,
        reason=reason,
    )


def _why_not(root: str, name: str, parts: Mapping[str, str]) -> str:
    """Compares `parts` with the newest dataset of the same name, of the same data if there is one.

    Tasks are called by their users, and mixtures after their tasks: one of other data may be anybody's.
    """
    day = sharing.when_made(root, key_of(name, parts))
    if day is not None:
        return f"made on {day}, and gone from {dataset_uri(root, name, parts)}"
    known = _known(root, name)
    if not known:
        return "no dataset yet"
    earlier = next((made for made in known if made.parts.get("data") == parts.get("data")), known[0])
    if earlier.kind == "mixture" and earlier.parts.get("data") != parts.get("data"):
        return "no dataset of this data yet"
    keys = sorted({*parts, *earlier.parts})
    changed = [key for key in keys if parts.get(key) != earlier.parts.get(key)]
    return f"{' and '.join(changed)} changed since fingerprint {earlier.fingerprint}"


def _known(root: str, name: str) -> list[Manifest]:
    """Returns the datasets called `name`, the newest first."""
    folder = storage.path(root) / "datasets"
    if not folder.exists():
        return []
    pattern = re.compile(re.escape(name) + r"-[0-9a-f]{16}")
    known = []
    for entry in folder.iterdir():
        if pattern.fullmatch(entry.name.rstrip("/")):
            try:
                known.append(load(f"{str(root).rstrip('/')}/datasets/{entry.name.rstrip('/')}"))
            except errors.IntegrityError:
                continue  # a damaged neighbour does not explain anything
    return sorted((made for made in known if made), key=lambda made: made.created, reverse=True)
