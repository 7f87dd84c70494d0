"""The documents of a task that brings its own text, from plain files or a builtin corpus, in two splits."""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping

from t5core import errors, storage
from t5core.config.data_schema import TaskConfig
from t5core.data import corpus, files, templates
from t5core.data.documents import Document, HoldOut, Share, hold_out_all, key_hash

TRAIN, VALIDATION = "train", "validation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """What one look at every document found.

    Attributes:
      documents: how many there are, by split.
      dropped: how many are left out, by split and reason.
      characters: in the documents that are not left out.
      hold_out: which documents are for validation.
    """

    documents: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    characters: int
    hold_out: HoldOut


class TaskSource:
    """The documents of one task.

    Attributes:
      columns: the columns that the task reads, in the order in which it names them.

    Args:
      task: the task; it names files or a builtin corpus.
      scan: what an earlier look at the same source found; None looks when it has to.
    """

    def __init__(self, task: TaskConfig, *, scan: Scan | None = None) -> None:
        assert not task.is_seqio, "a SeqIO task has a source of its own"
        self._task = task
        self._scan = scan
        inputs, targets = columns_of(task)
        self.columns = tuple(dict.fromkeys((*inputs, *targets)))
        self._sides = tuple(side for side in (inputs, targets) if side)
        if not self._sides:
            raise errors.ConfigError(f"task {task.name!r}: neither inputs nor targets names a column; write {{column}}")
        self._key_columns = inputs or targets

    @functools.cached_property
    def _validation_files(self) -> tuple[str, ...]:
        return files.matching(self._task.validation_files, task=self._task.name)

    @functools.cached_property
    def _train_files(self) -> tuple[str, ...]:
        """Returns the files to train on: a file for validation is not one, even if a pattern matches it."""
        held = set(self._validation_files)
        kept = tuple(file for file in files.matching(self._task.files, task=self._task.name) if file not in held)
        if not kept:
            raise errors.DataError(
                f"task {self._task.name!r}: every file is one of validation_files; leave one to train on"
            )
        return kept

    def digest(self) -> str:
        """Returns the digest of everything that the documents are made from, wherever it lies."""
        if self._task.builtin:
            return corpus.digest()
        return storage.fingerprint(
            {
                TRAIN: [files.digest(file) for file in self._train_files],
                VALIDATION: [files.digest(file) for file in self._validation_files],
            }
        )

    @property
    def scan(self) -> Scan:
        """What is in the source; the first call reads all of it.

        Raises:
          DataError: there is no text at all, a row cannot be read, or nothing is left to train on.
        """
        if self._scan is None:
            self._scan = self._look()
        return self._scan

    def _look(self) -> Scan:
        scan = self._look_at_both_files() if self._task.validation_files else self._look_at_share()
        self._check(scan.documents)
        return scan

    def _look_at_share(self) -> Scan:
        """Counts what the hold-out rule makes of a single source."""
        share, characters, blank = Share(self._task.validation_fraction), 0, 0
        for document in self._named_for(TRAIN):
            if self._is_blank(document):
                blank += 1
                continue
            share.add(document.key)
            characters += _length(document)
        return Scan(
            documents={TRAIN: share.kept, VALIDATION: share.held},
            dropped={TRAIN: {"blank": blank} if blank else {}, VALIDATION: {}},
            characters=characters,
            hold_out=share.rule,
        )

    def _look_at_both_files(self) -> Scan:
        """Counts the documents that are named for each split; what is named for both is not trained on."""
        hold_out = hold_out_all(self._written(self._named_for(VALIDATION)))
        documents, characters = collections.Counter(), 0
        dropped = {TRAIN: collections.Counter(), VALIDATION: collections.Counter()}
        for split in (TRAIN, VALIDATION):
            for document in self._named_for(split):
                if self._is_blank(document):
                    dropped[split]["blank"] += 1
                elif split == TRAIN and hold_out.holds(document.key):
                    dropped[split]["also in validation_files"] += 1
                else:
                    documents[split] += 1
                    characters += _length(document)
        return Scan(
            documents={TRAIN: documents[TRAIN], VALIDATION: documents[VALIDATION]},
            dropped={split: dict(counts) for split, counts in dropped.items()},
            characters=characters,
            hold_out=hold_out,
        )

    def _check(self, documents: Mapping[str, int]) -> None:
        name, where = self._task.name, ", ".join(self._task.files) or self._task.builtin
        if not documents[TRAIN] + documents[VALIDATION]:
            raise errors.DataError(f"task {name!r}: there is no text in {where}; every document is blank")
        if not documents[TRAIN]:
            raise errors.DataError(
                f"task {name!r}: nothing is left to train on in {where}, as all {documents[VALIDATION]} documents are "
                "held out; add text or lower validation_fraction"
            )

    def documents(self, split: str) -> Iterator[Document]:
        """Returns the documents of a split.

        Those to train on come in the order of the source. Held-out ones come in the order of their hashes, which is a
        random sample of the source however many are taken, and max_validation_examples of them at most.
        """
        hold_out = self.scan.hold_out
        if split == TRAIN:
            written = self._written(self._named_for(TRAIN))
            return (document for document in written if not hold_out.holds(document.key))
        limit = self._task.max_validation_examples
        if self._task.validation_files:
            return itertools.islice(self._written(self._named_for(VALIDATION)), limit)
        return iter(self._sample(limit))

    def _sample(self, limit: int | None) -> list[Document]:
        hold_out = self.scan.hold_out
        held = (document for document in self._written(self._named_for(TRAIN)) if hold_out.holds(document.key))
        numbered = ((key_hash(document.key), number, document) for number, document in enumerate(held))
        chosen = sorted(numbered) if limit is None else heapq.nsmallest(limit, numbered)
        return [document for _, _, document in chosen]

    def _named_for(self, split: str) -> Iterator[Document]:
        """Returns every document that the task names for `split`, before any is held out or left out."""
        if self._task.builtin:
            return iter(self._builtin()) if split == TRAIN else iter(())
        return self._in_files(self._train_files if split == TRAIN else self._validation_files)

    def _builtin(self) -> tuple[Document, ...]:
        assert self._task.builtin is not None
        documents = corpus.documents(self._task.builtin)
        for name in self.columns:
            if name not in documents[0].columns:
                message = errors.unknown_name("column", name, documents[0].columns)
                raise errors.DataError(f"task {self._task.name!r}: {message}")
        return documents

    def _in_files(self, names: Iterable[str]) -> Iterator[Document]:
        for file in names:
            for place, columns in files.rows(file, columns=self.columns):
                key = "\x1f".join(columns[name] for name in self._key_columns)
                yield Document(columns=columns, key=key, place=place)

    def _written(self, documents: Iterable[Document]) -> Iterator[Document]:
        return (document for document in documents if not self._is_blank(document))

    def _is_blank(self, document: Document) -> bool:
        """Tells whether the inputs or the targets hold no character but white space."""
        return any(not any(document.columns[name].strip() for name in side) for side in self._sides)


def _length(document: Document) -> int:
    return sum(map(len, document.columns.values()))


def columns_of(task: TaskConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the columns that make the inputs and those that make the targets; text alone is a target.

    Raises:
      ConfigError: a template is malformed.
    """
    if task.objective != "supervised":
        return (), (task.text,)
    return (
        templates.columns(task.inputs, setting=f"task {task.name!r}: inputs"),
        templates.columns(task.targets, setting=f"task {task.name!r}: targets"),
    )
