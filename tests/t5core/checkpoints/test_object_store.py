"""A run in a bucket: checkpoints, lock, metrics and records by gs://, against a server on this machine."""

import http.client
import http.server
import os
import subprocess
import sys
import threading

import pytest

from tests import bucket

BESIDE_A_FAULTY_BUCKET = """
import os, time
import jax, jax.numpy as jnp, numpy as np
from t5core import storage
from t5core.checkpoints import index
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.data.store import RowReader
from t5core.lock import RunLock
from t5core.metrics.writer import MetricWriter, read_metrics
from tests.t5core.data import making

root = "gs://bucket/faulty"
provenance = Provenance(seed=0, config_fingerprint="c", dataset_fingerprint="d", vocabulary_fingerprint="v",
                        schedule=SchedulePosition(total_steps=9, batch_size=1))
jax.config.update("jax_compilation_cache_dir", str(storage.path(f"{root}/compiled")))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
kernel = jax.jit(lambda x: x * 2)(np.arange(4000, dtype=np.float32))
state = {"step": jax.device_put(np.int32(3)), "params": {"kernel": kernel}}
abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)
with RunLock(f"{root}/lock.json") as lock:
    with CheckpointStore(f"{root}/checkpoints") as store:
        store.save(3, state, provenance, wait=True)
        restored = store.restore(abstract)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)
    dataset = making.task_dataset(root, "a", making.examples(20))
    rows = RowReader(dataset.uri).read(2, 4)
    assert list(rows["targets"][:, 0]) == [4, 5]
    with MetricWriter(f"{root}/metrics", 0, tensorboard=False) as metrics:
        metrics.write(1, {"loss": 0.5})
    assert [row["step"] for row in read_metrics(f"{root}/metrics")] == [1]
    lock.check()
assert list(storage.path(f"{root}/compiled").iterdir())
"""

IN_A_BUCKET = """
import datetime, subprocess, sys
import jax, jax.numpy as jnp, numpy as np
from t5core import errors, storage
from t5core.checkpoints import index, pins, seal
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.retention import RetentionPolicy
from t5core.checkpoints.store import CheckpointStore
from t5core.lock import RunLock
from t5core.lockfile import LockRecord, lock_file
from t5core.metrics.writer import MetricWriter, read_metrics
from t5core.process import ProcessIdentity
from t5core.rundir import RunDirectory, StageRecord

run = RunDirectory("gs://bucket/runs/demo")
uri = run.checkpoints_uri
provenance = Provenance(seed=0, config_fingerprint="c", dataset_fingerprint="d", vocabulary_fingerprint="v",
                        schedule=SchedulePosition(total_steps=9, batch_size=1))

def state_at(step):
    return {"step": jnp.int32(step), "params": {"kernel": jnp.arange(400_000.0) + step}}

abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state_at(0))

def restored_step():
    with CheckpointStore(uri) as store:
        restored = store.restore(abstract)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(restored.record.step))
    return restored.record.step

# Saved, restored, and old ones deleted.
assert index.survey(uri).is_fresh
with CheckpointStore(uri, retention=RetentionPolicy(keep=2, checkpoint_period=2)) as store:
    for step in (2, 3, 4, 6):
        store.save(step, state_at(step), provenance)
assert index.survey(uri).committed == (4, 6) and restored_step() == 6
assert index.locate(index.reference(uri, 6).uri) == (uri, 6)

# A save that was killed is written in place here, and counts for nothing.
storage.write_text(f"{uri}/8/state/manifest.ocdbt", "the beginning")
assert index.survey(uri).unfinished == ("8",) and index.latest(uri) == 6 and restored_step() == 6
with CheckpointStore(uri) as store:
    store.save(8, state_at(8), provenance)
assert restored_step() == 8

# Damage: to a small file, and to data too large to be summed by the seal.
(storage.path(uri) / "8" / "state" / "_METADATA").unlink()
assert restored_step() == 6 and index.survey(uri).set_aside == ("8.damaged-1",)
large = next(path for name, path in seal._walk(storage.path(uri) / "6") if path.stat().length > 1 << 20)
content = bytearray(large.read_bytes())
content[len(content) // 2] ^= 1
large.write_bytes(bytes(content))
assert restored_step() == 4 and index.survey(uri).set_aside == ("6.damaged-1", "8.damaged-1")

# The lock.
with RunLock(run.lock_uri) as lock:
    lock.check()
    try:
        RunLock(run.lock_uri, owner="other").acquire()
        raise SystemExit("two hold one lock")
    except errors.RunDirectoryError as error:
        assert "is held by" in str(error)
silent = LockRecord.new(owner="other", process=ProcessIdentity(host="elsewhere", pid=1, started="1"))
silent = silent.model_copy(update={"heartbeat": silent.heartbeat - datetime.timedelta(seconds=100)})
assert lock_file(run.lock_uri).create(silent) and not lock_file(run.lock_uri).create(silent)
with RunLock(run.lock_uri) as lock:
    lock.check()
assert lock_file(run.lock_uri).read() is None

# Metrics and records.
for resume, steps in ((0, (1, 2, 3)), (2, (3, 4)), (4, (5,)), (3, (4, 5, 6))):
    with MetricWriter(run.metrics_uri("train"), resume, tensorboard=False) as writer:
        for step in steps:
            writer.write(step, {"loss": step / 10})
assert [row["step"] for row in read_metrics(run.metrics_uri("train"))] == [1, 2, 3, 4, 5, 6]
run.write_stage(StageRecord(stage="resolve", reused=False, reason="", seconds=0.0, fingerprint="", uri=""))
assert [stage.stage for stage in run.stages()] == ["resolve"]
with pins.reading(uri, 4):
    assert pins.pinned_steps(uri) == {4}
assert not pins.pinned_steps(uri)

# What another process does is seen, though the folder was looked at before.
pins.publish(uri, 4, name="release")
assert pins.pinned_steps(uri) == {4}
withdraw = f"from t5core.checkpoints import pins; pins.withdraw({uri!r}, name='release')"
subprocess.run([sys.executable, "-c", withdraw], check=True)
assert not pins.pinned_steps(uri)
add = f"from t5core import storage; storage.write_text({uri!r} + '/10/state/manifest.ocdbt', 'the beginning')"
subprocess.run([sys.executable, "-c", add], check=True)
assert index.survey(uri).unfinished == ("10",)
assert "tensorflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def bucket_environment():
    with bucket.serve() as served:
        yield {**os.environ, **served.environment}


def test_a_run_lives_in_a_bucket_as_on_a_disk(bucket_environment):
    command = [sys.executable, "-c", IN_A_BUCKET]
    child = subprocess.run(command, check=False, env=bucket_environment, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr[-3000:]
    assert "checkpoint 8 is damaged and set aside as 8.damaged-1" in child.stdout
    assert "params/kernel of checkpoint 6 differ from what was saved (digest)" in child.stdout


class FaultyProxy(http.server.BaseHTTPRequestHandler):
    """Hands requests on to `target`, but refuses some for the moment and lets some wait for ever."""

    protocol_version = "HTTP/1.1"
    target = ""
    served: list = []
    over = threading.Event()

    def log_message(self, *_):
        pass

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.served.append(self.path)
        turn = len(self.served)
        if turn in (9, 40, 120, 210):
            self.over.wait(60)
            self.close_connection = True
            return
        if turn in (3, 20, 70, 150, 250):
            self._send(503, {}, b"the store is busy")
            return
        connection = http.client.HTTPConnection(self.target, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        self._send(response.status, dict(response.getheaders()), content)
        connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer

    def _send(self, status, headers, content):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def faulty_environment(bucket_environment):
    FaultyProxy.target = bucket_environment["STORAGE_EMULATOR_HOST"].removeprefix("http://")
    server = http.server.ThreadingHTTPServer(("localhost", 0), FaultyProxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://localhost:{server.server_address[1]}"
    places = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
    yield {**bucket_environment, **dict.fromkeys(places, url), "T5FLOW_STORAGE_STALL_SECONDS": "1"}
    FaultyProxy.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_that_fail_or_stall_are_made_again(faulty_environment):
    command = [sys.executable, "-c", BESIDE_A_FAULTY_BUCKET]
    child = subprocess.run(command, check=False, env=faulty_environment, capture_output=True, text=True, timeout=240)
    assert child.returncode == 0, child.stderr[-3000:]
    assert len(FaultyProxy.served) > 250, "the proxy was not in between"
