"""Teacher-forced evaluation: how probable the model finds the targets of a validation split."""

from __future__ import annotations

from typing import Any

import jax

from t5core import progress
from t5core.data import reader
from t5core.data.converters import FeatureConverter
from t5core.metrics import summarise
from t5core.trainer import Trainer

SPLIT = "validation"


def evaluate(
    trainer: Trainer, params: dict[str, Any], *, name: str, uri: str, converter: FeatureConverter, batch_size: int
) -> dict[str, float]:
    """Returns the figures over every row of the validation split of the task dataset `uri`, each exactly once."""
    sums = []
    with progress.stage(f"evaluate {name}", total=None, unit="batches") as bar:
        for batch in reader.evaluation_batches(uri, split=SPLIT, batch_size=batch_size, converter=converter):
            sums.append(trainer.eval_step(params, batch.features))
            bar.advance()
        figures = summarise.evaluation_figures(jax.device_get(sums))
        bar.advance(0, loss=figures["loss"], accuracy=figures["accuracy"])
    return figures
