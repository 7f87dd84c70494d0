"""A run that fails says where and why in its summary and report, beside the error itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from t5core import errors, outages
from t5core.report import evaluation_table, page, summary


def recorded(run_uri: str, *, where: str) -> contextlib.AbstractContextManager[None]:
    """Writes the summary and the report of a failed run or evaluation when the block fails; the error goes on.

    What another attempt may survive (`RecoverableError`) is no failure of the run yet, and nothing is written into a
    run that another execution works on (`InUseError`).
    """

    def write(failure: summary.Failure) -> None:
        if evaluation_table.write_failed(run_uri, failure):
            return
        summary.write_summary(run_uri, status="failed", failure=failure)
        page.write_report(run_uri)

    return told(write, where=where)


@contextlib.contextmanager
def told(write: Callable[[summary.Failure], object], *, where: str) -> Iterator[None]:
    """Has `write` write down where and why the block failed; the error goes on as it is, as in `recorded`."""
    try:
        with outages.as_recoverable():
            yield
    except (errors.RecoverableError, errors.InUseError):
        raise
    except Exception as error:
        # A full disk or damaged records may be what failed: then there is nothing to write with, and the error counts.
        with contextlib.suppress(errors.UserError, errors.IntegrityError):
            write(summary.Failure.of(error, where=where))
        raise
