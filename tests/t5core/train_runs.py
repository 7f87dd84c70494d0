"""Runs of `train` small enough for a unit test: one compiled trainer, batches that are a function of the step."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib

import jax
import numpy as np

from t5core.checkpoint_config import CheckpointConfig, SaveCheckpointConfig
from t5core.dataset_config import DatasetConfig
from t5core.models.encoder_decoder import EncoderDecoderModel
from t5core.train import train
from tests.t5core import tiny


class WithoutSeqIO(EncoderDecoderModel):
    """Names a converter without importing SeqIO, which takes longer than all these runs."""

    FEATURE_CONVERTER_CLS = staticmethod(lambda pack: f"converter, pack={pack}")


@functools.cache
def trainer():
    made = tiny.trainer()
    made.model.__class__ = WithoutSeqIO
    return made


class Numbers:
    """An endless dataset that notes which of its batches were taken."""

    def __init__(self):
        self.taken = []

    def __iter__(self):
        for step in itertools.count():
            self.taken.append(step)
            yield tiny.batch(step)


def config(name="numbers", **fields):
    settings = {
        "mixture_or_task_name": name,
        "task_feature_lengths": {"inputs": 6, "targets": 6},
        "split": "train",
        "batch_size": tiny.BATCH,
        "shuffle": False,
        "seed": 0,
    }
    return DatasetConfig(**{**settings, **fields})


def evaluation(cfg, shard_id, num_shards, eval_steps, converter_cls):
    """Two tasks of two and one batch, none of which is trained on."""
    return {"first": [tiny.batch(1000), tiny.batch(1001)], "second": [tiny.batch(1002)]}


def arguments(model_dir, **changes):
    settings = {
        "model": trainer().model,
        "train_dataset_cfg": config(),
        "train_eval_dataset_cfg": None,
        "infer_eval_dataset_cfg": None,
        "checkpoint_cfg": CheckpointConfig(save=SaveCheckpointConfig(period=3)),
        "partitioner": trainer().partitioner,
        "trainer_cls": lambda **_: trainer(),
        "model_dir": str(model_dir),
        "total_steps": 6,
        "eval_steps": 2,
        "eval_period": 0,
        "stats_period": 2,
        "random_seed": 0,
        "summarize_config_fn": lambda model_dir, writer, step: None,
        "get_dataset_fn": lambda *_: Numbers(),
        "train_eval_get_dataset_fn": evaluation,
        "verify_matching_vocabs_fn": None,
    }
    return {**settings, **changes}


def run(model_dir, **changes):
    """Trains; returns the last step and the state, on the host."""
    step, state = train(**arguments(model_dir, **changes))
    return step, jax.tree.map(np.array, jax.device_get(state))


def saving(period=3, **fields):
    return CheckpointConfig(save=SaveCheckpointConfig(period=period, **fields))


def steps_saved(model_dir):
    """Returns the steps of the native checkpoints."""
    folders = pathlib.Path(model_dir).glob("checkpoint_*/checkpoint")
    return sorted(int(folder.parent.name.removeprefix("checkpoint_")) for folder in folders)


def lines(model_dir, *names):
    file = pathlib.Path(model_dir, *names, "metrics.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
