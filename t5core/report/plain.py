"""Tables and labelled sentences as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from t5core.report.tables import Table

WIDTH = 100


def table(content: Table) -> list[str]:
    """Returns a table as lines: its caption, its head, its rows; numbers stand on the right."""
    if not content.rows:
        return []
    texts = [content.columns, *([cell.text for cell in row] for row in content.rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(content.columns))]
    is_number = [cell.kind == "number" for cell in content.rows[0]]
    return [content.caption, *(_row(row, widths, is_number) for row in texts)]


def _row(texts: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    cells = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(texts, widths, is_number, strict=True)
    )
    return ("  " + "   ".join(cells)).rstrip()


def labelled(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Returns (label, sentence) pairs as lines, a sentence going on under itself, a label not being said twice."""
    pairs = list(lines)
    indent = 4 + max((len(label) for label, _ in pairs), default=0)
    shown, before = [], ""
    for label, sentence in pairs:
        wrapped = textwrap.wrap(sentence, WIDTH - indent, break_long_words=False, break_on_hyphens=False)
        head = f"  {label if label != before else ''}".ljust(indent)
        shown += [head + wrapped[0], *(" " * indent + line for line in wrapped[1:])]
        before = label
    return shown
