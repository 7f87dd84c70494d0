"""Templates that put columns into a text: `"summarize: {title} {body}"`."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import NamedTuple

from t5core import errors


class Piece(NamedTuple):
    """A literal text and the column that follows it, None at the end."""

    literal: str
    column: str | None


def parse(template: str, *, setting: str) -> tuple[Piece, ...]:
    """Returns the pieces of `template`; `{{` and `}}` stand for braces.

    Args:
      template: literal text with `{column}` in it.
      setting: the key that the template comes from, for the message.

    Raises:
      ConfigError: a brace is left open, or braces hold anything but a column's name.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise errors.ConfigError(
            f"{setting}={template!r} is not a template: {error}; write '{{{{' for a brace that is text"
        ) from error
    for _, column, spec, conversion in fields:
        if column is not None and (not column or spec or conversion):
            raise errors.ConfigError(
                f"{setting}={template!r} holds more than a column's name between braces; write {{column}}"
            )
    return tuple(Piece(literal, column) for literal, column, _, _ in fields)


def columns(template: str, *, setting: str) -> tuple[str, ...]:
    """Returns the columns that `template` names, each once, in order."""
    return tuple(dict.fromkeys(piece.column for piece in parse(template, setting=setting) if piece.column is not None))


def filled(pieces: tuple[Piece, ...], columns: Mapping[str, str]) -> str:
    """Returns the text of a template with the columns put in."""
    return "".join(piece.literal + (columns[piece.column] if piece.column is not None else "") for piece in pieces)
