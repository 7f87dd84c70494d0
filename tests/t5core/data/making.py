"""Small task datasets and runs, made on the spot without SeqIO."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5core import storage
from t5core.config.edges import DatasetRef, ResolvedRun, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.data import manifest, store
from t5core.data.manifest import FeatureSpec, Manifest

VOCABULARY = VocabularyRef(uri="", kind="bytes", extra_ids=0, size=2000, fingerprint="v")
Examples = Sequence[Mapping[str, Sequence[int]]]


def examples(count: int, *, first: int = 2, seed: int = 0, longest: Mapping[str, int] | None = None) -> Examples:
    """Returns examples of random lengths; the target of example i begins with token `first + i`, which names it."""
    longest = {"inputs": 12, "targets": 8} if longest is None else longest
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        example = {
            name: rng.integers(2, 1000, rng.integers(2, length + 1)).tolist() for name, length in longest.items()
        }
        example["targets"][0] = first + index
        made.append(example)
    return made


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    return np.array([[*row, *[0] * (length - len(row))] for row in rows], np.int64).reshape(len(rows), length)


def task_dataset(
    root: str,
    name: str,
    rows: Examples,
    *,
    validation: Examples = (),
    pass_rows: tuple[int, ...] = (),
    lengths: Mapping[str, int] | None = None,
    parts: Mapping[str, str] | None = None,
    texts: Sequence[Mapping[str, str]] = (),
) -> DatasetRef:
    """Writes a task's dataset the way stage one does and returns its reference; `texts` of the validation examples."""
    lengths = {"inputs": 12, "targets": 8} if lengths is None else lengths
    features = {feature: FeatureSpec(dtype="uint16", length=length) for feature, length in lengths.items()}
    parts = {"data": name} if parts is None else dict(parts)
    uri = manifest.dataset_uri(root, name, parts)
    with store.DatasetWriter(uri) as writer:
        splits = {}
        for split, content in (("train", rows), ("validation", validation)):
            written = writer.rows(split, features, rows_per_shard=32)
            written.append({f: padded([example[f] for example in content], length) for f, length in lengths.items()})
            splits[split] = written.close()
        if texts:
            storage.write_text(f"{writer.folder}/validation.jsonl", "".join(f"{json.dumps(text)}\n" for text in texts))
        splits["train"] = splits["train"].model_copy(update={"pass_rows": pass_rows})
        fingerprint = manifest.fingerprint_of(parts)
        committed = writer.commit(Manifest(kind="task", name=name, fingerprint=fingerprint, parts=parts, splits=splits))
    return manifest.reference(uri, committed, reused=False, reason="no dataset yet")


def resolved_run(
    root: str,
    rates: Mapping[str, float | None],
    *,
    batch_size: int = 4,
    family: str = "encoder_decoder",
    seed: int = 0,
    **data: Any,
) -> ResolvedRun:
    settings = {
        "run": {"root": root, "seed": seed},
        "model": {"family": family},
        "data": {
            "tasks": [{"name": name, "files": ["x.txt"], "rate": rate} for name, rate in rates.items()],
            "feature_lengths": {"inputs": 12, "targets": 8},
            **data,
        },
        "train": {"batch_size": batch_size},
    }
    return ResolvedRun(uri=f"{root}/run", config=PretrainConfig.model_validate(settings), fingerprint="r")
