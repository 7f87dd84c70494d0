"""Who holds a run directory while a task works in it."""

from __future__ import annotations

import os


def current() -> str | None:
    """Returns the name of this Flyte execution, which all its tasks share; None locally, where the process owns."""
    execution = os.environ.get("FLYTE_INTERNAL_EXECUTION_ID")
    return f"flyte:{execution}" if execution else None
