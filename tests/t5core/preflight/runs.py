"""Runs on a text small enough for a test of their preflight, which trains nothing."""

from __future__ import annotations

import pathlib

from t5core.config import load
from t5core.config.edges import DatasetRef, ResolvedRun, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.data import materialise, vocabulary_training
from t5core.preflight import pools
from t5core.preflight.record import Devices
from tests.t5core import tiny
from tests.t5core.data import making
from tests.workflows.command_line import WORDS

ONE_DEVICE = Devices(name="a test", count=1, memory_bytes=pools.GIB)


def write_text(folder: pathlib.Path, documents: int = 120) -> None:
    """Writes numbered lines of unequal length, as text and as a table."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 3 + i % 30)) + f" {i}" for i in range(documents)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    table = [f"{' '.join(line.split()[: 1 + n % 20])}\t{line}" for n, line in enumerate(lines)]
    (folder / "pairs.tsv").write_text("short\tlong\n" + "\n".join(table) + "\n")


def settings(folder: pathlib.Path) -> dict:
    """Returns the settings of a run on the text in `folder`: bytes, so that no vocabulary has to be trained."""
    text = {"name": "text", "files": [f"{folder}/lines.txt"], "validation_fraction": 0.1}
    pairs = {
        "name": "pairs",
        "files": [f"{folder}/pairs.tsv"],
        "objective": "supervised",
        "inputs": "say {short}",
        "targets": "{long}",
        "validation_fraction": 0.1,
    }
    return {
        "run": {"name": "tiny", "root": str(folder / "runs"), "seed": 3},
        "model": {**tiny.SIZES, "vocab_size": 384},
        "data": {
            "tasks": [text, pairs],
            "feature_lengths": {"inputs": 48, "targets": 32},
            "vocabulary": {"kind": "bytes", "extra_ids": 100},
        },
        "train": {
            "total_steps": 30,
            "segment_steps": 10,
            "batch_size": 4,
            "checkpoint_period": 10,
            "eval_period": 10,
            "learning_rate": {"base_learning_rate": 0.1, "warmup_steps": 10},
        },
    }


def datasets_of(run: ResolvedRun) -> tuple[VocabularyRef, list[DatasetRef]]:
    """Writes what the first stages of `run` would write, where they would, without SeqIO: 40 examples of each task."""
    vocabulary = vocabulary_training.build_vocabulary(run).reference
    lengths = run.config.data.feature_lengths
    tasks = [
        making.task_dataset(
            run.config.run.root,
            task.name,
            making.examples(40, longest=lengths),
            lengths=lengths,
            parts=materialise.task_parts(run, task, vocabulary),
        )
        for task in run.config.data.tasks
    ]
    return vocabulary, tasks


def run_in(folder: pathlib.Path, *overrides: str) -> ResolvedRun:
    """Returns the run on the text in `folder`, with overrides."""
    changed = load.with_overrides(settings(folder), overrides)
    return load.resolve(PretrainConfig.model_validate(changed))
