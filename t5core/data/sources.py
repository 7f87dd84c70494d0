"""The documents of a task that brings its own text, from plain files or a builtin corpus, in two splits."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping

from t5core import counting, errors, storage
from t5core.config.data_schema import DataConfig, TaskConfig
from t5core.data import corpus, files, filters, pieces, plain_rows, templates
from t5core.data.documents import Document, HoldOut, Share, Tally, hold_out_all, key_hash
from t5core.data.files import Piece

TRAIN, VALIDATION = "train", "validation"
BLANK, HELD_OUT = "blank", "also in validation_files"
INVALID, REPLACED = "invalid UTF-8", "invalid UTF-8 replaced"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """What one look at every document found.

    Attributes:
      documents: how many there are, by split.
      dropped: how many are left out, by split and reason.
      noted: what befell how many that are kept, by split and reason.
      first: where the first of those that are left out or noted stands, by split and reason.
      characters: in the documents that are not left out.
      hold_out: which documents are for validation.
    """

    documents: Mapping[str, int]
    dropped: Mapping[str, Mapping[str, int]]
    noted: Mapping[str, Mapping[str, int]]
    first: Mapping[str, Mapping[str, str]]
    characters: int
    hold_out: HoldOut


class _Look:
    """What is counted while a source is looked at, split by split."""

    def __init__(self) -> None:
        self.documents = {TRAIN: 0, VALIDATION: 0}
        self.dropped = {TRAIN: Tally(), VALIDATION: Tally()}
        self.noted = {TRAIN: Tally(), VALIDATION: Tally()}
        self.characters = 0

    def keep(self, split: str, document: Document) -> None:
        self.documents[split] += 1
        self.characters += _length(document)
        if document.mended:
            self.noted[split].add(REPLACED, document)

    def scan(self, hold_out: HoldOut, **documents: int) -> Scan:
        """Returns what was found; `documents` are counts that only the end of the look could tell."""
        return Scan(
            documents={**self.documents, **documents},
            dropped={split: dict(tally.counts) for split, tally in self.dropped.items()},
            noted={split: dict(tally.counts) for split, tally in self.noted.items()},
            first={split: {**self.noted[split].first, **self.dropped[split].first} for split in self.dropped},
            characters=self.characters,
            hold_out=hold_out,
        )


class TaskSource:
    """The documents of one task.

    Attributes:
      columns: the columns that the task reads, in the order in which it names them.

    Args:
      task: the task; it names files or a builtin corpus.
      scan: what an earlier look at the same source found; None looks when it has to.
    """

    def __init__(self, task: TaskConfig, *, scan: Scan | None = None) -> None:
        assert task.has_documents, "SeqIO tasks and caches have a source of their own"
        self._task = task
        self._scan = scan
        inputs, targets = columns_of(task)
        self.columns = tuple(dict.fromkeys((*inputs, *targets)))
        self._sides = tuple(side for side in (inputs, targets) if side)
        if not self._sides:
            raise errors.ConfigError(f"task {task.name!r}: neither inputs nor targets names a column; write {{column}}")
        self._key_columns = inputs or targets
        self._filters = filters.document_filters(task, columns=self.columns)

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

    @functools.cached_property
    def pieces(self) -> tuple[tuple[int, Piece], ...]:
        """The parts of what there is to train on, each with the number of its first row, in order."""
        if self._task.builtin:
            return ((0, Piece(self._task.builtin)),)
        found = [piece for file in self._train_files for piece in pieces.pieces(file)]
        before = itertools.accumulate((piece.lines for piece in found), initial=0)
        return tuple(zip(before, found, strict=False))

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

    def state(self) -> str:
        """Returns what differs once one of the files was written again, came or went."""
        if self._task.builtin:
            return ""
        return storage.fingerprint(
            [(file, files.state(file)) for file in (*self._train_files, *self._validation_files)]
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
        self._check_policy()
        scan = self._look_at_both_files() if self._task.validation_files else self._look_at_share()
        self._check(scan)
        return scan

    def _check_policy(self) -> None:
        if self._task.malformed_rows == "error":
            return
        named = [*self._train_files, *self._validation_files]
        if not any(map(plain_rows.may_hold_malformed, named)):
            raise errors.ConfigError(
                f"task {self._task.name!r}: malformed_rows={self._task.malformed_rows!r} has no effect on {named[0]} "
                "and the like, whose rows cannot be malformed; remove it"
            )

    def _look_at_share(self) -> Scan:
        """Counts what the hold-out rule makes of a single source."""
        share, look = Share(self._task.validation_fraction), _Look()
        for document in self._named_for(TRAIN):
            reason = self._flaw(document)
            if reason is not None:
                look.dropped[TRAIN].add(reason, document)
                continue
            share.add(document.key)
            look.keep(TRAIN, document)
        return look.scan(share.rule, **{TRAIN: share.kept, VALIDATION: share.held})

    def _look_at_both_files(self) -> Scan:
        """Counts the documents that are named for each split; what is named for both is not trained on."""
        hold_out, look = hold_out_all(self._usable(self._named_for(VALIDATION))), _Look()
        for split in (TRAIN, VALIDATION):
            for document in self._named_for(split):
                reason = self._flaw(document)
                if reason is None and split == TRAIN and hold_out.holds(document.key):
                    reason = HELD_OUT
                if reason is not None:
                    look.dropped[split].add(reason, document)
                else:
                    look.keep(split, document)
        return look.scan(hold_out)

    def _check(self, scan: Scan) -> None:
        name, where = self._task.name, ", ".join(self._task.files) or self._task.builtin
        documents = scan.documents
        if documents[TRAIN]:
            return
        dropped = ", ".join(f"{count} dropped: {reason}" for reason, count in scan.dropped[TRAIN].items())
        if not documents[VALIDATION] and set(scan.dropped[TRAIN]) <= {BLANK}:
            raise errors.DataError(f"task {name!r}: there is no text in {where}; every document is blank")
        if not documents[VALIDATION] or HELD_OUT in scan.dropped[TRAIN]:
            raise errors.DataError(
                f"task {name!r}: nothing is left to train on in {where}: {dropped}; look at its text and its filters"
            )
        raise errors.DataError(
            f"task {name!r}: nothing is left to train on in {where}, as all that it has is held out "
            f"({counting.count(documents[VALIDATION], 'document')}); add text or lower validation_fraction"
        )

    def numbered(self, split: str, *, piece: tuple[int, Piece] | None = None) -> Iterator[tuple[int, Document]]:
        """Yields the documents of a split, or those to train on that are in `piece`, each with its number.

        A document to train on is numbered by its row, so that it keeps its number whatever is left out before it, and
        wherever files are cut.
        """
        if split != TRAIN:
            yield from enumerate(self.documents(split))
            return
        hold_out = self.scan.hold_out
        for first, part in self.pieces if piece is None else (piece,):
            for number, document in enumerate(self._named_for(TRAIN, part), start=first):
                if self._flaw(document) is None and not hold_out.holds(document.key):
                    yield number, document

    def documents(self, split: str) -> Iterator[Document]:
        """Returns the documents of a split.

        Those to train on come in the order of the source. Held-out ones come in the order of their hashes, which is a
        random sample of the source however many are taken, and max_validation_examples of them at most.
        """
        if split == TRAIN:
            return (document for _, document in self.numbered(TRAIN))
        limit = self._task.max_validation_examples
        if self._task.validation_files:
            return itertools.islice(self._usable(self._named_for(VALIDATION)), limit)
        return iter(self._sample(limit))

    def _sample(self, limit: int | None) -> list[Document]:
        hold_out = self.scan.hold_out
        held = (document for document in self._usable(self._named_for(TRAIN)) if hold_out.holds(document.key))
        numbered = ((key_hash(document.key), number, document) for number, document in enumerate(held))
        chosen = sorted(numbered) if limit is None else heapq.nsmallest(limit, numbered)
        return [document for _, _, document in chosen]

    def _named_for(self, split: str, piece: Piece | None = None) -> Iterator[Document]:
        """Returns every document that the task names for `split`, before any is held out or left out."""
        if self._task.builtin:
            return iter(self._builtin()) if split == TRAIN else iter(())
        if piece is not None:
            return self._in_piece(piece)
        named = self._train_files if split == TRAIN else self._validation_files
        return itertools.chain.from_iterable(map(self._in_file, named))

    def _builtin(self) -> tuple[Document, ...]:
        assert self._task.builtin is not None
        documents = corpus.documents(self._task.builtin)
        for name in self.columns:
            if name not in documents[0].columns:
                message = errors.unknown_name("column", name, documents[0].columns)
                raise errors.DataError(f"task {self._task.name!r}: {message}")
        return documents

    def _in_file(self, file: str) -> Iterator[Document]:
        """Yields the documents of a file; one that holds nothing but malformed rows is refused all the same."""
        malformed, readable = False, False
        for document in self._in_piece(Piece(file)):
            malformed = malformed or bool(document.malformed)
            readable = readable or any(document.columns.values())
            yield document
        if malformed and not readable:
            self._refuse(file)

    def _refuse(self, file: str) -> None:
        tolerance = tolerance_of(self._task)._replace(malformed=False)
        try:
            for _ in plain_rows.read(Piece(file), columns=self.columns, tolerance=tolerance):
                pass
        except errors.DataError as error:
            raise errors.DataError(f"not one row of {file} can be read, the first: {error}") from error

    def _in_piece(self, piece: Piece) -> Iterator[Document]:
        for place, columns, mended, malformed in plain_rows.read(
            piece, columns=self.columns, tolerance=tolerance_of(self._task)
        ):
            key = "\x1f".join(columns[name] for name in self._key_columns)
            yield Document(columns=columns, key=key, place=place, mended=mended, malformed=malformed)

    def _usable(self, documents: Iterable[Document]) -> Iterator[Document]:
        return (document for document in documents if self._flaw(document) is None)

    def _flaw(self, document: Document) -> str | None:
        """Returns why a document is left out, None when it is not."""
        if document.malformed:
            return document.malformed
        if document.mended and self._task.invalid_utf8 == "drop":
            return INVALID
        if any(not any(document.columns[name].strip() for name in side) for side in self._sides):
            return BLANK  # the inputs or the targets hold no character but white space
        return next((reason for reason, keeps in self._filters if not keeps(document.columns)), None)


def scanned(task: TaskConfig, data: DataConfig) -> Scan:
    """Returns what one look at the text of a task finds.

    Raises:
      DataError: it cannot be used, or a split is missing.
    """
    scan = TaskSource(task).scan
    if not scan.documents[VALIDATION] and not data.allow_missing_split:
        if task.validation_files:
            what = f"its validation_files give no documents{_spelt(scan.dropped[VALIDATION])}; mend them"
        else:
            whole = counting.count(scan.documents[TRAIN], "document")
            what = f"none of its {whole} is held out for validation; name validation_files"
        raise errors.DataError(f"task {task.name!r}: {what}, or set data.allow_missing_split=true")
    return scan


def _spelt(dropped: Mapping[str, int]) -> str:
    return "".join(f", {count} dropped: {reason}" for reason, count in dropped.items())


def tolerance_of(task: TaskConfig) -> plain_rows.Tolerance:
    """Returns which rows of its files a task wants marked instead of refused."""
    return plain_rows.Tolerance(invalid=task.invalid_utf8 != "error", malformed=task.malformed_rows == "drop")


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
