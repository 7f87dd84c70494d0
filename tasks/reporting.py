"""Tasks that tell a person how the run went."""

from __future__ import annotations

from t5core.config.edges import Cursor, RunInputs, Summary
from tasks import failures, profiles


@profiles.light_task(enable_deck=True)
def report(inputs: RunInputs, cursor: Cursor) -> Summary:
    """Writes summary.json and report.html into the run directory, and shows the report as the task's deck."""
    from flytekit import Deck

    from t5core.stages import finish

    with failures.retry_what_helps():
        summary, page = finish.finish(inputs, cursor)
    Deck("report", page)
    return summary
