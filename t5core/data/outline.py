"""What one look at a task found, and the parts that it is to be made in, stored beside its shards.

So the source is looked at once, however many processes share the work and however often they start again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import pydantic

from t5core import storage
from t5core.data.shards import Plan
from t5core.data.sources import Scan

FILE_NAME = "outline.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """What a task holds (None: only SeqIO knows), and its parts."""

    scan: Scan | None
    plan: Plan


@functools.cache
def _stored_form() -> pydantic.TypeAdapter[Outline]:
    return pydantic.TypeAdapter(Outline)


def write(folder: str, outline: Outline) -> None:
    """Writes an outline into a folder of shards, atomically and with its digest."""
    content = _stored_form().dump_json(outline)
    storage.write_bytes(f"{folder}/{FILE_NAME}", storage.digest(content).encode() + b"\n" + content)


def read(folder: str) -> Outline | None:
    """Returns the outline in a folder of shards; None when there is none, or another than was written."""
    try:
        digest, _, content = storage.path(f"{folder}/{FILE_NAME}").read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if storage.digest(content).encode() != digest:
        return None
    with contextlib.suppress(pydantic.ValidationError):  # of another version
        return _stored_form().validate_json(content)
    return None
