"""A run in a bucket: checkpoints, lock, metrics and records by gs://, against a server on this machine."""

import os
import subprocess
import sys

from tests import bucket

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


def test_a_run_lives_in_a_bucket_as_on_a_disk():
    command = [sys.executable, "-c", IN_A_BUCKET]
    with bucket.serve() as served:
        environment = {**os.environ, **served.environment}
        child = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr[-3000:]
    assert "checkpoint 8 is damaged and set aside as 8.damaged-1" in child.stdout
    assert "params/kernel of checkpoint 6 differ from what was saved (digest)" in child.stdout
