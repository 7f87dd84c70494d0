"""Decoded evaluation: the texts that the model predicts for a validation split."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from t5core import progress
from t5core.config.schema import DecodingConfig
from t5core.data import reader
from t5core.data.stored import StoredSplit
from t5core.data.vocabulary import Vocabulary
from t5core.models.base import DecoderParams
from t5core.models.decoding import beam_search, cut_at_eos, temperature_sample
from t5core.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded:
    """Predicted texts in the order of the rows, and the share of them that ended by length instead of by EOS."""

    texts: list[str]
    length_limit_fraction: float


def decode_fn(decode: DecodingConfig) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Returns the function that the model decodes with, its settings bound to it."""
    if decode.strategy == "beam":
        return functools.partial(beam_search, alpha=decode.alpha)
    if decode.strategy == "sample":
        return functools.partial(temperature_sample, temperature=decode.temperature, topk=decode.topk, topp=decode.topp)
    return functools.partial(temperature_sample, temperature=0.0, topk=0)


def decoder_params(decode: DecodingConfig) -> DecoderParams:
    """Returns how many decodes the model makes of a row."""
    return DecoderParams(num_decodes=decode.beam_size if decode.strategy == "beam" else 1)


def predict(
    trainer: Trainer, params: dict[str, Any], *, name: str, split: StoredSplit, vocabulary: Vocabulary
) -> Decoded:
    """Returns a prediction for each row of `split`, the same on every process, each of which decodes its rows.

    Args:
      trainer: its model decodes with `decode_fn`.
      params: of the model.
      name: of what is decoded.
      split: what to decode.
      vocabulary: of the targets.
    """
    cuts = []
    with progress.stage(f"decode {name}", total=split.max_rows, unit="examples") as bar:
        for batch in split.batches():
            tokens = trainer.inference_step(
                "predict_batch", params, _named_rows(batch, split.rows), jax.random.PRNGKey(0)
            )
            rows = np.asarray(jax.device_get(tokens))[: batch.num_rows]
            cuts += [cut_at_eos(row.tolist(), eos_id=vocabulary.eos_id) for row in rows]
            bar.advance(batch.num_rows)
    met_limit = sum(not cut.reached_eos for cut in cuts)
    return Decoded(
        texts=[vocabulary.decode(cut.ids) for cut in cuts], length_limit_fraction=met_limit / max(len(cuts), 1)
    )


def _named_rows(batch: reader.EvaluationBatch, rows: slice) -> dict[str, np.ndarray]:
    """Returns `rows` of a batch, each with its number in the split: a sample belongs to it however rows are batched."""
    size = len(next(iter(batch.features.values())))
    row_ids = np.arange(batch.first_row, batch.first_row + size, dtype=np.int32)
    return {name: values[rows] for name, values in {**batch.features, "row_ids": row_ids}.items()}
