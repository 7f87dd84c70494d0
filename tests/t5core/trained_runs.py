"""A trained run whose checkpoints can be evaluated: a tiny model, and a task with a validation split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from t5core.config.edges import DatasetRef, RunInputs, Survey
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import data
from tests.t5core import small_runs
from tests.t5core.data import making


def dataset(root, *, name="a", seed=0, parts=None) -> DatasetRef:
    """Writes a dataset with a validation split of 5 examples."""
    rows, held_out = making.examples(30, seed=seed), making.examples(5, seed=seed + 1)
    return making.task_dataset(str(root), name, rows, validation=held_out, parts=parts)


def trained(root, *, name="demo") -> RunInputs:
    """Trains a run to step 4, with checkpoints at 2 and 4."""
    config = small_runs.config(root, run={"name": name}, total_steps=4)
    inputs = small_runs.inputs(config).model_copy(update={"tasks": [dataset(root)]})
    RunDirectory(inputs.run.uri).write_stage(
        StageRecord(
            stage="vocabulary",
            reused=True,
            reason="bytes need no training",
            seconds=0.0,
            fingerprint=inputs.vocabulary.fingerprint,
            uri="",
        )
    )
    small_runs.train(inputs)
    return inputs


@contextlib.contextmanager
def materialised(*datasets: DatasetRef) -> Iterator[None]:
    """Has every task that is materialised inside the block found as one of `datasets`, and trainers shared."""
    by_name = {found.name: found for found in datasets}
    with (
        small_runs.settings_put_back(),
        mock.patch.object(
            data, "survey", lambda request: Survey(request=request, parts={}, source="", shares=0, seconds=0)
        ),
        mock.patch.object(data, "materialise", lambda survey: by_name[survey.request.task]),
    ):
        yield
