"""Text that is not UTF-8: told with its place, or marked and mended, and never passed on as it is.

A byte that is not part of a character travels as a lone surrogate, as in Python's `surrogateescape`, until the text
that it belongs to is known; JSON can spell such halves by itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from t5core import errors

_HALF = re.compile("[\ud800-\udfff]")
REPLACEMENT = "\ufffd"
REMEDY = "convert the file to UTF-8, or set the task's invalid_utf8 to replace or drop"


class Text(NamedTuple):
    """A whole text, and whether something in it had to be replaced."""

    text: str
    mended: bool


def decoded(content: bytes, *, place: str, tolerant: bool) -> str:
    """Returns the text of `content`; a tolerant reader gets halves for what is not UTF-8.

    Raises:
      DataError: a byte is not UTF-8 and the reader is not tolerant; the message names `place`, byte and position.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        if tolerant:
            return content.decode("utf-8", "surrogateescape")
        raise errors.DataError(
            f"{place}: byte 0x{content[error.start]:02x} at position {error.start + 1} is not UTF-8; {REMEDY}"
        ) from error


def whole(text: str, *, name: str, place: str, tolerant: bool) -> Text:
    """Returns `text` with whole characters only: each half in it gives way to U+FFFD.

    Raises:
      DataError: there is a half and the reader is not tolerant; the message names the column `name` at `place`.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        if tolerant:
            return Text(_HALF.sub(REPLACEMENT, text), True)
        raise errors.DataError(
            f"{place}: column {name!r} holds half a surrogate pair at position {error.start + 1}; write whole "
            "characters, or set the task's invalid_utf8 to replace or drop"
        ) from error
    return Text(text, False)
