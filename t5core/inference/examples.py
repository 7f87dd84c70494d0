"""What is predicted or scored: a row with its number, its fields and its tokens, or the reason why it cannot be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from t5core import errors
from t5core.config.infer_edges import TrainedModel
from t5core.config.infer_schema import InferSourceConfig
from t5core.data import plain_rows, templates
from t5core.data.vocabulary import Vocabulary, load_vocabulary

# What the results say of a row beside its own fields, which may not have these names.
RESULT_FIELDS = (
    "row",
    "place",
    "error",
    "prediction",
    "predictions",
    "score",
    "reached_eos",
    "inputs_truncated",
    "target_tokens",
)
_BATCH = 256


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One row.

    Attributes:
      number: counts the rows of the job from 0.
      place: where it stands, FILE:LINE.
      fields: what the source has of it.
      tokens: by feature, EOS at the end; {} when there is a `flaw`.
      inputs_cut: whether the inputs were longer than the model reads.
      flaw: why it cannot be used, in one line; '' when it can.
    """

    number: int
    place: str
    fields: Mapping[str, Any]
    tokens: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    inputs_cut: bool = False
    flaw: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextRow:
    """A row before its texts are made and tokenised."""

    number: int
    place: str
    fields: Mapping[str, Any]
    flaw: str = ""


class Tokeniser:
    """Makes examples of rows by the templates of a source, as training does: cut to the length, with EOS."""

    def __init__(self, source: InferSourceConfig, trained: TrainedModel) -> None:
        self._vocabulary: Vocabulary = load_vocabulary(trained.vocabulary)
        self._lengths = trained.feature_lengths
        self._templates = parsed_templates(source)

    def examples(self, rows: Iterable[TextRow]) -> Iterator[Example]:
        """Yields an example for each row, in order."""
        iterator = iter(rows)
        while chunk := list(itertools.islice(iterator, _BATCH)):
            texts = [self._texts(row) for row in chunk]
            tokens = {
                side: iter(self._vocabulary.encode_batch([t[side] for t in texts if not isinstance(t, str)]))
                for side in self._templates
            }
            for row, made in zip(chunk, texts, strict=True):
                if isinstance(made, str):
                    yield Example(number=row.number, place=row.place, fields=row.fields, flaw=made)
                else:
                    yield self._example(row, {side: next(ids) for side, ids in tokens.items()})

    def _texts(self, row: TextRow) -> dict[str, str] | str:
        """Returns the texts of a row by feature, or why there are none."""
        if row.flaw:
            return row.flaw
        clash = name_clash(row.fields)
        if clash:
            return clash
        texts = {}
        for side, pieces in self._templates.items():
            named = [piece.column for piece in pieces if piece.column is not None]
            columns = {name: text for name in named if (text := plain_rows.as_text(row.fields.get(name))) is not None}
            for name in named:
                if name not in row.fields:
                    return errors.unknown_name("column", name, row.fields)
                if name not in columns:
                    return f"column {name!r} holds a {type(row.fields[name]).__name__}; use text or numbers"
            if named and not any(text.strip() for text in columns.values()):
                return f"nothing to {'score' if side == 'targets' else 'read'}: {', '.join(named)} blank"
            texts[side] = templates.filled(pieces, columns)
        return texts

    def _example(self, row: TextRow, tokens: dict[str, list[int]]) -> Example:
        example = fitted(
            Example(number=row.number, place=row.place, fields=row.fields, tokens=tokens),
            lengths={side: length - 1 for side, length in self._lengths.items()},
        )
        eos = self._vocabulary.eos_id
        ended = {side: [*ids, eos] for side, ids in example.tokens.items()}
        return dataclasses.replace(example, tokens=ended)


def fitted(example: Example, *, lengths: Mapping[str, int]) -> Example:
    """Returns `example` with inputs cut to their length; targets that are longer are a flaw: half has another score."""
    targets, limit = example.tokens.get("targets", ()), lengths["targets"]
    if len(targets) > limit:
        flaw = f"the targets are {len(targets)} tokens long, above {limit}; raise feature_lengths.targets"
        return dataclasses.replace(example, tokens={}, flaw=flaw)
    inputs = example.tokens.get("inputs", ())
    if len(inputs) <= lengths.get("inputs", len(inputs)):
        return example
    cut = {**example.tokens, "inputs": inputs[: lengths["inputs"]]}
    return dataclasses.replace(example, tokens=cut, inputs_cut=True)


def name_clash(fields: Iterable[str]) -> str:
    """Returns what is wrong with the names of a row's fields, '' when nothing is."""
    taken = next((name for name in fields if name in RESULT_FIELDS), None)
    return "" if taken is None else f"the field {taken!r} has a name of the results; rename it"


def parsed_templates(source: InferSourceConfig) -> dict[str, tuple[templates.Piece, ...]]:
    """Returns the templates of a source by feature.

    Raises:
      ConfigError: one is malformed.
    """
    given = {"inputs": source.inputs, "targets": source.targets}
    return {
        side: templates.parse(template, setting=f"source.{side}")
        for side, template in given.items()
        if template is not None
    }
