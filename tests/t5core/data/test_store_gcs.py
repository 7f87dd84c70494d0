"""Datasets on gs://, against a server that speaks its protocol."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import bucket

_SCRIPT = """
import numpy as np
import pytest
from t5core import errors, storage
from t5core.data import manifest, mixture, store
from t5core.data.converters import converter_for
from t5core.data.reader import BatchReader
from tests.t5core.data.making import VOCABULARY, examples, resolved_run, task_dataset

root = "gs://bucket/some/folder"
cases = examples(90, first=1000)
task = task_dataset(root, "a", cases, parts={"data": "1"})
assert store.RowReader(task.uri).read(40, 41)["targets"][0, 0] == 1040
assert manifest.reuse_or_reason(root, "a", {"data": "1"}).found.rows == 90
assert manifest.reuse_or_reason(root, "a", {"data": "2"}).reason == f"data changed since fingerprint {task.fingerprint}"

run = resolved_run(root, {"a": None})
made = mixture.assemble_mixture(run, vocabulary=VOCABULARY, tasks=[task])
local = mixture.assemble_mixture(resolved_run("LOCAL", {"a": None}), vocabulary=VOCABULARY, tasks=[task])
files = {name: record for name, record in store.read_manifest(made.uri).files.items()}
assert files == store.read_manifest(local.uri).files
converter = converter_for("encoder_decoder", run.config.data.feature_lengths)
remote, disk = (BatchReader(ref.uri, batch_size=8, converter=converter) for ref in (made, local))
for step in (0, 3, 30):
    one, other = remote.batch(step), disk.batch(step)
    assert all(np.array_equal(one[name], other[name]) for name in one)

again = task_dataset(root, "a", cases, parts={"data": "1"})
assert store.read_manifest(again.uri).files == store.read_manifest(task.uri).files

shard = storage.path(f"{made.uri}/train/encoder_input_tokens/c/0/0")
original = shard.read_bytes()
for damaged, message in (
    (original[:9] + bytes([original[9] ^ 8]) + original[10:], "train/encoder_input_tokens/c/0/0 has checksum"),
    (original[:-1], "train/encoder_input_tokens/c/0/0 has .* bytes instead of"),
):
    shard.write_bytes(damaged)
    with pytest.raises(errors.IntegrityError, match=message):
        BatchReader(made.uri, batch_size=8, converter=converter)
shard.unlink()
with pytest.raises(errors.IntegrityError, match="train/encoder_input_tokens/c/0/0 is missing"):
    BatchReader(made.uri, batch_size=8, converter=converter)
with pytest.raises(errors.RunDirectoryError, match="cannot write gs://nowhere/.*; free space or choose"):
    task_dataset("gs://nowhere", "a", cases)
"""


def run_against_a_bucket(script):
    """Returns what a script printed that saw a server of its own."""
    with bucket.serve() as served:
        environment = {**os.environ, **served.environment}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_datasets_on_an_object_store(tmp_path):
    """Written, found again, mixed, read at any step, and damage found, as on a disk."""
    run_against_a_bucket(_SCRIPT.replace("LOCAL", str(tmp_path)))


_MATERIALISE = """
import pytest
from t5core import errors, storage
from t5core.data import gathering, pieces, store
from t5core.data.materialise import materialise_task
from tests.t5core.data.task_runs import request_of, run_of

pieces.PIECE_BYTES = 300
text = "".join(f"document {number} of some words\\n" for number in range(60))
storage.write_text("gs://bucket/text.txt", text)
storage.write_text("LOCAL/text.txt", text)

def ordered(root):
    return request_of(run_of(root, [{"name": "t", "files": [f"{root}/text.txt"]}], workers=1))

def names():
    return {entry.name for entry in storage.path("gs://bucket/datasets").iterdir()}

with pytest.MonkeyPatch.context() as patch:
    def out(*args, **kwargs):
        raise errors.RecoverableError("the store went away")
    patch.setattr(gathering, "gather", out)
    with pytest.raises(errors.RecoverableError, match="the store went away"):
        materialise_task(ordered("gs://bucket"))
(folder,) = (name for name in names() if name.strip("/").endswith(".shards"))
remote, disk = materialise_task(ordered("gs://bucket")), materialise_task(ordered("LOCAL"))
assert store.read_manifest(remote.uri).files == store.read_manifest(disk.uri).files
assert not any(".shards" in name for name in names())
"""


def test_a_task_is_materialised_on_an_object_store(tmp_path):
    """Text in pieces and shards lie there too; what a first attempt finished serves the second."""
    output = run_against_a_bucket(_MATERIALISE.replace("LOCAL", str(tmp_path)))
    assert output.count("  tokenise t: ") == 2, "the first there, and the one on the disk"
