"""Predictions and scores of rows with a restored checkpoint, in batches of one shape."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from t5core import build
from t5core.checkpoints import parameters
from t5core.config.infer_edges import InferJob, TrainedModel
from t5core.config.infer_schema import InferDecodingConfig, Mode
from t5core.data.converters import converter_for
from t5core.data.vocabulary import load_vocabulary
from t5core.inference import model
from t5core.inference.examples import Example
from t5core.models.decoding import NO_HYPOTHESIS, cut_at_eos

Result = dict[str, Any]


def predictor_of(job: InferJob) -> Predictor:
    """Returns the predictor of a job: the same one, with its parameters and compiled steps, throughout a process."""
    build.use_compilation_cache(job.config)
    config = job.config
    return _predictor(job.trained.model_dump_json(), config.mode, config.decode.model_dump_json(), config.batch_size)


@functools.lru_cache(maxsize=1)
def _predictor(trained: str, mode: Mode, decode: str, batch_size: int) -> Predictor:
    return Predictor(
        TrainedModel.model_validate_json(trained),
        mode=mode,
        decode=InferDecodingConfig.model_validate_json(decode),
        batch_size=batch_size,
    )


class Predictor:
    """Predicts or scores rows; the parameters are restored when it is made.

    Samples belong to their rows: they are the same however rows are batched and cut into shards.

    Args:
      trained: the model.
      mode: what is asked of it.
      decode: how predictions are made.
      batch_size: rows at a time, rounded up so that the devices have as many each.
    """

    def __init__(self, trained: TrainedModel, *, mode: Mode, decode: InferDecodingConfig, batch_size: int) -> None:
        self._mode, self._decode = mode, decode
        self._vocabulary = load_vocabulary(trained.vocabulary)
        self._trainer = model.trainer_for(trained.model, vocabulary=self._vocabulary, decode=decode)
        self._converter = converter_for(trained.model.architecture().family, trained.feature_lengths)
        self._lengths = trained.feature_lengths
        shards = self._trainer.partitioner.num_data_shards
        self._batch_size = -(-batch_size // shards) * shards
        self._params = parameters.read(trained.checkpoint, self._trainer.abstract_state.params)

    def results(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Result]]:
        """Yields each row, in order, with what came of it; a row with a flaw only says so.

        A prediction has the log-probability of its tokens under the model as its score; with beam search that over the
        length penalty. A score is that of the targets, EOS included.
        """
        for batch in _batches(iter(examples), usable=self._batch_size):
            results = iter(self._of_batch([example for example in batch if not example.flaw]))
            for example in batch:
                yield example, {"error": example.flaw} if example.flaw else next(results)

    def _of_batch(self, examples: Sequence[Example]) -> list[Result]:
        if not examples:
            return []
        batch, key = self._features(examples), jax.random.PRNGKey(self._decode.seed)
        method = "predict_batch_with_aux" if self._mode == "predict" else "score_batch"
        output = jax.device_get(self._trainer.inference_step(method, self._params, batch, key))
        if self._mode == "score":
            return [
                {"score": float(score), "target_tokens": len(example.tokens["targets"]), **_remarks(example)}
                for example, score in zip(examples, output, strict=False)
            ]
        decodes, aux = output
        rows = zip(examples, decodes, aux["scores"], strict=False)  # rows that fill up the batch come after all others
        return [{**self._prediction(tokens, scores), **_remarks(example)} for example, tokens, scores in rows]

    def _features(self, examples: Sequence[Example]) -> dict[str, np.ndarray]:
        """Returns the model's features of a whole batch, zeros behind the last row, and the numbers of the rows."""
        sides = {*examples[0].tokens, "targets"}  # a model that predicts reads how long its targets may be
        rows = {side: np.zeros((self._batch_size, self._lengths[side]), np.int32) for side in sides}
        row_ids = np.zeros(self._batch_size, np.int32)
        for index, example in enumerate(examples):
            row_ids[index] = example.number
            for side, ids in example.tokens.items():
                rows[side][index, : len(ids)] = ids
        features = self._converter.to_model(self._converter.from_task(rows))
        return {**features, "row_ids": row_ids} if self._mode == "predict" else features

    def _prediction(self, decodes: np.ndarray, scores: np.ndarray) -> Result:
        """Returns the best decode of a row; with `num_decodes` above 1 so many, the best first, or as many as ended."""
        found = []
        for tokens, score in zip(decodes[::-1], scores[::-1], strict=True):
            if found and score <= NO_HYPOTHESIS / 2:
                break
            cut = cut_at_eos(tokens.tolist(), eos_id=self._vocabulary.eos_id)
            text = self._vocabulary.decode(cut.ids)
            found.append({"prediction": text, "score": float(score), "reached_eos": cut.reached_eos})
        kept = found[: self._decode.num_decodes]
        return {**kept[0], **({"predictions": kept} if self._decode.num_decodes > 1 else {})}


def _remarks(example: Example) -> Result:
    return {"inputs_truncated": example.inputs_cut}


def _batches(examples: Iterator[Example], *, usable: int) -> Iterator[list[Example]]:
    """Yields rows in order, so many of each batch without a flaw, and at most as many with one before the last."""
    batch: list[Example] = []
    good = 0
    for example in examples:
        batch.append(example)
        good += not example.flaw
        if good == usable or len(batch) == 2 * usable:
            yield batch
            batch, good = [], 0
    if batch:
        yield batch
