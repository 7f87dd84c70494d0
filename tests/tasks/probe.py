"""A workflow that hands settings on by every way there is, and writes down what arrives."""

from __future__ import annotations

import os
import pathlib

from flytekit import task, workflow

from t5core.config.edges import Cursor
from t5core.config.schema import PretrainConfig


@task
def give(config: PretrainConfig) -> PretrainConfig:
    """Hands the settings on."""
    return config


@task
def take(config: PretrainConfig, steps: int, rate: float, kept: int | None, lengths: dict[str, int]) -> str:
    """Writes down the settings, and some of them that came alone."""
    text = repr((config.model_dump(), (steps, rate, kept, lengths)))
    pathlib.Path(os.environ["PROBE_FILE"]).write_text(text, encoding="utf-8")
    return text


@task
def keep(cursor: Cursor) -> Cursor:
    """Hands a cursor on."""
    return cursor


@workflow
def probe(config: PretrainConfig) -> str:
    """Sends settings through a workflow's input, a task's output and the attributes of a promise."""
    given = give(config=config)
    return take(
        config=given,
        steps=given.train.total_steps,
        rate=given.train.learning_rate.base_learning_rate,
        kept=given.train.keep_checkpoints,
        lengths=given.data.feature_lengths,
    )
