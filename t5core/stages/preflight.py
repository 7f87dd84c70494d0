"""The look at a run before anything heavy: what it will take, and whether it can work at all."""

from __future__ import annotations

import time

from t5core import errors, progress
from t5core.config.edges import ResolvedRun, RunInputs
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import failure


def preflight(run: ResolvedRun, *, on_pool: bool) -> ResolvedRun:
    """Returns the run if it can work, what it will take being recorded; nothing of it has been made yet.

    Args:
      run: the run.
      on_pool: whether it trains on the devices of `cluster.pool`; else on this machine's.

    Raises:
      ConfigError: it cannot work. The message is the first reason; all of them are printed and recorded.
    """
    from t5core.preflight import examine, lines, pools, record

    began = time.monotonic()
    with failure.recorded(run.uri, where="preflight"):
        devices = pools.POOLS[run.config.cluster.pool] if on_pool else pools.this_machine()
        found = examine.examine(run, devices=devices)
        before = record.read(run.uri)
        if before is not None and found.estimated is None:  # what was expected of the data that are there by now
            found = found.model_copy(update={"estimated": before.estimated})
        record.write(run.uri, found)
        told = lines.headline(found)
        progress.say(f"preflight: done in {time.monotonic() - began:.1f} s ({told})")
        # The first refusal is the error's own line.
        for label, line in lines.lines_of(found.model_copy(update={"refusals": found.refusals[1:]})):
            if label in ("warning", "refused", "truncated", "memory", "steps"):
                progress.say(f"  {label}: {line}")
        if found.refusals:
            raise errors.ConfigError(found.refusals[0])
        _write_stage(run, told, seconds=time.monotonic() - began)
    return run


def look_again(inputs: RunInputs) -> None:
    """Puts what the data hold beside what was expected of them, now that they are there."""
    from t5core.preflight import data, record

    found = record.read(inputs.run.uri)
    exact = data.counted(inputs.tasks, inputs.mixture)
    if found is not None and exact is not None and found.exact != exact:
        record.write(inputs.run.uri, found.model_copy(update={"exact": exact}))


def _write_stage(run: ResolvedRun, told: str, *, seconds: float) -> None:
    directory = RunDirectory(run.uri)
    directory.write_stage(
        StageRecord(
            stage="preflight",
            reused=False,
            reason=told,
            seconds=seconds,
            fingerprint=run.fingerprint,
            uri=directory.preflight_uri,
        )
    )
