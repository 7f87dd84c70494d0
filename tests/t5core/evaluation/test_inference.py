"""Inference evaluation: every example once, in order, whatever the batch size."""

import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.evaluation import results
from t5core.evaluation.inference import InferenceEvaluator
from t5core.models.decoding import temperature_sample
from tests.t5core import tiny, train_runs
from tests.t5core.fake_evaluator import EXAMPLES, FakeEvaluator, examples


def evaluated(batch_size, *, trainer=None, **changes):
    evaluator = InferenceEvaluator(
        train_runs.config("fake", split="validation", batch_size=batch_size, seed=7),
        evaluator_cls=changes.get("evaluator_cls", FakeEvaluator),
        trainer=trainer or train_runs.trainer(),
        feature_converter_cls=lambda pack: f"converter, pack={pack}",
        log_dir="logs",
    )
    pauses = []
    pending = evaluator.evaluate(params(), 3, between_batches=lambda: pauses.append(1))
    return evaluator, FakeEvaluator.made[-1], pending, len(pauses)


def params():
    return train_runs.trainer().initial_state().params


@pytest.fixture(scope="module")
def one_by_one():
    return evaluated(1)[1].outputs


@pytest.mark.parametrize("batch_size", [4, 9, 16])
def test_each_example_is_there_once_with_the_same_output_at_any_batch_size(one_by_one, batch_size):
    evaluator, fake, pending, pauses = evaluated(batch_size)
    assert evaluator.tasks == ("fake",)
    for kind in ("PREDICTION", "PREDICTION_WITH_AUX"):
        assert [index for index, _ in fake.outputs[kind]] == list(range(EXAMPLES))
        for (_, tokens), (_, expected) in zip(fake.outputs[kind], one_by_one[kind], strict=True):
            np.testing.assert_array_equal(tokens, expected)
    scores = [score for _, score in fake.outputs["SCORE"]]
    np.testing.assert_allclose(scores, [score for _, score in one_by_one["SCORE"]], rtol=1e-5)
    np.testing.assert_allclose(fake.outputs["aux"]["scores"], one_by_one["aux"]["scores"], rtol=1e-5)
    assert pending.step == 3
    assert pending.result()["fake"]["examples"] == EXAMPLES
    assert pauses == 3 * -(-EXAMPLES // batch_size)


def test_a_sample_belongs_to_its_example_whatever_the_batch_size():
    drawing = tiny.trainer(decode_fn=functools.partial(temperature_sample, topk=0))
    outputs = [evaluated(batch_size, trainer=drawing)[1].outputs for batch_size in (4, 9)]
    first, second = ([row.tolist() for _, row in found["PREDICTION"]] for found in outputs)
    assert first == second
    assert len({tuple(row) for row in first}) > 1, "each has draws of its own"


def test_a_decode_function_that_cannot_tell_rows_apart_gets_a_key_for_each_batch():
    def decode_fn(*, inputs, num_decodes, decode_rng, **_):
        draws = jax.random.randint(decode_rng, (*inputs.shape[:1], num_decodes, inputs.shape[1]), 2, tiny.VOCAB)
        return draws, jnp.zeros(draws.shape[:2])

    trainer = tiny.trainer(decode_fn=decode_fn)
    first, again = (evaluated(4, trainer=trainer)[1].outputs["PREDICTION"] for _ in range(2))
    np.testing.assert_array_equal([row for _, row in first], [row for _, row in again])
    batches = {tuple(np.ravel([row for _, row in first[start : start + 4]]).tolist()) for start in (1, 5)}
    assert len(batches) == 2


def test_outputs_are_those_of_the_model(one_by_one):
    rows = dict(examples())
    batch = {name: np.stack([rows[i][name] for i in range(EXAMPLES)]) for name in rows[0]}
    scores = jax.jit(train_runs.trainer().model.score_batch)(params(), batch)
    np.testing.assert_allclose([score for _, score in one_by_one["SCORE"]], scores, rtol=1e-5)


def test_the_evaluator_gets_the_arguments_of_seqio():
    evaluator, fake, _, _ = evaluated(4)
    assert fake.arguments == {
        "mixture_or_task_name": "fake",
        "feature_converter": "converter, pack=False",
        "eval_split": "validation",
        "use_cached": False,
        "seed": 7,
        "sequence_length": {"inputs": 6, "targets": 6},
        "log_dir": "logs",
        "use_memory_cache": True,
    }
    evaluator.close()
    assert fake.closed


def test_the_share_of_predictions_that_met_the_length_limit_is_reported():
    _, fake, pending, _ = evaluated(4)
    without_eos = [1 not in np.asarray(row).tolist() for _, row in fake.outputs["PREDICTION"]]
    assert pending.result()["fake"]["length_limit_fraction"] == np.mean(without_eos)


class WithoutExamples(FakeEvaluator):
    def evaluate(self, *, predict_fn, **_):
        predict_fn([])


def test_a_task_without_examples_is_an_error():
    with pytest.raises(errors.DataError, match="a task of the inference evaluation has no examples in its split"):
        evaluated(4, evaluator_cls=WithoutExamples)


def test_metrics_of_any_number_type_are_written_and_texts_are_not(tmp_path):
    metrics = {"f1": np.float32(0.5), "count": 3, "bleu": types.SimpleNamespace(value=7), "remark": "a text"}
    for step in (2, 4, 4):
        results.write_metrics(str(tmp_path), step, {"task": metrics})
    lines = [json.loads(line) for line in (tmp_path / "task" / "metrics.jsonl").read_text().splitlines()]
    expected = {"eval/f1": 0.5, "eval/count": 3.0, "eval/bleu": 7.0}
    assert lines == [{"step": 2, **expected}, {"step": 4, **expected}]
    assert list((tmp_path / "task").glob("events.*"))


class Dataset:
    def as_numpy_iterator(self):
        for i in range(2):
            yield {"inputs": np.arange(3), "inputs_pretokenized": f"ä\n{i}".encode(), "number": np.int64(i)}


def test_predictions_are_a_line_for_each_example(tmp_path):
    logger = results.PredictionsLogger(str(tmp_path))
    logger(
        task_name="task",
        step=12,
        metrics={},
        dataset=Dataset(),
        inferences={"prediction": ["yes", "no"], "score": np.float32([1, 2]), "aux_value": {"scores": np.arange(2)}},
        targets=["yes", "yes"],
    )
    lines = [json.loads(line) for line in (tmp_path / "task-000012.jsonl").read_text().split("\n") if line]
    first = {"input": {"inputs_pretokenized": "ä\n0", "number": 0}, "target": "yes", "prediction": "yes"}
    assert lines[0] == {**first, "score": 1.0, "aux_scores": 0}
    assert len(lines) == 2
