"""Whether the checkpoints of a run fit where they are to lie."""

from __future__ import annotations

import shutil

from t5core import schedule, storage
from t5core.actions import keeping
from t5core.checkpoints import index, retention
from t5core.config.publish_schema import PublishConfig
from t5core.config.train_schema import TrainConfig
from t5core.preflight.record import CheckpointFigures

# Commits that `most_at_once` plays through; then the number of checkpoints grows with the steps or not at all.
_PLAYED = 200


def checkpoint_figures(uri: str, train: TrainConfig, publish: PublishConfig | None = None) -> CheckpointFigures:
    """Returns how many checkpoints of a run there will be at `uri`, and the room for them."""
    return CheckpointFigures(
        most=most_at_once(train, publish), present=len(index.committed_steps(uri)), free_bytes=free_bytes(uri)
    )


def most_at_once(train: TrainConfig, publish: PublishConfig | None = None) -> int:
    """Returns the most checkpoints that lie on the disk at once: what is kept, and the one that is being written."""
    policy = keeping.policy_of(train, publish)
    events, step, played = schedule.of(train), 0, 0
    present, most = [0], 1
    while step < train.total_steps and played < _PLAYED:
        step, played = events.next_commit(step), played + 1
        present.append(step)
        most = max(most, len(present))
        gone = {deletion.step for deletion in retention.steps_to_delete(present, policy=policy)}
        present = [kept for kept in present if kept not in gone]
    for_good = train.checkpoint_period if train.keep_checkpoints is None else train.keep_period
    later = (train.total_steps - step) // for_good if for_good is not None else 0
    # What is kept for its metric may be older than all others.
    return most + later + sum(rule.count for rule in policy.best) + len(policy.finite)


def free_bytes(uri: str) -> int | None:
    """Returns the free bytes of the disk that holds `uri`, or will; None on an object store."""
    if storage.is_remote(uri):
        return None
    folder = storage.path(uri)
    return shutil.disk_usage(next(place for place in [folder, *folder.parents] if place.exists())).free


def refusal(figures: CheckpointFigures, *, checkpoint_bytes: int, uri: str) -> str | None:
    """Returns why the checkpoints cannot lie at `uri`; None when they can."""
    more = max(0, figures.most - figures.present)
    needed = more * checkpoint_bytes
    if figures.free_bytes is None or needed <= figures.free_bytes:
        return None
    return (
        f"{more} more checkpoints of {checkpoint_bytes / 1e6:,.1f} MB need {needed / 1e9:,.2f} GB, but the disk of "
        f"{uri} has {figures.free_bytes / 1e9:,.2f} GB free; free space, lower train.keep_checkpoints, or set run.root"
    )
