"""Decoded evaluation: the texts that the model predicts for a validation split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from t5core import progress
from t5core.config.schema import DecodeConfig
from t5core.data import reader
from t5core.data.converters import FeatureConverter
from t5core.data.vocabulary import Vocabulary
from t5core.evaluation.teacher_forced import SPLIT
from t5core.models.decoding import beam_search, cut_at_eos, temperature_sample
from t5core.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded:
    """Predicted texts in the order of the rows, and the share of them that ended by length instead of by EOS."""

    texts: list[str]
    length_limit_fraction: float


def decode_fn(decode: DecodeConfig) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Returns the function that the model decodes with."""
    return beam_search if decode.strategy == "beam" else temperature_sample


def decoder_params(decode: DecodeConfig) -> dict[str, Any]:
    """Returns the arguments of `decode_fn` that the settings stand for."""
    if decode.strategy == "beam":
        return {"alpha": decode.alpha}
    if decode.strategy == "sample":
        return {"temperature": decode.temperature, "topk": decode.topk, "topp": decode.topp}
    return {"temperature": 0.0, "topk": 0}


class Predictor:
    """Decodes batches with one strategy, compiled once."""

    def __init__(self, trainer: Trainer, decode: DecodeConfig) -> None:
        self._trainer = trainer
        self._decode = decode
        partitioner = trainer.partitioner
        self._predict = partitioner.partition(
            self._tokens,
            in_shardings=(trainer.state_shardings.params, partitioner.data_sharding, partitioner.data_sharding),
            out_shardings=partitioner.replicated,
        )

    def _tokens(self, params: dict[str, Any], batch: dict[str, Any], row_ids: jax.Array) -> jax.Array:
        decode = self._decode
        # A sample belongs to its row: it is the same however the rows are batched.
        by_row = {"row_ids": row_ids} if decode.strategy == "sample" else {}
        # The same key each time, as in T5X: two evaluations of the same parameters draw the same samples.
        tokens, _ = self._trainer.model.predict_batch_with_aux(
            params,
            batch,
            rng=jax.random.PRNGKey(0) if decode.strategy == "sample" else None,
            num_decodes=decode.beam_size if decode.strategy == "beam" else 1,
            decoder_params=decoder_params(decode) | by_row,
        )
        return tokens

    def _sharded(self, features: dict[str, Any], row_ids: np.ndarray) -> tuple[dict[str, jax.Array], jax.Array]:
        sharded = self._trainer.partitioner.shard_batch({**features, "row_ids": row_ids})
        return sharded, sharded.pop("row_ids")

    def predict(
        self,
        params: dict[str, Any],
        *,
        name: str,
        uri: str,
        converter: FeatureConverter,
        vocabulary: Vocabulary,
        batch_size: int,
    ) -> Decoded:
        """Returns a prediction for each row of the validation split of the task dataset `uri`, up to the limit."""
        batches = reader.evaluation_batches(
            uri, split=SPLIT, batch_size=batch_size, converter=converter, max_rows=self._decode.max_examples
        )
        cuts = []
        with progress.stage(f"decode {name}", total=self._decode.max_examples, unit="examples") as bar:
            for batch in batches:
                row_ids = np.arange(batch.first_row, batch.first_row + batch_size, dtype=np.int32)
                tokens = self._predict(params, *self._sharded(batch.features, row_ids))
                rows = np.asarray(jax.device_get(tokens))[: batch.num_rows]
                cuts += [cut_at_eos(row.tolist(), eos_id=vocabulary.eos_id) for row in rows]
                bar.advance(batch.num_rows)
        met_limit = sum(not cut.reached_eos for cut in cuts)
        return Decoded(
            texts=[vocabulary.decode(cut.ids) for cut in cuts], length_limit_fraction=met_limit / max(len(cuts), 1)
        )
