"""The shards of a task put together into its dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t5core import errors, storage
from t5core.data import manifest, shards
from t5core.data.manifest import FeatureSpec, Manifest, SplitRecord, token_dtype
from t5core.data.shards import Plan, Shard, ShardRecord
from t5core.data.sources import TRAIN, VALIDATION
from t5core.data.store import DatasetWriter
from t5core.data.vocabulary import load_vocabulary
from t5core.data.vocabulary_verification import COVERAGE_FILE, coverage
from t5core.data.work import Work

EXAMPLES_FILE = "validation.jsonl"


def gather(
    work: Work,
    plan: Plan,
    *,
    folder: str,
    uri: str,
    inputs: Mapping[str, str],
    examples_in_source: Callable[[], int],
) -> Manifest:
    """Returns the manifest of the dataset that the shards in `folder` make, committed at `uri`.

    Args:
      work: the task.
      plan: what the shards were made of.
      folder: where they lie; every one is there.
      uri: where the dataset belongs.
      inputs: what decides its bytes, by what it is.
      examples_in_source: counts them, for the message when none is left.

    Raises:
      DataError: the shards hold nothing to train or to validate on.
      RecoverableError: a shard is gone or damaged.
    """
    with DatasetWriter(uri) as dataset:
        gathered = _Gathered(work, plan, dataset, folder)
        splits = {TRAIN: gathered.split(TRAIN)}
        if not splits[TRAIN].rows:
            raise _nothing_to_train_on(work, splits[TRAIN], read=examples_in_source())
        if plan.has(VALIDATION):
            splits[VALIDATION] = gathered.split(VALIDATION)
            if not splits[VALIDATION].rows:
                raise errors.DataError(
                    f"task {work.task.name!r}: its validation split gives no examples; mend its text or filters"
                )
            storage.write_text(f"{dataset.folder}/{EXAMPLES_FILE}", "".join(_lines(gathered.others)))
        found = coverage(load_vocabulary(work.request.vocabulary), gathered.sample)
        storage.write_json(f"{dataset.folder}/{COVERAGE_FILE}", found.model_dump(mode="json"))
        fingerprint = manifest.fingerprint_of(inputs)
        return dataset.commit(
            Manifest(kind="task", name=work.task.name, fingerprint=fingerprint, parts=dict(inputs), splits=splits)
        )


def _nothing_to_train_on(work: Work, record: SplitRecord, *, read: int) -> errors.DataError:
    reasons = "".join(f", {count} dropped: {reason}" for reason, count in record.dropped.items())
    return errors.DataError(
        f"task {work.task.name!r} gives no training examples from the {read} in its source{reasons}; "
        "look at its text and its filters"
    )


class _Gathered:
    """Writes the rows of shards split by split, and keeps what else they hold."""

    def __init__(self, work: Work, plan: Plan, dataset: DatasetWriter, folder: str) -> None:
        self._work = work
        self._plan = plan
        self._dataset = dataset
        self._folder = folder
        self.others: list[dict[str, Any]] = []
        self.sample: list[str] = []

    def split(self, name: str) -> SplitRecord:
        """Writes one split, pass after pass, with one shard in memory at a time, and returns what it holds."""
        lengths = {side: self._work.data.feature_lengths[side] for side in self._plan.sides}
        dtype = token_dtype(self._work.request.vocabulary.size)
        writer = self._dataset.rows(name, {side: FeatureSpec(dtype=dtype, length=n) for side, n in lengths.items()})
        totals, pass_rows = _Totals(self._work, name), []
        for number in range(self._work.data.passes if name == TRAIN else 1):
            before = writer.rows
            for shard in self._shards(name, number):
                if shard.rows:
                    writer.append({side: shard.features[side].padded(length) for side, length in lengths.items()})
                totals.add(shard.record)
                self.others += shard.record.others
                self.sample += shard.record.sample if number == 0 else []
            pass_rows.append(writer.rows - before)
        record = writer.close().model_copy(update=totals.as_update())
        return record.model_copy(update={"pass_rows": tuple(pass_rows) if len(pass_rows) > 1 else ()})

    def _shards(self, name: str, number: int) -> Iterator[Shard]:
        for part in self._plan.parts:
            if part.split == name:
                yield shards.load(f"{self._folder}/{part.file(min(number, part.passes - 1))}")


class _Totals:
    """Adds up what became of the examples of a split, beside what a look at its source counted."""

    def __init__(self, work: Work, split: str) -> None:
        scan = work.scan
        self._dropped = Counter(scan.dropped[split] if scan is not None else {})
        self._noted = Counter(scan.noted[split] if scan is not None else {})
        self._first = dict(scan.first[split]) if scan is not None else {}
        self._truncated: Counter[str] = Counter()
        self._unknown_tokens = 0

    def add(self, record: ShardRecord) -> None:
        self._dropped.update(record.dropped)
        self._noted.update(record.noted)
        self._first = {**record.first, **self._first}
        self._truncated.update(record.truncated)
        self._unknown_tokens += record.unknown_tokens

    def as_update(self) -> dict[str, Any]:
        """Returns the fields of a SplitRecord."""
        return {
            "truncated": dict(self._truncated),
            "dropped": dict(self._dropped),
            "noted": dict(self._noted),
            "first": self._first,
            "unknown_tokens": self._unknown_tokens,
        }


def _lines(others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (json.dumps(example, ensure_ascii=False) + "\n" for example in others)
