"""The record of a state: what each of its arrays is, and the digest of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t5core.checkpoints import digest
from t5core.checkpoints.record import CheckpointRecord, LeafRecord, Provenance, package_versions


def leaf_records(state: Any, digests: Mapping[str, str] | None = None) -> dict[str, LeafRecord]:
    """Returns the record of each leaf, array or shape; '' is the digest of a leaf that has none."""
    return {
        path: LeafRecord(shape=tuple(leaf.shape), dtype=np.dtype(leaf.dtype).name, digest=(digests or {}).get(path, ""))
        for path, leaf in digest.named_leaves(state).items()
    }


def record_of(step: int, state: Any, provenance: Provenance) -> CheckpointRecord:
    """Returns the record of the checkpoint of `state`; with several processes every one has to call this."""
    digests = digest.leaf_digests(state)
    return CheckpointRecord(
        step=step,
        digest=digest.state_digest(digests),
        leaves=leaf_records(state, digests),
        provenance=provenance,
        versions=package_versions(),
    )
