"""Checkpoints between meshes; those between processes are in `test_interruptions.py`."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]


def test_cases_of_eight_devices():
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    cases = "tests/t5core/checkpoints/topology_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", cases]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
    assert run.stdout.startswith("." * 10), "nothing was run"
