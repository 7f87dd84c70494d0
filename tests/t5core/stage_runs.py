"""A run in stages, small enough for a unit test: datasets written directly, then the stages called as the tasks do."""

from __future__ import annotations

import contextlib

import jax

from t5core import schedule
from t5core.config.edges import ResolvedRun, RunInputs
from t5core.config.schema import PretrainConfig
from t5core.data.mixture import assemble_mixture
from t5core.data.vocabulary import ByteVocabulary
from t5core.rundir import RunDirectory
from t5core.stages import check, evaluate, holding, initialise, segment
from tests.t5core import tiny
from tests.t5core.data import making

LENGTHS = {"inputs": 12, "targets": 8}
SCORED = {"objective": "supervised", "metrics": ["sequence_accuracy"]}
VOCABULARY = making.VOCABULARY.model_copy(update={"fingerprint": ByteVocabulary(extra_ids=0).fingerprint})


@contextlib.contextmanager
def settings_put_back():
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def inputs_in(root, **changes):
    """Returns a run on two tasks, whose datasets are written directly; `changes` replace whole sections."""
    config = PretrainConfig.model_validate(
        {
            "run": {"root": root, "seed": 5},
            "model": {**tiny.SIZES, "vocab_size": 1024, "dropout_rate": 0.1},
            "data": {
                "tasks": [
                    {"name": "a", "files": ["x.txt"], "rate": 1.0},
                    {**SCORED, "name": "b", "files": ["x.tsv"], "rate": 1.0},
                ],
                "feature_lengths": LENGTHS,
            },
            "train": {
                "total_steps": 10,
                "segment_steps": 5,
                "checkpoint_period": 3,
                "keep_checkpoints": None,
                "eval_period": 4,
                "stats_period": 2,
                "batch_size": 4,
                "learning_rate": {"base_learning_rate": 0.1, "warmup_steps": 4},
                "actions": [
                    {"name": "early_stopping", "task": "a", "patience": 3},
                    {"name": "terminate_on_nan", "task": "mixture"},
                    {"name": "keep_best", "task": "b", "mode": "max"},
                    {"name": "budget", "target_tokens": 10**6},
                ],
            },
            "evaluate": {"batch_size": 4, "decode": {"max_examples": 4}},
            **changes,
        }
    )
    run = ResolvedRun(uri=f"{root}/run", config=config, fingerprint="r")
    RunDirectory(run.uri).claim(run, identity="r", config_text="")
    tasks = tuple(
        making.task_dataset(
            root,
            name,
            making.examples(30, seed=seed),
            validation=making.examples(5, seed=seed + 10),
            parts={"d": name},
            texts=[{"inputs_pretokenized": f"{name} {i}", "targets_pretokenized": "x"} for i in range(5)],
        )
        for seed, name in enumerate(("a", "b"))
    )
    mixture = assemble_mixture(run, vocabulary=VOCABULARY, tasks=tasks)
    return RunInputs(run=run, vocabulary=VOCABULARY, tasks=tasks, mixture=mixture)


def through_the_stages(inputs):
    cursor = initialise.initialise(inputs)
    evaluations = {}
    for _, end in schedule.of(inputs.run.config.train).segments():
        record = segment.train_segment(inputs, cursor, end)
        evaluation = evaluate.evaluate(inputs, record)
        evaluations |= {evaluation.step: evaluation.metrics} if evaluation.metrics else {}
        cursor = check.check_actions(inputs, cursor, record, evaluation)
    holding.release(inputs.run.uri)
    return evaluations
