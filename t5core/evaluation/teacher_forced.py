"""Teacher-forced evaluation: how probable the model finds the targets of a split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from t5core import progress
from t5core.metrics import summarise
from t5core.trainer import Trainer


def sums(
    trainer: Trainer, params: dict[str, Any], *, name: str, batches: Iterable[Mapping[str, np.ndarray]]
) -> list[summarise.Sums]:
    """Returns the metric sums of each batch.

    Args:
      trainer: of the model.
      params: to evaluate.
      name: of what is evaluated.
      batches: this process's part of each; every process has as many.
    """
    found: list[summarise.Sums] = []
    with progress.stage(f"evaluate {name}", total=None, unit="batches") as bar:
        for batch in batches:
            found.append(trainer.eval_step(params, batch))
            bar.advance()
        found = jax.device_get(found)
        figures = summarise.evaluation_figures(found) if found else {}
        bar.advance(0, **{key: figures[key] for key in ("loss", "accuracy") if key in figures})
    return found
