"""Tokenising against SeqIO's cache script, and reading against training: `make benchmark-data`.

Both sides tokenise the same lines with the same vocabulary, each in processes of its own that are timed from start to
end, and have to come to the same number of tokens. SeqIO's script stops there, in TFRecords without EOS; ours goes on
to the checked dataset that training reads. What training reads is measured on the demo's own mixture.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from t5core import progress
from t5core.config import load
from t5core.config.edges import ResolvedRun, TaskRequest
from t5core.config.schema import PretrainConfig
from t5core.data import corpus, store
from t5core.data.converters import converter_for
from t5core.data.manifest import dataset_uri
from t5core.data.materialise import materialise_task, task_parts
from t5core.data.mixture import assemble_mixture
from t5core.data.reader import BatchReader
from t5core.data.vocabulary_training import build_vocabulary

_FILES = 8
_EXTRA_IDS = 100
_DEMO = "workflows/configs/demo.yaml"
_SECONDS_OF_READING = 5.0


def main() -> None:
    """Measures and prints, a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--words", type=int, default=200, help="the most in a document, at least 20")
    parser.add_argument("--seqio-python", default=".venv-benchmark/bin/python", help="an interpreter with Beam")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark-data-") as folder:
        size = _write_documents(pathlib.Path(folder), arguments.documents, words=arguments.words)
        progress.say(
            f"{arguments.documents} documents of {size / arguments.documents:.0f} bytes, inputs and targets, "
            f"in {_FILES} files"
        )
        _compare_tokenising(pathlib.Path(folder), arguments)
    _compare_reading()


def _compare_tokenising(folder: pathlib.Path, arguments: argparse.Namespace) -> None:
    count = arguments.documents
    run = _run_over(folder, words=arguments.words)
    vocabulary = build_vocabulary(run).reference
    request = TaskRequest(run=run, vocabulary=vocabulary, task="benchmark")
    ours = _cost([sys.executable, "-m", "benchmarks.materialise_request", request.model_dump_json()])
    script = [
        arguments.seqio_python,
        "-m",
        "seqio.scripts.cache_tasks_main",
        "--tasks=benchmark",
        f"--output_cache_dir={folder}/c",
    ]
    environment = {"BENCHMARK_MODEL": vocabulary.uri, "BENCHMARK_FILES": f"{folder}/*.tsv", "PYTHONPATH": os.getcwd()}
    theirs = _cost([*script, "--module_import=benchmarks.seqio_task"], environment=environment)
    _check_same(run, request, folder)
    progress.say(theirs.told("SeqIO's cache script, Beam's DirectRunner", count))
    progress.say(ours.told("ours", count))
    times, cheaper = theirs.wall / ours.wall, theirs.processors / ours.processors
    progress.say(f"  ours is {times:.1f} times as fast, and takes a {cheaper:.1f}th of the CPU time")


def _write_documents(folder: pathlib.Path, count: int, *, words: int) -> int:
    """Writes .tsv files of up to `words` words from Python's documentation a line, and returns their bytes."""
    all_words = " ".join(document.columns["text"] for document in corpus.documents("python_docs")).split()
    draw, size = random.Random(0), 0
    for file in range(_FILES):
        with open(folder / f"{file}.tsv", "w", encoding="utf-8") as handle:
            handle.write("inputs\ttargets\n")
            for _ in range(file, count, _FILES):
                begin = draw.randrange(len(all_words) - words)
                text = all_words[begin : begin + draw.randint(20, words)]
                size += handle.write("\t".join((" ".join(text[:-10]), " ".join(text[-10:]))) + "\n")
    return size


def _run_over(folder: pathlib.Path, *, words: int) -> ResolvedRun:
    task = {"name": "benchmark", "files": [f"{folder}/*.tsv"], "objective": "supervised", "validation_fraction": 0}
    data = {
        "tasks": [task],
        "feature_lengths": {"inputs": 4 * words, "targets": 384},  # nothing is cut
        "vocabulary": {"size": 2000, "extra_ids": _EXTRA_IDS},
        "allow_missing_split": True,
    }
    settings = {
        "run": {"root": str(folder), "name": "benchmark", "seed": 0},
        "data": data,
        "model": {"vocab_size": 2176},
    }
    return load.resolve(PretrainConfig.model_validate(settings))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cost:
    """Seconds from start to end, and of processors, of a command and all that it started."""

    wall: float
    processors: float

    def told(self, name: str, documents: int) -> str:
        return f"  {name:42} {self.wall:7.1f} s {self.processors:9.1f} s CPU {documents / self.wall:8.0f} documents/s"


def _cost(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> _Cost:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Cost(wall=time.monotonic() - began, processors=processors)


def _check_same(run: ResolvedRun, request: TaskRequest, folder: pathlib.Path) -> None:
    """Ends the benchmark unless both sides made the same examples of the same number of tokens."""
    task = run.config.data.tasks[0]
    uri = dataset_uri(run.config.run.root, task.name, task_parts(run, task, request.vocabulary))
    record = store.read_manifest(uri).splits["train"]
    stats = json.loads((folder / "c" / "benchmark" / "stats.train.json").read_text())
    ours = {side: tokens - record.rows for side, tokens in record.tokens.items()}  # without EOS
    theirs = {side: stats[f"{side}_tokens"] for side in ours}
    if (record.rows, ours) != (stats["examples"], theirs):
        sys.exit(f"the two sides differ: {record.rows} examples of {ours}, against {stats['examples']} of {theirs}")


def _compare_reading() -> None:
    from t5core.preflight.probe import probe

    config = PretrainConfig.model_validate(load.read_file(_DEMO))
    run = load.resolve(config)
    vocabulary = build_vocabulary(run).reference
    tasks = [
        materialise_task(TaskRequest(run=run, vocabulary=vocabulary, task=task.name)) for task in config.data.tasks
    ]
    mixture = assemble_mixture(run, vocabulary=vocabulary, tasks=tasks)
    converter = converter_for(config.model.architecture().family, config.data.feature_lengths)
    reader = BatchReader(mixture.uri, batch_size=config.train.batch_size, converter=converter)
    epoch = int(reader.steps_per_epoch)
    in_order, permuted = _rows_per_second(reader, 0, epoch), _rows_per_second(reader, epoch + 1, 2 * epoch)
    trained = config.train.batch_size / probe(run).seconds_per_step
    progress.say(f"the demo's mixture of {reader.num_rows} rows, {config.train.batch_size} a batch")
    progress.say(f"  training       {trained:8.0f} rows/s")
    progress.say(f"  first epoch    {in_order:8.0f} rows/s read, {in_order / trained:.0f} times as many")
    progress.say(f"  later epochs   {permuted:8.0f} rows/s read, {permuted / trained:.0f} times as many")


def _rows_per_second(reader: BatchReader, start: int, stop: int) -> float:
    """Returns the rows that one process reads, model features and all, over and over for some seconds."""
    for step in range(start, stop):  # once to check the files, as training does once
        reader.batch(step)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < _SECONDS_OF_READING:
        for step in range(start, stop):
            reader.batch(step)
        count += stop - start
    return count * reader.batch_size / (time.monotonic() - began)


if __name__ == "__main__":
    main()
