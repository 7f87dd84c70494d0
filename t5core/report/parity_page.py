"""`report.html` of a conversion: one self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5core.config.convert_edges import Conversion, ConversionSummary
from t5core.report import rendering

if TYPE_CHECKING:
    from t5core.importers.parity import Parity


def render(summary: ConversionSummary, parity: Parity, conversion: Conversion) -> str:
    """Returns the page, the same text for the same conversion."""
    plan = conversion.plan
    return rendering.render("parity.html", {"place": plan.uri, "summary": summary, "parity": parity, "plan": plan})
