"""Names for the best checkpoint so far: a pointer that moves when a better one comes, and the history of decisions.

`<root>/published/<name>/current.json` is the pointer, written as a whole or not at all; `history/` beside it holds one
file for each decision, also for those that left the pointer where it was. What is published is never deleted by a
run's retention, and neither is what was published before.
"""

from __future__ import annotations

import datetime
import math
from typing import Literal

from t5core import errors, records, sharing, storage
from t5core.checkpoints import index, pins
from t5core.config.base import StrictModel
from t5core.config.edges import CheckpointRef
from t5core.config.publish_schema import PublishConfig
from t5core.rundir import RunDirectory

_POINTER, _HISTORY = "current.json", "history"


class Candidate(StrictModel):
    """A checkpoint that may be published: of which run, and its value of the deciding metric; None: not evaluated.

    `measured_on` names the data and the settings behind the value (16 hex digits): values of different ones do not
    compare.
    """

    run_name: str
    run_uri: str
    checkpoint: CheckpointRef
    value: float | None
    measured_on: str


class Remeasured(StrictModel):
    """The value of a published checkpoint, measured as those of another run; None: it cannot be, for the `obstacle`."""

    digest: str
    settings: str
    value: float | None
    obstacle: str = ""


class Decision(StrictModel):
    """What became of a candidate, and why.

    `incumbent` is what the name pointed to before, None when it pointed nowhere; `at` is ISO 8601 in UTC.
    """

    name: str
    task: str
    metric: str
    outcome: Literal["published", "kept"]
    reason: str
    candidate: Candidate
    incumbent: Candidate | None
    at: str


def folder(root: str, name: str) -> str:
    """Returns where the pointer `name` and its history lie."""
    return f"{root.rstrip('/')}/published/{name}"


def names(root: str) -> tuple[str, ...]:
    """Returns every name that something was published under, sorted."""
    place = storage.path(f"{root.rstrip('/')}/published")
    found = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    return tuple(name for name in found if (place / name / _POINTER).exists())


def current(root: str, name: str) -> Decision | None:
    """Returns the decision that made `name` point where it does, or None when nothing was published under it.

    Raises:
      IntegrityError: the pointer is damaged.
    """
    return _read(f"{folder(root, name)}/{_POINTER}")


def _read(uri: str) -> Decision | None:
    return records.read(uri, Decision, otherwise="is no record of a publication; bring it back from a copy")


def history(root: str, name: str) -> list[Decision]:
    """Returns every decision about `name`, the oldest first."""
    place = storage.path(f"{folder(root, name)}/{_HISTORY}")
    files = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    decisions = [_read(str(place / file)) for file in files if file.endswith(".json")]
    return [decision for decision in decisions if decision is not None]


def publish_if_better(
    config: PublishConfig,
    candidate: Candidate,
    *,
    root: str,
    remeasured: Remeasured | None = None,
    execution: str | None = None,
) -> Decision:
    """Returns whether `candidate` takes the place of what `config.name` points to; moves the pointer if so.

    The same candidate again gets the answer it had. Of two that ask at once, the second is judged by what the first has
    published.

    Args:
      config: the name and the rule.
      candidate: what may take the place.
      root: folder of the runs.
      remeasured: the incumbent measured as the candidate was; needed when its own value is of something else.
      execution: what decides, unique to it; None: this process.

    Raises:
      ConfigError: the name is judged by another metric.
      RunDirectoryError: nothing can be written below `root`.
    """
    busy = f"another run is being judged for {config.name!r}"
    with sharing.turn(f"{folder(root, config.name)}/lock.json", busy=busy, owner=execution):
        before = current(root, config.name)
        _check_judged_alike(config, before)
        if before is not None and before.candidate == candidate:
            _record(root, before)  # a kill may have come between the pointer and the history
            return before
        decided = next((d for d in reversed(history(root, config.name)) if d.candidate == candidate), None)
        if decided is not None and decided.outcome == "kept":
            return decided
        incumbent = before.candidate if before else None
        better, reason = _judge(config, candidate, incumbent, remeasured)
        decision = Decision(
            name=config.name,
            task=config.task,
            metric=config.metric,
            outcome="published" if better else "kept",
            reason=reason,
            candidate=candidate,
            incumbent=incumbent,
            at=datetime.datetime.now(datetime.UTC).isoformat(),
        )
        if better:
            _keep_for_good(candidate, name=config.name)
            records.write(f"{folder(root, config.name)}/{_POINTER}", decision)
        _record(root, decision)
    return decision


def check(config: PublishConfig, *, root: str) -> None:
    """Refuses now what `publish_if_better` would refuse when everything is trained.

    Raises:
      ConfigError: the name is judged by another metric.
    """
    _check_judged_alike(config, current(root, config.name))


def _check_judged_alike(config: PublishConfig, before: Decision | None) -> None:
    if before is not None and (before.task, before.metric) != config.watched:
        raise errors.ConfigError(
            f"publish.name {config.name!r} is judged by {before.task}/{before.metric}, not by "
            f"{config.task}/{config.metric}; set publish.task and publish.metric to it, or choose another name"
        )


def recorded(run_uri: str) -> Decision | None:
    """Returns what became of a run's best checkpoint, None when nothing was to be published or is decided yet."""
    uri = RunDirectory(run_uri).publication_uri
    return _read(uri) if storage.path(uri).exists() else None


def in_words(decision: Decision) -> str:
    """Returns a decision as a line: what the name points to, the loser, and the reason."""
    this, before = decision.candidate, decision.incumbent
    mine = f"step {this.checkpoint.step} of {this.run_name}"
    others = f"step {before.checkpoint.step} of {before.run_name}" if before is not None else ""
    if decision.outcome == "published":
        kept = f"; {others}, which had the name, is kept" if others else ""
        return f"{decision.name} is {mine} now ({decision.reason}){kept}"
    return f"{decision.name} stays {others or 'without a checkpoint'}; {mine} is not published ({decision.reason})"


def _record(root: str, decision: Decision) -> None:
    at = datetime.datetime.fromisoformat(decision.at)
    file = f"{at:%Y%m%dT%H%M%S.%f}-{decision.candidate.run_name}-{decision.candidate.checkpoint.step}.json"
    records.write(f"{folder(root, decision.name)}/{_HISTORY}/{file}", decision)


def _keep_for_good(candidate: Candidate, *, name: str) -> None:
    uri, step = index.locate(candidate.checkpoint.uri)
    pins.publish(uri, step, name=f"{name}-{step}")  # one run may publish several under one name, and all stay


def _judge(
    config: PublishConfig, candidate: Candidate, incumbent: Candidate | None, remeasured: Remeasured | None
) -> tuple[bool, str]:
    """Returns whether the candidate is better by the margin, and the reason."""
    what = f"{config.task}/{config.metric}"
    if candidate.value is None or not math.isfinite(candidate.value):
        return False, "it was not evaluated" if candidate.value is None else f"{what} is {candidate.value:g}"
    if incumbent is None:
        return True, f"the first under this name, {what} {candidate.value:.6g}"
    if incumbent.checkpoint.digest == candidate.checkpoint.digest:
        return False, "it is the published checkpoint itself"
    incumbent_value = _comparable(incumbent, candidate, remeasured)
    if isinstance(incumbent_value, str):
        return False, incumbent_value
    gain = candidate.value - incumbent_value if config.mode == "max" else incumbent_value - candidate.value
    told = f"{what} {candidate.value:.6g} against {incumbent_value:.6g} of {incumbent.run_name}"
    if not math.isfinite(incumbent_value):
        return True, told
    margin = f" by more than the margin {config.margin:g}" if config.margin else ""
    better = gain > config.margin
    return better, f"{told}: {'better' if better else 'not better'}{margin}"


def _comparable(incumbent: Candidate, candidate: Candidate, remeasured: Remeasured | None) -> float | str:
    """Returns the incumbent's value as the candidate's was measured, or why there is none."""
    if incumbent.measured_on == candidate.measured_on and incumbent.value is not None:
        return incumbent.value
    here = (incumbent.checkpoint.digest, candidate.measured_on)
    if remeasured is None or (remeasured.digest, remeasured.settings) != here:
        return f"{incumbent.run_name} was measured on {incumbent.measured_on}, this on {candidate.measured_on}"
    if remeasured.value is None:
        return f"{incumbent.run_name} cannot be measured on this run's data: {remeasured.obstacle}"
    return remeasured.value
