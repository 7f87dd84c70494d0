"""What a checkpoint says about itself: where its numbers come from and the digest of each of them."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Mapping

from pydantic import Field

from t5core.config.base import StrictModel
from t5core.config.edges import ParentRef
from t5core.config.presets import Architecture
from t5core.metrics import json_numbers

FORMAT_VERSION = 1
_PACKAGES = (
    "t5flow",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "numpy",
    "orbax-checkpoint",
    "tensorstore",
    "seqio",
    "tensorflow",
    "sentencepiece",
    "flytekit",
)


class LeafRecord(StrictModel):
    """One array of the state."""

    shape: tuple[int, ...]
    dtype: str
    digest: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class SchedulePosition(StrictModel):
    """Where the run stood: a step of `total_steps`.

    The next batch starts at row `(step - data_start) * batch_size`: the step `data_start` read the first one.
    """

    total_steps: int
    batch_size: int
    data_start: int = 0


class ImportSource(StrictModel):
    """Somebody else's checkpoint that a state was read from.

    `digest` is a SHA-256 over its files, `architecture` what it was found to be.
    """

    format: str
    uri: str
    digest: str
    architecture: Architecture


class Provenance(StrictModel):
    """Everything besides the arrays that the rest of the run follows from, and what went into the run so far.

    `action_state` is what the actions between segments remember, `parent` the checkpoint of another run that this run
    was started from, `imported_from` the checkpoint of other software that this one was read from.
    """

    seed: int
    config_fingerprint: str
    dataset_fingerprint: str
    vocabulary_fingerprint: str
    schedule: SchedulePosition
    action_state: json_numbers.AnyState = {}
    parent: ParentRef | None = None
    imported_from: ImportSource | None = None


class CheckpointRecord(StrictModel):
    """The record inside a checkpoint; `digest` covers every leaf of the state, `leaves` has each by path."""

    format_version: int = FORMAT_VERSION
    step: int = Field(ge=0)
    digest: str
    leaves: dict[str, LeafRecord]
    provenance: Provenance
    versions: dict[str, str]

    def misfit(self, wanted: Mapping[str, LeafRecord], *, part: str = "") -> str | None:
        """Returns how the state, or the leaves whose paths begin with `part`, differ in shape from `wanted`.

        None: they fit. Digests play no part.
        """
        differences = []
        held = {path: leaf for path, leaf in self.leaves.items() if path.startswith(part)}
        for path in sorted(held.keys() | wanted.keys()):
            here, there = held.get(path), wanted.get(path)
            if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
                differences.append(f"{path} is {here or 'missing'} in it and {there or 'missing'} in this run")
        if not differences:
            return None
        more = f" (and {len(differences) - 1} more differ)" if len(differences) > 1 else ""
        return differences[0] + more


@functools.cache
def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that a result can depend on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # a source tree that was never installed has no version of its own
    return versions
