"""Evaluations by content: `<root>/evaluations/<key>/` holds one of a checkpoint, for whoever asks for the same again.

The key names the checkpoint's state and all that decides its metrics. `evaluation.json` comes last; metrics and
predictions lie beside it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import pydantic

from t5core import errors, sharing, storage
from t5core.config.base import StrictModel
from t5core.config.edges import CheckpointRef, Evaluation
from t5core.metrics import json_numbers

_FILE = "evaluation.json"


class StoredEvaluation(StrictModel):
    """An evaluation as committed.

    Attributes:
      parts: fingerprints of what decided the metrics beside the checkpoint.
      evaluation: of the checkpoint.
      files: SHA-256 of each file with predictions, by its path beside this record.
      created: when it was committed, UTC, ISO 8601.
    """

    parts: dict[str, str]
    evaluation: Evaluation
    files: dict[str, str]
    created: str


def key_of(checkpoint: CheckpointRef, parts: Mapping[str, str]) -> str:
    """Returns the name of the evaluation of `checkpoint`, decided by `parts`."""
    return f"{_prefix(checkpoint)}{storage.fingerprint(dict(parts))}"


def folder(root: str, key: str) -> str:
    """Returns where the evaluation called `key` lies."""
    return f"{root.rstrip('/')}/evaluations/{key}"


def commit(root: str, key: str, *, parts: Mapping[str, str], evaluation: Evaluation) -> Evaluation:
    """Returns `evaluation` with its place, once it is written; what lies in the place counts from then on."""
    place = storage.path(folder(root, key))
    predictions = place / "predictions"
    names = sorted(entry.name for entry in predictions.iterdir()) if predictions.is_dir() else []
    placed = evaluation.model_copy(update={"uri": f"{place}/{_FILE}"})
    stored = StoredEvaluation(
        parts=dict(parts),
        evaluation=placed,
        files={f"predictions/{name}": storage.digest((predictions / name).read_bytes()) for name in names},
        created=datetime.datetime.now(datetime.UTC).isoformat(),
    )
    content = json_numbers.encode(stored.model_dump())
    storage.write_json(placed.uri, {**content, "digest": storage.fingerprint(content)})
    return placed


def find(root: str, checkpoint: CheckpointRef, parts: Mapping[str, str]) -> tuple[Evaluation | None, str]:
    """Returns the evaluation of `checkpoint` decided by these very `parts`, or None, and why it is or is not there."""
    key = key_of(checkpoint, parts)
    place = folder(root, key)
    try:
        stored = _read(place)
    except errors.IntegrityError as damage:
        return None, f"the one there is damaged: {damage}"
    if stored is not None:
        return stored.evaluation, "same checkpoint, data, settings and code"
    day = sharing.when_made(root, key)
    if day is not None:
        return None, f"made on {day}, and gone from {place}"
    return None, _what_changed(root, checkpoint, parts)


def _read(place: str) -> StoredEvaluation | None:
    """Returns what is stored in `place`, None when nothing was committed there.

    Raises:
      IntegrityError: it, or a file with predictions, is not what was written.
    """
    uri = f"{place}/{_FILE}"
    try:
        content = storage.read_json(uri)
        digest = content.pop("digest")
        stored = StoredEvaluation.model_validate(json_numbers.decode(content))
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, pydantic.ValidationError) as error:
        raise errors.IntegrityError(f"{uri} is no evaluation") from error
    if storage.fingerprint(content) != digest:
        raise errors.IntegrityError(f"{uri} has changed since it was written")
    for file, expected in stored.files.items():
        try:
            found = storage.digest(storage.path(f"{place}/{file}").read_bytes())
        except FileNotFoundError as error:
            raise errors.IntegrityError(f"{place}/{file} is missing") from error
        if found != expected:
            raise errors.IntegrityError(f"{place}/{file} has changed since it was written")
    return stored


def _what_changed(root: str, checkpoint: CheckpointRef, parts: Mapping[str, str]) -> str:
    """Compares `parts` with the newest evaluation of the same checkpoint."""
    evaluations = storage.path(f"{root.rstrip('/')}/evaluations")
    names = [entry.name for entry in evaluations.iterdir()] if evaluations.is_dir() else []
    earlier = []
    for name in names:
        if name.startswith(_prefix(checkpoint)):
            try:
                earlier.append(_read(f"{evaluations}/{name}"))
            except errors.IntegrityError:
                continue  # a damaged neighbour does not explain anything
    newest = max((stored for stored in earlier if stored), key=lambda stored: stored.created, default=None)
    if newest is None:
        return "not evaluated yet"
    keys = sorted({*parts, *newest.parts})
    changed = [key for key in keys if parts.get(key) != newest.parts.get(key)]
    return f"{' and '.join(changed)} changed since its evaluation of {newest.created[:10]}"


def _prefix(checkpoint: CheckpointRef) -> str:
    return f"{checkpoint.digest[:16]}-"
