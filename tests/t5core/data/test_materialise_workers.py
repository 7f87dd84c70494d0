"""Tokenising in several processes: their number changes no bit, a kill costs little, and memory is bounded."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from t5core.data import pieces, store, work, worker
from t5core.data.converters import converter_for
from t5core.data.materialise import materialise_task
from t5core.data.mixture import assemble_mixture
from t5core.data.reader import BatchReader
from tests.t5core.data.task_runs import request_of, rows_of, run_of

pytestmark = pytest.mark.xdist_group("seqio")

PROGRAM = f"{__package__}.materialising"
PIECE_BYTES = 4000
LENGTHS = {"inputs": 48, "targets": 32}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    draw = random.Random(0)
    words = [begin + end for begin in "bdfgklmnprst" for end in ("alo", "eru", "inda", "ox")]
    lines = (" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(400))
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_text("\n".join(lines))
    return str(file)


def request(root, file, **settings):
    return request_of(run_of(root, [{"name": "t", "files": [str(file)]}], **settings))


def made(root, file, **settings):
    """Returns a task's dataset and its mixture."""
    ordered = request(root, file, **settings)
    dataset = materialise_task(ordered)
    return dataset, assemble_mixture(ordered.run, vocabulary=ordered.vocabulary, tasks=[dataset])


@pytest.fixture(scope="module")
def straight(file, tmp_path_factory):
    """Made by one process, in two passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
        return made(tmp_path_factory.mktemp("straight"), file, workers=1, passes=2)


def files_of(dataset):
    return store.read_manifest(dataset.uri).files


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_processes_changes_no_bit(straight, file, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
    found = made(tmp_path, file, workers=workers, passes=2)
    for one, other in zip(straight, found, strict=True):
        assert one.fingerprint == other.fingerprint
        assert files_of(one) == files_of(other)
    assert sorted(entry.name for entry in (tmp_path / "datasets").iterdir()) == sorted(
        dataset.uri.rpartition("/")[2] for dataset in found
    )


def test_the_rows_are_those_that_seqio_makes_in_one_stream(straight, file, tmp_path):
    """Wherever the file is cut, with documents held out here and there."""
    ordered = request(tmp_path, file)
    arguments = (ordered.run.config.data.tasks[0], ordered.vocabulary, LENGTHS)
    rows, tokens = rows_of(straight[0]), {side: [] for side in LENGTHS}
    for number in range(2):
        seed = work.pass_seed(ordered.run.seed, number)
        examples, _ = worker.call(f"{__package__}.seqio_probe:examples_of_task", *arguments, seed)
        for side, length in LENGTHS.items():
            tokens[side] += [example[side] + [0] * (length - len(example[side])) for example in examples]
    assert all(np.array_equal(rows[side], tokens[side]) for side in LENGTHS)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("segment", [1, 3, 7])
def test_workers_hosts_and_segments_leave_every_global_batch_as_it_is(
    straight, file, tmp_path, monkeypatch, hosts, segment
):
    """Over two epochs and a bit, against the batches of one process that reads straight on."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
    converter, batch, workers = converter_for("encoder_decoder", LENGTHS), 16, 1 + hosts // 2
    readers = [
        BatchReader(m.uri, batch_size=batch, converter=converter) for m in (straight[1], _mixture(workers, file))
    ]
    steps, share = int(2.2 * readers[0].steps_per_epoch), batch // hosts
    expected = dict(readers[0].prefetch(0, steps))
    for start in range(0, steps, segment):
        end = min(steps, start + segment)
        shares = [readers[1].prefetch(start, end, rows=slice(h * share, (h + 1) * share)) for h in range(hosts)]
        for parts in zip(*shares, strict=True):
            (step,) = {step for step, _ in parts}
            for name, values in expected[step].items():
                assert np.array_equal(values, np.concatenate([part[name] for _, part in parts]))


_mixtures = {}


def _mixture(workers, file):
    if workers not in _mixtures:
        folder = os.path.dirname(file)
        _mixtures[workers] = made(f"{folder}/by-{workers}", file, workers=workers, passes=2)[1]
    return _mixtures[workers]


def start(ordered, *, piece_bytes=0, assemble=False):
    arguments = [ordered.model_dump_json(), str(piece_bytes), "assemble" if assemble else "-"]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}  # glibc's heaps, one a thread, are not what is weighed
    command = [sys.executable, "-m", PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finished_shards(root):
    return sorted((root / "datasets").glob("t-*.shards/train-*.npz")) if (root / "datasets").exists() else []


def test_a_killed_materialisation_goes_on_where_it_was(straight, file, tmp_path, monkeypatch, capsys):
    ordered = request(tmp_path, file, workers=2, passes=2)
    victim = start(ordered, piece_bytes=PIECE_BYTES)
    began = time.monotonic()
    while len(finished_shards(tmp_path)) < 6:
        assert victim.poll() is None, "it was finished before it could be killed"
        assert time.monotonic() - began < 60
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert not list((tmp_path / "datasets").glob("*/manifest.json"))
    kept = finished_shards(tmp_path)

    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE_BYTES)
    rewritten = []
    original = os.replace
    monkeypatch.setattr(os, "replace", lambda here, there: rewritten.append(str(there)) or original(here, there))
    dataset = materialise_task(request(tmp_path, file, workers=1, passes=2))
    assert "parts are there from an earlier attempt" in capsys.readouterr().out
    complete = {str(shard) for shard in kept if shard.name.endswith("-001.npz")}
    assert complete
    assert not complete & set(rewritten)
    assert files_of(dataset) == files_of(straight[0])
    assert [entry.name for entry in (tmp_path / "datasets").iterdir()] == [dataset.uri.rpartition("/")[2]]


def weighed(root, count):
    """Returns what is told of a corpus of `count` short documents that goes all the way, in processes of its own."""
    root.mkdir()
    (root / "a.txt").write_text(
        "".join(f"document {number} of some words {number * 7919}\n" for number in range(count))
    )
    ordered = request(root, root / "a.txt", workers=2)
    output, _ = start(ordered, piece_bytes=1 << 18, assemble=True).communicate(timeout=300)
    return json.loads(output.splitlines()[-1])


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """200,000 documents within the bound, and in little more than a tenth of them takes."""
    few, many = weighed(tmp_path / "few", 20_000), weighed(tmp_path / "many", 200_000)
    assert many["examples"] > 9 * few["examples"] > 170_000
    assert many["peak"] < 1.5e9
    assert many["peak"] < few["peak"] + 150e6
