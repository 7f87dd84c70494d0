"""An evaluator with the interface of SeqIO's, without SeqIO: nine numbered examples of one task."""

from __future__ import annotations

import concurrent.futures
import types

from tests.t5core import tiny

EXAMPLES = 9


def examples():
    """Returns enumerated examples, last first: the index decides, not the order."""
    batch = tiny.batch(77, rows=EXAMPLES)
    rows = [{name: values[i] for name, values in batch.items()} for i in range(EXAMPLES)]
    return list(reversed(list(enumerate(rows))))


class FakeEvaluator:
    """Asks for every kind of output and gives them back; `made` are all evaluators, `outputs` the last ones."""

    made: list = []

    def __init__(self, **arguments):
        self.arguments, self.outputs, self.closed = arguments, None, False
        self.eval_tasks = [types.SimpleNamespace(name="fake")]
        self.made.append(self)

    def evaluate(self, *, compute_metrics, step, predict_fn, score_fn, predict_with_aux_fn):
        tokens, aux = predict_with_aux_fn(examples())
        self.outputs = {
            "PREDICTION": sorted(predict_fn(examples()), key=lambda pair: pair[0]),
            "SCORE": sorted(score_fn(examples())),
            "PREDICTION_WITH_AUX": sorted(tokens, key=lambda pair: pair[0]),
            "aux": aux,
        }
        predictions = [row for _, row in self.outputs["PREDICTION"]]
        future = concurrent.futures.Future()
        metrics = {"examples": float(len(predictions)), "score": sum(score for _, score in self.outputs["SCORE"])}
        future.set_result({"fake": metrics} if compute_metrics else None)
        return future, {"fake": {"PREDICTION": predictions}}

    def close(self):
        self.closed = True
