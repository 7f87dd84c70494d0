"""Imports from a bucket and exports into one, in a process that has nothing but the bucket's address."""

import os
import subprocess
import sys

from tests import bucket
from tests.t5core.importers.making import HUGGINGFACE, T5X

IN_A_BUCKET = f"""
import sys
from t5core.importers import own
from t5core import command_line
from t5core.importers.__main__ import main

def run(*arguments):
    main(arguments)

run("import", {str(T5X)!r}, "gs://bucket/ours")
run("export", "gs://bucket/ours", "gs://bucket/t5x", "--format", "t5x", "--layout", "scanned")
run("import", "gs://bucket/t5x/checkpoint_30", "gs://bucket/again")
assert own.reference("gs://bucket/again").digest == own.reference("gs://bucket/ours").digest

run("import", {str(HUGGINGFACE)!r}, "gs://bucket/other")
run("export", "gs://bucket/other", "gs://bucket/model", "--format", "huggingface", "--max-shard-bytes", "200000")
run("import", "gs://bucket/model", "gs://bucket/other-again")
assert own.reference("gs://bucket/other-again").digest == own.reference("gs://bucket/other").digest

assert "tensorflow" not in sys.modules
command_line.run(lambda: main(["import", "gs://bucket/nothing", "gs://bucket/x"]))
"""


def test_checkpoints_go_in_and_out_of_a_bucket():
    with bucket.serve() as served:
        child = subprocess.run(
            [sys.executable, "-c", IN_A_BUCKET],
            check=False,
            env={**os.environ, **served.environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert child.returncode == 1, child.stderr[-3000:]
    assert "Error: gs://bucket/nothing is not there; give the folder of a checkpoint" in child.stderr
