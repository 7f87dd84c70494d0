"""Pages of HTML from the templates in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t5core.report import figures


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
    environment.filters |= {"number": figures.number, "label": figures.label, "short": figures.short}
    text = environment.get_template(template).render(context)
    # Predictions come from outside: JSON can carry half of a surrogate pair, which no encoding can write.
    return text.encode("utf-8", errors="replace").decode("utf-8")
