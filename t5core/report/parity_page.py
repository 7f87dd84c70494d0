"""`report.html` of a conversion: one self-contained page."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING

from t5core.config.convert_edges import Conversion, ConversionSummary

if TYPE_CHECKING:
    from t5core.importers.parity import Parity


def render(summary: ConversionSummary, parity: Parity, conversion: Conversion) -> str:
    """Returns the page, the same text for the same conversion."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = importlib.resources.files("t5core.report").joinpath("parity.html").read_text(encoding="utf-8")
    text = environment.from_string(source).render(summary=summary, parity=parity, plan=conversion.plan)
    # Names of tensors come from outside: JSON can carry half of a surrogate pair, which no encoding can write.
    return text.encode("utf-8", errors="replace").decode("utf-8")
