"""A dataset for people: its manifest as tables, its rows as text with inputs and targets side by side."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import textwrap
from collections.abc import Iterator

from t5core import counting, errors, storage
from t5core.data import manifest, spelling, store, unpacking
from t5core.data.manifest import Manifest
from t5core.data.unpacking import StoredExample
from t5core.data.vocabulary_lookup import AnyVocabulary
from t5core.report import plain, tables
from t5core.report.tables import Table
from t5core.rundir import RunDirectory

_NARROWEST, _WIDEST = 60, 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows are shown, and whether their token ids are too."""

    split: str
    start: int
    rows: int
    with_ids: bool


def dataset_of(uri: str, *, task: str | None) -> str:
    """Returns the dataset that is meant by `uri`: itself, or what a run trains on if it is a run directory.

    Args:
      uri: of a dataset or a run directory.
      task: takes the dataset of this task of the run, and not the mixture.

    Raises:
      DataError: it is neither, or the run has no such dataset.
    """
    if manifest.load(uri) is not None:
        if task is not None:
            raise errors.DataError(
                f"task {task!r} has no effect: {uri} is a dataset; name a run directory, or leave it"
            )
        return uri.rstrip("/")
    directory = RunDirectory(uri)
    if directory.info() is None:
        there = "neither a dataset nor a run" if storage.path(uri).exists() else "nothing"
        raise errors.DataError(f"{uri} holds {there}; name a folder below datasets/, or a run directory")
    stages = directory.stages()
    if task is not None:
        made = {stage.name: stage.uri for stage in stages if stage.stage == "materialise"}
        if task not in made:
            raise errors.DataError(f"{uri}: {errors.unknown_name('task', task, made)}")
        return made[task]
    mixtures = [stage.uri for stage in stages if stage.stage == "assemble"]
    if not mixtures:
        raise errors.DataError(f"run {uri} has no mixture yet; start it, or name one of its tasks with --task")
    return mixtures[0]


def manifest_lines(uri: str) -> Iterator[str]:
    """Yields the manifest of the dataset at `uri` as tables.

    Raises:
      DataError, IntegrityError: there is no dataset, or it is damaged.
    """
    described = store.read_manifest(uri)
    yield f"{described.kind} {described.name}"
    yield f"  {uri}"
    yield f"  fingerprint {described.fingerprint}, committed {described.created}"
    sources = _sources(described)
    shown = [tables.splits_in([described], caption="Splits"), _features(described)]
    if described.tasks:
        shown += [tables.shares_of(described), tables.splits_in(sources, caption="What the tasks were made of")]
    first = _first([described, *sources])
    if first.rows:
        shown.append(first)
    for table in [*shown, _parts(described)]:
        yield ""
        yield from plain.table(table)
    if described.packing is not None:
        yield ""
        yield tables.packing_of(described)


def _features(described: Manifest) -> Table:
    rows = tuple(
        (tables.text(split), tables.text(name), tables.text(spec.dtype), tables.number(spec.length))
        for split, record in described.splits.items()
        for name, spec in record.features.items()
    )
    return Table(caption="Features", columns=("split", "feature", "dtype", "length"), rows=rows)


def _first(manifests: list[Manifest]) -> Table:
    rows = tuple(
        (tables.text(described.name), tables.text(split), tables.text(reason), tables.text(place))
        for described in manifests
        for split, record in described.splits.items()
        for reason, place in sorted(record.first.items())
    )
    return Table(
        caption="Where the first of a reason stands", columns=("dataset", "split", "reason", "place"), rows=rows
    )


def _sources(described: Manifest) -> list[Manifest]:
    """Returns what a mixture says of the datasets that it was made from, in the form of theirs."""
    return [
        Manifest(kind="task", name=name, fingerprint=share.fingerprint, parts={}, splits={"train": share.source})
        for name, share in described.tasks.items()
    ]


def _parts(described: Manifest) -> Table:
    rows = tuple((tables.text(name), tables.text(value)) for name, value in described.parts.items())
    return Table(caption="Fingerprints of what went in", columns=("part", "fingerprint"), rows=rows)


def row_lines(uri: str, selection: Selection, vocabulary: AnyVocabulary) -> Iterator[str]:
    """Yields rows as text: a head for each, and each of its examples with inputs on the left, targets on the right.

    Raises:
      DataError: the dataset lacks the split, or has no row at `selection.start`.
      IntegrityError: it is damaged.
    """
    record = store.RowReader(uri, split=selection.split).record
    if not 0 <= selection.start < max(1, record.rows):
        raise errors.DataError(
            f"--start {selection.start} is outside the {record.rows:,} rows of split {selection.split!r}; "
            f"give 0 to {max(0, record.rows - 1)}"
        )
    examples = unpacking.read_examples(
        uri, split=selection.split, start=selection.start, stop=selection.start + selection.rows
    )
    width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((120, 24)).columns))
    for row, inside in itertools.groupby(examples, key=lambda example: example.row):
        packed = list(inside)
        yield ""
        yield _head(row, packed)
        for example in packed:
            yield from _side_by_side(example, vocabulary, width=width)
            yield from _ids(example, width=width) if selection.with_ids else ()


def _head(row: int, examples: list[StoredExample]) -> str:
    inputs, targets = (sum(len(getattr(example, side)) for example in examples) for side in ("inputs", "targets"))
    count = counting.count(len(examples), "example")
    return f"row {row:,}: {count}, {counting.count(inputs, 'token')} of inputs and {targets} of targets"


def _side_by_side(example: StoredExample, vocabulary: AnyVocabulary, *, width: int) -> Iterator[str]:
    column = (width - 11) // 2
    left, right = (
        textwrap.wrap(spelling.spell(ids, vocabulary), column, break_on_hyphens=False) or [""]
        for ids in (example.inputs, example.targets)
    )
    label = f"{example.segment:>3}"
    for inputs, targets in itertools.zip_longest(left, right, fillvalue=""):
        yield f"{label} | {inputs:<{column}} | {targets}".rstrip()
        label = " " * 3


def _ids(example: StoredExample, *, width: int) -> Iterator[str]:
    for side in ("inputs", "targets"):
        text = " ".join(map(str, getattr(example, side).tolist()))
        lines = textwrap.wrap(text, width - 17) or [""]
        yield from (
            f"    {label:<12} {line}" for label, line in zip([f"{side} ids", *[""] * len(lines)], lines, strict=False)
        )
