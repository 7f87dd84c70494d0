"""One of two processes with a device each, which train together; prints what came of each scene as a line of JSON.

Run as `python -m tests.t5core.two_process_train PORT PROCESS FOLDER`.
"""

import json
import math
import os
import pathlib
import signal
import sys
import time
from unittest import mock

import jax

from t5core import agreement
from t5core.actions.base import ActionMode, BaseAction
from t5core.checkpoints import digest, index
from t5core.config.edges import RunInputs
from t5core.evaluation import checkpoint
from t5core.metrics.writer import MetricWriter
from t5core.train import run_actions, train
from tests.t5core import stage_runs, tiny, train_runs
from tests.t5core.fake_evaluator import FakeEvaluator


class Answer(BaseAction):
    """Answers what it was told to, or fails."""

    def __init__(self, answer):
        self.answer = answer

    def run(self, train_state, metrics_by_task):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def outcome(call):
    """Returns what `call` gives, or the type of what it raises and the beginning of the message."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def asked(action, metrics):
    """The first process alone has metrics."""
    mine = metrics if jax.process_index() == 0 else None
    return outcome(lambda: run_actions(ActionMode.TRAIN, {"TRAIN": [Answer(action)]}, None, mine))


class Rows:
    """This process's rows of each batch; `count` batches on the processes, endless with None."""

    def __init__(self, shard_id, num_shards, counts=None, on_batch=lambda step: None, first=0):
        share = tiny.BATCH // num_shards
        self.rows = slice(shard_id * share, (shard_id + 1) * share)
        self.count = None if counts is None else counts[jax.process_index()]
        self.on_batch, self.first, self.seen = on_batch, first, []

    def __iter__(self):
        step = 0
        while self.count is None or step < self.count:
            self.on_batch(step)
            whole = tiny.batch(self.first + step)
            yield {name: values[self.rows] for name, values in whole.items()}
            step += 1


def trained(folder, **changes):
    evaluates = {
        "train_eval_dataset_cfg": train_runs.config("val", split="validation"),
        "train_eval_get_dataset_fn": lambda cfg, shard, shards, *_: {"first": Rows(shard, shards, [3, 3], first=1000)},
        "get_dataset_fn": lambda cfg, shard, shards, _: Rows(shard, shards),
    }
    step, state = train(**train_runs.arguments(folder, **{**evaluates, **changes}))
    return [step, digest.state_digest(digest.leaf_digests(state.as_tree()))]


def evaluated_in_the_chain(folder):
    """Both evaluate the checkpoint that a single process left; tells the metrics and how many files it wrote."""
    inputs = RunInputs.model_validate_json(pathlib.Path(folder, "inputs.json").read_text())
    writing = mock.patch.object(checkpoint, "MetricWriter", wraps=MetricWriter)
    with stage_runs.settings_put_back(), writing as writer:
        metrics = checkpoint.evaluate(inputs, index.reference(f"{inputs.run.uri}/checkpoints", 0))
    return [metrics, writer.call_count]


def told_to_stop(folder):
    """The second process is told to stop; both do, at one step, and go on together."""

    def on_batch(step):
        if step == 5 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    changes = {"total_steps": 40, "stats_period": 100, "checkpoint_cfg": train_runs.saving(100)}
    rows = {"get_dataset_fn": lambda cfg, shard, shards, _: Rows(shard, shards, on_batch=on_batch)}
    stopped = outcome(lambda: trained(f"{folder}/stopped", **changes, **rows))
    return [stopped, trained(f"{folder}/stopped", **changes), trained(f"{folder}/straight", **changes)]


def left_alone(folder):
    """The second process is killed."""

    def on_batch(step):
        if step == 20 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    rows = {"get_dataset_fn": lambda cfg, shard, shards, _: Rows(shard, shards, on_batch=on_batch)}
    began = time.monotonic()
    failure = outcome(lambda: trained(f"{folder}/alone", total_steps=10**6, stats_period=50, **rows))
    return [failure, time.monotonic() - began]


def main(port, process, folder):
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process, heartbeat_timeout_seconds=10)
    metrics = {"train": {"loss": 1.0}}
    inferring = {"infer_eval_dataset_cfg": train_runs.config("fake"), "inference_evaluator_cls": FakeEvaluator}
    scenes = {
        "stop": lambda: asked(True, metrics),
        "go on": lambda: asked(False, metrics),
        "no metrics": lambda: asked(True, None),
        "failure": lambda: asked(KeyError("broken"), metrics),
        "trained": lambda: trained(f"{folder}/run", eval_period=2, **inferring),
        "examples": lambda: [index for index, _ in FakeEvaluator.made[-1].outputs["PREDICTION"]],
        "scores": lambda: [score for _, score in FakeEvaluator.made[-1].outputs["SCORE"]],
        "with orbax": lambda: trained(f"{folder}/orbax", use_orbax=True),
        "uneven": lambda: outcome(
            lambda: trained(f"{folder}/uneven", get_dataset_fn=lambda c, i, n, _: Rows(i, n, [5, 4]))
        ),
        "uneven evaluation": lambda: outcome(
            lambda: trained(
                f"{folder}/val", eval_steps=9, train_eval_get_dataset_fn=lambda c, i, n, *_: {"v": Rows(i, n, [5, 4])}
            )
        ),
        "numbers": lambda: agreement.numbers_of_primary(
            lambda: {"third": 1 / 3, "nan": math.nan, "process": jax.process_index()}
        ),
        "no numbers": lambda: outcome(lambda: agreement.numbers_of_primary(lambda: {"a": 1 / 0})),
        "chain": lambda: evaluated_in_the_chain(folder),
        "told to stop": lambda: told_to_stop(folder),
        "left alone": lambda: left_alone(folder),  # the last one
    }
    for name, scene in scenes.items():
        sys.stdout.write(json.dumps({name: scene()}) + "\n")
        sys.stdout.flush()
    os._exit(0)  # an ordinary exit waits for the one that was killed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
