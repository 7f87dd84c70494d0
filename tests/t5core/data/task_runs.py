"""Small runs whose tasks are materialised for tests."""

from t5core.config import load
from t5core.config.edges import TaskRequest
from t5core.config.schema import PretrainConfig
from t5core.data import store
from t5core.data.materialise import materialise_task
from t5core.data.vocabulary_training import build_vocabulary
from t5core.evaluation import task_metrics

BYTES = {"kind": "bytes", "extra_ids": 125}


def run_of(root, tasks, *, rows=384, vocabulary=None, seed=0, train=None, **data):
    settings = {
        "run": {"root": str(root), "name": "r", "seed": seed},
        "model": {"vocab_size": rows},
        "data": {
            "tasks": tasks,
            "feature_lengths": {"inputs": 48, "targets": 32},
            "vocabulary": vocabulary or BYTES,
            **data,
        },
        "train": train or {},
    }
    return load.resolve(PretrainConfig.model_validate(settings))


def request_of(run, task=None):
    reference = build_vocabulary(run).reference
    return TaskRequest(run=run, vocabulary=reference, task=task or run.config.data.tasks[0].name)


def made(root, tasks, task=None, **settings):
    return materialise_task(request_of(run_of(root, tasks, **settings), task))


def rows_of(dataset, split="train"):
    reader = store.RowReader(dataset.uri, split=split)
    return reader.read(0, reader.num_rows)


def raw(dataset):
    return task_metrics.examples(dataset.uri, count=store.RowReader(dataset.uri, split="validation").num_rows)
