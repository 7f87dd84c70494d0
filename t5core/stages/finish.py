"""The last stage: the summary, the report, and what a person reads at the end."""

from __future__ import annotations

from t5core import progress
from t5core.config.edges import Cursor, RunInputs, Summary
from t5core.report import closing, page, summary
from t5core.stages import holding


def finish(inputs: RunInputs, cursor: Cursor) -> tuple[Summary, str]:
    """Writes summary.json and report.html; returns the summary and the report's HTML.

    Raises:
      InUseError: another execution works on the run by now.
    """
    holding.check(inputs.run.uri)
    ended = summary.write_summary(
        inputs.run.uri,
        status="stopped" if cursor.halt else "completed",
        stop_reason=cursor.stop_reason,
        checkpoint=cursor.checkpoint,
    )
    html = page.write_report(inputs.run.uri)
    for line in closing.closing_lines(ended):
        progress.say(line)
    holding.release(inputs.run.uri)
    return ended, html
