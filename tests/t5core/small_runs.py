"""Runs of the stages without evaluations, small enough to be trained dozens of times in one process."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import jax
import numpy as np
import pytest

from t5core import build, schedule, training
from t5core.checkpoints import index
from t5core.config import load, yaml_text
from t5core.config.edges import ResolvedRun, RunInputs
from t5core.config.schema import PretrainConfig
from t5core.data.mixture import assemble_mixture
from t5core.data.vocabulary import ByteVocabulary
from t5core.rundir import RunDirectory
from t5core.stages import holding, initialise, segment
from t5core.trainer import Trainer
from tests.t5core import tiny
from tests.t5core.data import making

LENGTHS = {"inputs": 12, "targets": 8}
VOCABULARY = making.VOCABULARY.model_copy(update={"fingerprint": ByteVocabulary(extra_ids=0).fingerprint})


@functools.cache
def _trainer(what_it_depends_on, inputs_json):
    del what_it_depends_on
    return build._trainer.__wrapped__(inputs_json)


_FIRST = {}


def shared_trainer(inputs):
    """Returns one compiled trainer for all runs that train in the same way, whatever they are called."""
    settings, train = inputs.run.config, inputs.run.config.train
    parts = [settings.model, train.loss, train.optimizer, train.learning_rate]
    key = (*(part.model_dump_json() for part in parts), train.num_microbatches, inputs.run.seed)
    return _trainer(key, _FIRST.setdefault(key, inputs.model_dump_json()))


@contextlib.contextmanager
def settings_put_back():
    """Trains with shared trainers inside the block, and leaves JAX's settings as they were."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        with mock.patch.object(build, "trainer_of", shared_trainer):
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def config(root, *, run=None, model=None, data=None, **train):
    """Returns the settings of a run; keywords replace single ones."""
    settings = {
        "run": {"root": str(root), "seed": 5, **(run or {})},
        "model": {**tiny.SIZES, "vocab_size": 1024, "dropout_rate": 0.1, **(model or {})},
        "data": {
            "tasks": [{"name": "a", "files": ["x.tsv"], "objective": "supervised"}],
            "feature_lengths": LENGTHS,
            "vocabulary": {"kind": "bytes", "extra_ids": 0},
            **(data or {}),
        },
        "train": {
            "total_steps": 7,
            "segment_steps": 100,
            "checkpoint_period": 2,
            "eval_period": 0,
            "keep_checkpoints": None,
            "batch_size": 4,
            "learning_rate": {"base_learning_rate": 0.1, "warmup_steps": 4},
            **train,
        },
    }
    return load.validate(settings, PretrainConfig, origin="test")


@functools.cache
def _dataset(root, examples):
    return making.task_dataset(root, "a", making.examples(examples), parts={"d": f"a{examples}"})


def inputs(config, vocabulary=VOCABULARY, *, examples=30):
    """Returns a claimed run on a dataset that is written directly; the target of example i begins with i + 2."""
    run = load.resolve(config)
    RunDirectory(run.uri).claim(run, identity=run.fingerprint, config_text=yaml_text.dump(run.config.model_dump()))
    task = _dataset(run.config.run.root, examples)
    mixture = assemble_mixture(run, vocabulary=VOCABULARY, tasks=[task])
    return RunInputs(run=run, vocabulary=vocabulary, tasks=[task], mixture=mixture)


def segments(run: ResolvedRun):
    """Returns the ends of the segments, as the workflow chains them."""
    return [end for _, end in schedule.of(run.config.train).segments(run.first_step)]


def train(inputs):
    """Trains a run through the stages to its end; returns its digest."""
    try:
        with settings_put_back():
            cursor = initialise.initialise(inputs)
            for end in segments(inputs.run):
                record = segment.train_segment(inputs, cursor, end)
                cursor = cursor.model_copy(update={"checkpoint": record.checkpoint})
    finally:
        holding.release(inputs.run.uri)
    return cursor.checkpoint.digest


def begin(inputs):
    """Gives a run its first checkpoint."""
    try:
        with settings_put_back():
            initialise.initialise(inputs)
    finally:
        holding.release(inputs.run.uri)


class KilledError(BaseException):
    """What no code of a run may catch."""


def interrupt(inputs, *, at):
    """Trains until the batch of step `at` is asked for, and no further."""

    class Reader(training.BatchReader):
        def batch(self, step, **options):
            if step == at:
                raise KilledError
            return super().batch(step, **options)

    with mock.patch.object(training, "BatchReader", Reader), pytest.raises(KilledError):
        train(inputs)


def batches(inputs):
    """Trains a run to its end; returns the targets that each step was trained on, of this call."""
    seen = {}

    def noting(trainer, state, batch):
        seen[int(state.step)] = np.array(batch["decoder_target_tokens"])
        return train_step(trainer, state, batch)

    train_step = Trainer.train_step
    with mock.patch.object(Trainer, "train_step", noting):
        train(inputs)
    return seen


def record(run: ResolvedRun, step):
    """Returns what the checkpoint of a step says of itself."""
    return index.read_record(RunDirectory(run.uri).checkpoints_uri, step)
