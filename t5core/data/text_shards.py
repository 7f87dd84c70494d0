"""Makes shards of tasks that bring their own text, without SeqIO: documents in, shards of tokenised examples out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from t5core.data import worker
from t5core.data.documents import Document, key_hash
from t5core.data.examples import ExampleWriter
from t5core.data.objectives import NOISY, Objective, Tokenised, sides_of
from t5core.data.shards import Part, Plan, ShardRecord, ShardRows
from t5core.data.sources import TRAIN, VALIDATION, TaskSource
from t5core.data.vocabulary import load_vocabulary
from t5core.data.work import VALIDATION_SEED, Work, pass_seed

_BATCH_DOCUMENTS = 512
_BATCH_CHARACTERS = 1 << 20
_SAMPLE_CHARACTERS = 4_000_000


def plan(work: Work) -> Plan:
    """Returns the parts that the shards of a task are made of: pieces of its files, and its validation split."""
    assert work.scan is not None, "the text was looked at before"
    pieces = TaskSource(work.task, scan=work.scan).pieces
    passes = work.data.passes if work.task.objective in NOISY else 1  # without noise all passes are alike
    # Validation takes longest, as it looks at all documents.
    parts = [Part(split=VALIDATION, index=0, passes=1)] if work.scan.documents[VALIDATION] else []
    parts += [Part(split=TRAIN, index=index, passes=passes, piece=piece) for index, piece in enumerate(pieces)]
    return Plan(sides=sides_of(work.task), parts=tuple(parts), size=work.scan.characters)


def make(work: Work, part: Part, folder: str) -> None:
    """Writes the shards of a part into `folder`."""
    maker = _Maker(work)
    if part.split == VALIDATION:
        maker.validation(part, folder)
    else:
        maker.training(part, folder)


class _Maker:
    """Makes the shards of one task."""

    def __init__(self, work: Work) -> None:
        assert work.scan is not None, "the text was looked at before"
        self._work = work
        self._config = work.task
        self._run_seed = work.request.run.seed
        self._source = TaskSource(work.task, scan=work.scan)
        self._vocabulary = load_vocabulary(work.request.vocabulary)
        self._objective = Objective(work.task, vocabulary=self._vocabulary, lengths=work.data.feature_lengths)
        self._stride = -(-work.scan.characters // _SAMPLE_CHARACTERS)

    def _writer(self) -> ExampleWriter:
        lengths = {side: self._work.data.feature_lengths[side] for side in self._objective.sides}
        return ExampleWriter(ShardRows(), lengths=lengths, vocabulary=self._vocabulary)

    def training(self, part: Part, folder: str) -> None:
        """Makes every pass over a piece at once, as the tokens of all passes are the same."""
        writers, sample = [self._writer() for _ in range(part.passes)], []
        noted, first = [Counter[str]() for _ in writers], dict[str, str]()
        for numbers, documents in _batches(self._source.numbered(TRAIN, piece=part.piece)):
            tokenised = self._objective.tokenise(documents, numbers=numbers)
            first = {**tokenised.dropped.first, **first}
            for number, writer in enumerate(writers):
                examples = self._objective.examples(tokenised, seed=pass_seed(self._run_seed, number))
                noted[number].update(examples.noted)
                writer.dropped.update(tokenised.dropped.counts)
                worker.report(len(writer.append(examples.features)))
            sample += self._sampled(documents)
        for number, writer in enumerate(writers):
            record = _record(writer, noted[number], first).model_copy(update={"sample": sample if number == 0 else []})
            writer.rows.save(f"{folder}/{part.file(number)}", record)

    def _sampled(self, documents: Sequence[Document]) -> list[str]:
        """Returns the texts of about every n-th document where there are many."""
        chosen = (document for document in documents if key_hash(f"coverage {document.key}") % self._stride == 0)
        return [text for document in chosen for text in document.columns.values()]

    def validation(self, part: Part, folder: str) -> None:
        """Makes the examples to validate on, as many as the task has at most."""
        writer, others, left = self._writer(), [], self._config.max_validation_examples
        noted, first = Counter[str](), dict[str, str]()
        for numbers, documents in _batches(self._source.numbered(VALIDATION)):
            if left == 0:
                break
            tokenised = self._objective.tokenise(documents, numbers=numbers)
            examples = self._objective.examples(tokenised, seed=VALIDATION_SEED)
            features = examples.features
            if left is not None:
                features = {side: tokens.first(left) for side, tokens in features.items()}
                left -= len(features["targets"].sizes)
            noted.update(examples.noted)
            writer.dropped.update(tokenised.dropped.counts)
            first = {**tokenised.dropped.first, **first}
            kept = writer.append(features)
            others += [_texts(tokenised, number) for number in np.flatnonzero(kept).tolist()]
        record = _record(writer, noted, first).model_copy(update={"others": others})
        writer.rows.save(f"{folder}/{part.file(0)}", record)


def _texts(tokenised: Tokenised, number: int) -> dict[str, str]:
    """Returns the texts behind an example, under SeqIO's names; an example of its own text is a document."""
    return {f"{side}_pretokenized": texts[number] for side, texts in tokenised.texts.items()}


def _record(writer: ExampleWriter, noted: Counter[str], first: dict[str, str]) -> ShardRecord:
    return ShardRecord(
        truncated=dict(+writer.truncated),
        dropped=dict(+writer.dropped),
        noted=dict(noted),
        first=first,
        unknown_tokens=writer.unknown_tokens,
    )


def _batches(numbered: Iterator[tuple[int, Document]]) -> Iterator[tuple[list[int], list[Document]]]:
    """Yields documents and their numbers by the hundreds, or fewer where they are long."""
    numbers, documents, characters = [], [], 0
    for number, document in numbered:
        numbers.append(number)
        documents.append(document)
        characters += sum(map(len, document.columns.values()))
        if len(documents) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield numbers, documents
            numbers, documents, characters = [], [], 0
    if documents:
        yield numbers, documents
