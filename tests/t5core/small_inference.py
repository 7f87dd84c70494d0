"""A trained run small enough to predict with in every test, and jobs over rows of files."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
from unittest import mock

import jax
import pytest

from t5core import build
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.config import load, yaml_text
from t5core.config.infer_schema import InferConfig, InferDecodingConfig
from t5core.config.schema import ModelConfig, PretrainConfig
from t5core.data.vocabulary import ByteVocabulary
from t5core.inference import model, predictor
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import holding, infer

VOCABULARY = ByteVocabulary(extra_ids=0)
LENGTHS = {"inputs": 24, "targets": 12}
SIZES = {"emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}


def run(
    root, *, name="small", lengths=LENGTHS, step=7, scale=1.0, fingerprint=VOCABULARY.fingerprint, **sizes
) -> pathlib.Path:
    """Writes the directory of a run whose parameters are drawn and never trained."""
    settings = {
        "run": {"root": str(root), "name": name},
        "model": {**SIZES, "vocab_size": 384, **sizes},
        "data": {
            "tasks": [{"name": "a", "files": ["x.txt"]}],
            "feature_lengths": lengths,
            "vocabulary": {"kind": "bytes", "extra_ids": 0},
        },
    }
    resolved = load.resolve(load.validate(settings, PretrainConfig, origin="test"))
    directory = RunDirectory(resolved.uri)
    directory.claim(resolved, identity="i", config_text=yaml_text.dump(resolved.config.model_dump(mode="json")))
    directory.write_stage(
        StageRecord(stage="vocabulary", reused=True, reason="", seconds=0, fingerprint=VOCABULARY.fingerprint, uri="")
    )
    trainer = trainer_of(resolved.config.model)
    provenance = Provenance(
        seed=0,
        config_fingerprint="c",
        dataset_fingerprint="d",
        vocabulary_fingerprint=fingerprint,
        schedule=SchedulePosition(total_steps=step, batch_size=1),
    )
    state = trainer.initial_state().as_tree()
    state["params"] = jax.tree.map(lambda leaf: leaf * scale, state["params"])
    with CheckpointStore(directory.checkpoints_uri) as store:
        store.save(step, state, provenance)
    return pathlib.Path(directory.uri)


def trainer_of(config: ModelConfig, **decode):
    return model.trainer_for(config, vocabulary=VOCABULARY, decode=InferDecodingConfig(**decode))


def write_rows(folder, count=23) -> pathlib.Path:
    """Writes rows no two of which are alike, with fields that no template names."""
    file = pathlib.Path(folder) / "rows.jsonl"
    rows = [{"id": 100 + i, "text": f"row {i} of " + "xyz"[i % 3] * (i % 7), "want": f"t{i}"} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def config(root, checkpoint, file, *, source=None, **settings) -> InferConfig:
    """Returns a job of predictions; keywords replace settings."""
    whole = {
        "run": {"root": str(root), "name": settings.pop("name", "out")},
        "checkpoint": str(checkpoint),
        "source": {"files": [str(file)], "inputs": "{text}", **(source or {})},
        "batch_size": 4,
        "shard_rows": 8,
        **settings,
    }
    return load.validate(whole, InferConfig, origin="test")


def finish(config, overrides=()):
    """Runs the stages one after another; returns the summary."""
    with shared_predictors():
        job = infer.resolve(config, overrides)
        try:
            summary, _ = infer.gather(job, [infer.work_through(request) for request in infer.plan(job)])
        finally:
            holding.release(job.uri)
    return summary


_predictor = functools.cache(predictor._predictor.__wrapped__)


@contextlib.contextmanager
def shared_predictors():
    """Leaves JAX's settings as they are, and shares compiled predictors among jobs."""
    with (
        mock.patch.object(build, "use_compilation_cache", return_value=None),
        mock.patch.object(predictor, "_predictor", _predictor),
    ):
        yield


def lines(summary):
    """Returns the results."""
    return [json.loads(line) for line in pathlib.Path(summary.predictions).read_text().splitlines()]


def refused(config, overrides=(), kind=ValueError):
    """Returns the one line that a job is refused with."""
    with pytest.raises(kind) as refusal:
        finish(config, overrides)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)
