"""What is worth trying when a run has ended, as commands that can be copied."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5core import storage
from t5core.report.gather import RunRecord, join


def ideas(record: RunRecord, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields reasons and commands worth running; `content` is the summary of the run."""
    if content["status"] == "failed":
        where = f"go on from step {content['final_step']:,}" if content["checkpoint"] else "start again"
        yield f"{where} when the cause is mended", _command(record)
    elif "train" in record.config:  # a variant of a setting needs the configuration to start from
        yield from _after_a_stop(record, content) if content["status"] == "stopped" else _longer(record)
    if record.series:
        yield (
            "watch the curves",
            f"{_program('tensorboard')} --logdir {shlex.quote(storage.near(join(record.uri, 'metrics')))}",
        )


def _longer(record: RunRecord) -> Iterator[tuple[str, str]]:
    run, train = record.config["run"], record.config["train"]
    yield "train on from here", _command(record, f"train.total_steps={2 * train['total_steps']}")
    yield "see how much the seed matters", _command(record, _beside(record), f"run.seed={(run['seed'] or 0) + 1}")


def _after_a_stop(record: RunRecord, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what answers the reason of a stop; for an action of the user's own there is nothing to advise."""
    train, reason = record.config["train"], content["stop_reason"]
    actions = train.get("actions", ())
    if raised := list(_raised_budget(actions, reason)):
        yield "raise the budget and train on from here", _command(record, *raised)
    if patient := list(_more_patience(actions, reason)):
        yield "be more patient and train on from here", _command(record, *patient)
    if "NaN" in reason:
        rate = train["learning_rate"]["base_learning_rate"] / 2
        lower = f"train.learning_rate.base_learning_rate={rate:g}"
        yield "try half the learning rate, beside this run", _command(record, _beside(record), lower)


def _raised_budget(actions: Sequence[Mapping[str, Any]], reason: str) -> Iterator[str]:
    """Yields each limit that was reached, as much above what was spent as it was above nothing."""
    for spent, name in re.findall(r"([\d.e+]+) of [\d.e+]+ (seconds|target tokens)", reason):
        key = name.replace(" ", "_")
        for place, action in enumerate(actions):
            if action["name"] == "budget" and action.get(key) and float(spent) >= action[key]:
                yield f"train.actions.{place}.{key}={math.ceil(float(spent) + action[key])}"


def _more_patience(actions: Sequence[Mapping[str, Any]], reason: str) -> Iterator[str]:
    for place, action in enumerate(actions):
        if action["name"] == "early_stopping" and f"early stopping: {action['task']}/{action['metric']} " in reason:
            yield f"train.actions.{place}.patience={2 * action['patience']}"


def _beside(record: RunRecord) -> str:
    return f"run.name={record.name}-2"


def _command(record: RunRecord, *overrides: str) -> str:
    config = shlex.quote(storage.near(join(record.uri, "config.yaml")))
    extra = f" --overrides {shlex.quote(json.dumps(overrides))}" if overrides else ""
    # The settings of a run that has begun say all that a workflow needs, whichever it was.
    workflow = record.identity.workflow if record.identity and record.identity.workflow else "pretrain"
    return f"{_program('pyflyte')} run workflows/{workflow}.py --config {config}{extra}"


def _program(name: str) -> str:
    """Returns how a shell finds `name`: bare when it is on the PATH, by its folder when it lies beside this Python."""
    beside = pathlib.Path(sys.executable).with_name(name)
    return name if shutil.which(name) or not beside.exists() else os.path.relpath(beside)
