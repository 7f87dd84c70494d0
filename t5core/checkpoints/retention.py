"""Which checkpoints may go, and the order in which they go."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from etils import epath

from t5core import errors, storage
from t5core.checkpoints import index, pins, seal

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestBy:
    """Keeps the `count` checkpoints with the best `metric`; of equal ones the later."""

    metric: str
    mode: Literal["min", "max"] = "min"
    count: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """What to keep; a checkpoint stays when any of the rules wants it.

    `keep` newest ones (None: all). A step off the grid of `checkpoint_period` (None: no grid), step 0 among them, only
    hands a run over to its next segment and goes as soon as a later one is committed, so that a run leaves the same
    checkpoints however it was cut. Every multiple of `keep_period` stays for good (None: no such rule), and so do the
    best. Of each metric in `finite` the last checkpoint up to a step at which it was finite stays: when a run has come
    to NaN, that is where to begin again.
    """

    keep: int | None = None
    checkpoint_period: int | None = None
    keep_period: int | None = None
    best: tuple[BestBy, ...] = ()
    finite: tuple[str, ...] = ()

    @property
    def needs_metrics(self) -> bool:
        """Whether some rule goes by metrics."""
        return bool(self.best or self.finite)

    def __post_init__(self) -> None:
        for name in ("keep", "checkpoint_period", "keep_period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise errors.ConfigError(f"{name}={value} keeps nothing; give 1 or more, or None to switch it off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deletion:
    """A checkpoint to delete, and why."""

    step: int
    reason: str


def steps_to_delete(
    steps: Iterable[int],
    *,
    policy: RetentionPolicy,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    protected: Collection[int] = (),
) -> tuple[Deletion, ...]:
    """Returns what to delete of the committed `steps`, oldest first; never the newest, and nothing `protected`.

    `metrics` are those known for each step; a step without a metric, or with NaN for it, is not among the best.

    Raises:
      ConfigError: a rule's metric is none of those in `metrics`.
    """
    ascending = sorted(steps)
    if not ascending:
        return ()
    regular = [step for step in ascending[:-1] if _on_grid(step, policy.checkpoint_period)] + ascending[-1:]
    kept = set(regular if policy.keep is None else regular[-policy.keep :])
    kept |= {*protected, *_best(ascending, policy=policy, metrics=metrics or {})}
    kept |= _last_finite(ascending, policy=policy, metrics=metrics or {})
    if policy.keep_period is not None:
        kept |= {step for step in ascending if step % policy.keep_period == 0}
    return tuple(Deletion(step=step, reason=_reason(step, policy=policy)) for step in ascending if step not in kept)


def _on_grid(step: int, period: int | None) -> bool:
    return period is None or (step > 0 and step % period == 0)


def _reason(step: int, *, policy: RetentionPolicy) -> str:
    if not _on_grid(step, policy.checkpoint_period):
        return f"handed over to the next segment, off the period of {policy.checkpoint_period}"
    others = " and ".join(f"{rule.count} by {rule.metric} ({rule.mode})" for rule in policy.best)
    return f"older than the newest {policy.keep}" + (f", not among the best {others}" if others else "")


def _best(steps: list[int], *, policy: RetentionPolicy, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
    names = {name for values in metrics.values() for name in values}
    best: set[int] = set()
    for rule in policy.best:
        if names and rule.metric not in names:
            raise errors.ConfigError(errors.unknown_name("metric to keep checkpoints by", rule.metric, names))
        scored = [(metrics.get(step, {}).get(rule.metric, math.nan), step) for step in steps]
        sign = 1 if rule.mode == "min" else -1
        ranked = sorted((sign * value, -step) for value, step in scored if not math.isnan(value))
        best |= {-step for _, step in ranked[: rule.count]}
    return best


def _last_finite(steps: list[int], *, policy: RetentionPolicy, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
    kept: set[int] = set()
    for name in policy.finite:
        good = [step for step, values in metrics.items() if math.isfinite(values.get(name, math.nan))]
        kept |= set([step for step in steps if good and step <= max(good)][-1:])
    return kept


def delete_old(uri: str, *, policy: RetentionPolicy, metrics: Mapping[int, Mapping[str, float]]) -> None:
    """Deletes what the policy does not keep from the folder `uri`, in the order in which it is logged.

    Raises:
      CheckpointError: as `delete`.
      ConfigError: as `steps_to_delete`.
    """
    steps, protected = index.committed_steps(uri), pins.pinned_steps(uri)
    for deletion in steps_to_delete(steps, policy=policy, metrics=metrics, protected=protected):
        delete(uri, deletion)


def delete(uri: str, deletion: Deletion) -> None:
    """Deletes a checkpoint from the folder `uri` so that a kill on the way leaves nothing that looks whole.

    Raises:
      CheckpointError: no right to delete there.
    """
    checkpoint = index.step_path(uri, deletion.step)
    _log.info("deleting checkpoint %s: %s", checkpoint, deletion.reason)
    try:
        _delete_object(checkpoint) if storage.is_remote(uri) else _delete_folder(checkpoint)
    except OSError as error:
        raise errors.CheckpointError(
            f"cannot delete checkpoint {checkpoint}: {error.strerror or error}; restore the right to write there"
        ) from error


def _delete_object(checkpoint: epath.Path) -> None:
    for name in (seal.FILE, seal.COMMIT_FILE):  # without these two it counts as never committed
        (checkpoint / name).unlink()
    checkpoint.rmtree()


def _delete_folder(checkpoint: epath.Path) -> None:
    doomed = checkpoint.with_name(f"{checkpoint.name}{index.UNFINISHED_MARK}-deleted")
    if doomed.exists():
        doomed.rmtree()
    checkpoint.rename(doomed)
    if int(checkpoint.name) in pins.pinned_steps(str(checkpoint.parent)):  # somebody began to read it a moment ago
        doomed.rename(checkpoint)
        return
    doomed.rmtree()
