"""Pages of HTML from the templates in this folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from t5core import counting
from t5core.report import figures

_LONG = 24  # characters


def render(template: str, context: Mapping[str, Any]) -> str:
    """Returns the page that `template` makes of `context`; a name that the context lacks is an error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("t5core", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": figures.number,
        "count": counting.count,
        "heading": figures.heading,
        "breakable": _breakable,
    }
    text = environment.get_template(template).render(context)
    # Predictions come from outside: JSON can carry half of a surrogate pair, which no encoding can write.
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _breakable(text: str) -> Markup:
    """Returns a long name or path that a browser may break behind its signs, and not in the middle of a word."""
    if len(text) <= _LONG:
        return Markup.escape(text)
    return Markup("<wbr>").join(Markup.escape(part) for part in re.split(r"(?<=[_/+=])(?=\w)", text))
