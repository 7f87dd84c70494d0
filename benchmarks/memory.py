"""What the data stages weigh on a text file of any size: `make measure-memory SIZE=2e9`."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import tempfile
import time
from collections.abc import Iterator

from benchmarks.scales import Scales
from t5core import progress
from t5core.config import load
from t5core.config.edges import TaskRequest
from t5core.config.schema import PretrainConfig
from t5core.data import corpus
from t5core.data.materialise import materialise_task
from t5core.data.mixture import assemble_mixture
from t5core.data.vocabulary_training import build_vocabulary


def main() -> None:
    """Writes the file, takes it through the stages, and prints seconds and bytes of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=2e9, help="bytes of the file")
    parser.add_argument("--folder", help="where to work; it takes about three times the size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="measure-memory-", dir=arguments.folder) as folder:
        file = pathlib.Path(folder) / "text.txt"
        _write(file, int(arguments.size))
        _measure(folder, file)


def _write(file: pathlib.Path, size: int) -> None:
    """Writes lines of words that occur in Python's documentation; no two lines are alike."""
    words = " ".join(document.columns["text"] for document in corpus.documents("python_docs")).split()
    draw, number, written = random.Random(0), 0, 0
    with open(file, "wb") as handle:
        while written < size:
            begin = draw.randrange(len(words) - 800)
            line = " ".join([str(number), *words[begin : begin + draw.randint(10, 800)]])
            written += handle.write(f"{line}\n".encode())
            number += 1
    progress.say(f"{written / 1e6:.0f} MB of text in {number} lines")


def _measure(folder: str, file: pathlib.Path) -> None:
    data = {
        "tasks": [{"name": "text", "files": [str(file)]}],
        "feature_lengths": {"inputs": 512, "targets": 114},
        "vocabulary": {"size": 2000, "extra_ids": 100},
    }
    settings = {"run": {"root": folder, "name": "memory", "seed": 0}, "data": data, "model": {"vocab_size": 2176}}
    run = load.resolve(PretrainConfig.model_validate(settings))
    with _weighed("vocabulary"):
        vocabulary = build_vocabulary(run).reference
    with _weighed("tokenise"):
        dataset = materialise_task(TaskRequest(run=run, vocabulary=vocabulary, task="text"))
    with _weighed("assemble"):
        mixture = assemble_mixture(run, vocabulary=vocabulary, tasks=[dataset])
    progress.say(f"{dataset.rows} examples in {mixture.rows} rows")


@contextlib.contextmanager
def _weighed(stage: str) -> Iterator[None]:
    """Prints how long the block takes, and the most that all processes hold together meanwhile."""
    began = time.monotonic()
    with Scales() as scales:
        yield
    progress.say(f"{stage}: {time.monotonic() - began:.0f} s, {scales.peak_bytes / 1e6:.0f} MB at most")


if __name__ == "__main__":
    main()
