"""The lock of a run directory: between processes, after kills, between machines."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from t5core import errors, lockfile
from t5core.lock import RunLock
from t5core.lockfile import LockRecord
from t5core.process import this_process

HOLDS = """
import sys, time
from t5core.lock import RunLock
with RunLock(sys.argv[1], heartbeat_seconds=0.05, stale_seconds=1.0):
    print("held", flush=True)
    time.sleep(60)
"""

CONTENDS = """
import sys, time
from t5core import errors
from t5core.lock import RunLock
print("ready", flush=True)
sys.stdin.readline()
try:
    RunLock(sys.argv[1]).acquire()
    print("held", flush=True)
    time.sleep(60)
except errors.RunDirectoryError as error:
    print("refused", error, flush=True)
"""


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "run" / "lock.json")


def start(code, uri):
    return subprocess.Popen(
        [sys.executable, "-c", code, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()


def write_record(uri, **changes):
    """Leaves the lock of another machine's process behind."""
    elsewhere = this_process().model_copy(update={"host": "elsewhere"})
    record = LockRecord.new(owner="other", process=elsewhere).model_copy(update=changes)
    os.makedirs(os.path.dirname(uri), exist_ok=True)
    with open(uri, "wb") as handle:
        handle.write(record.content())


def seconds_ago(seconds):
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)


def test_a_lock_that_is_held_is_refused_by_name_and_free_after_a_kill(uri):
    holder = start(HOLDS, uri)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(errors.RunDirectoryError) as refusal:
        RunLock(uri).acquire()
    message = str(refusal.value)
    assert message.startswith(f"{uri} is held by '{os.uname().nodename}:{holder.pid}:")
    assert f"(process {holder.pid} on " in message
    assert message.endswith("wait until it ends, stop it, or choose another run.name")
    assert "\n" not in message
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    with RunLock(uri) as lock:
        lock.check()
    assert not os.path.exists(uri)
    kill(holder)


def test_of_two_that_take_over_at_one_moment_the_second_gives_way(uri, monkeypatch):
    write_record(uri)
    dead = lockfile.lock_file(uri).read()
    inside, new_file = threading.Event(), lockfile._new_file

    def slowly(path, content):
        inside.set()
        time.sleep(0.2)
        return new_file(path, content)

    def take(owner):
        record = LockRecord.new(owner=owner, process=this_process())
        taken[owner] = lockfile.lock_file(uri).replace(record, previous=dead)

    taken = {}
    monkeypatch.setattr(lockfile, "_new_file", slowly)
    first = threading.Thread(target=take, args=("first",))
    first.start()
    inside.wait()
    take("second")
    first.join()
    assert taken == {"first": True, "second": False}
    assert lockfile.lock_file(uri).read().owner == "first"


def test_of_many_that_find_a_dead_lock_one_gets_it(uri):
    dead = start(HOLDS, uri)
    assert dead.stdout.readline() == "held\n"
    kill(dead)
    many = [start(CONTENDS, uri) for _ in range(4)]
    assert [process.stdout.readline() for process in many] == ["ready\n"] * 4
    for process in many:
        process.stdin.write("go\n")
    answers = [process.stdout.readline().split()[0] for process in many]
    for process in many:
        kill(process)
    assert sorted(answers) == ["held", "refused", "refused", "refused"]


def test_the_file_says_who_holds_it(uri):
    with RunLock(uri, owner="execution-1", heartbeat_seconds=0.01, stale_seconds=1.0):
        with open(uri) as handle:
            first = json.load(handle)
        assert first["owner"] == "execution-1"
        assert first["process"]["pid"] == os.getpid()
        deadline = time.monotonic() + 10
        while True:
            with open(uri) as handle:
                if json.load(handle)["heartbeat"] > first["heartbeat"]:
                    break
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)


def test_the_same_owner_enters_again_and_the_first_to_enter_releases(uri):
    with RunLock(uri, owner="execution-1") as outer:
        with RunLock(uri, owner="execution-1") as inner:
            inner.check()
        outer.check()
        assert os.path.exists(uri)
        with pytest.raises(errors.RunDirectoryError, match="is held by 'execution-1'"):
            RunLock(uri, owner="execution-2").acquire()
    assert not os.path.exists(uri)


def test_a_retry_of_the_same_owner_on_another_machine_does_not_wait(uri):
    write_record(uri, owner="execution-1")
    with RunLock(uri, owner="execution-1") as lock:
        lock.check()


def test_another_machine_is_believed_until_it_has_been_silent_too_long(uri):
    write_record(uri, heartbeat=seconds_ago(50))
    with pytest.raises(errors.RunDirectoryError, match=r"on elsewhere, last sign of life 50 s ago\).*if it died: 60 s"):
        RunLock(uri).acquire()
    write_record(uri, heartbeat=seconds_ago(70))
    with RunLock(uri) as lock:
        lock.check()


def test_a_process_id_that_is_used_again_does_not_hold_the_lock(uri):
    write_record(uri, process=this_process().model_copy(update={"started": "1"}))
    with RunLock(uri) as lock:
        lock.check()


def test_a_lock_that_was_taken_over_is_noticed_and_left_to_its_new_holder(uri):
    lock = RunLock(uri, owner="first", heartbeat_seconds=0.01, stale_seconds=1.0)
    lock.acquire()
    os.unlink(uri)
    write_record(uri, owner="second")
    time.sleep(0.1)  # several heartbeats, none of which may write over the other's
    assert not lock._file.refresh(lock._record)
    with pytest.raises(errors.RunDirectoryError, match=f"lost the lock {uri}: another execution took it over; stop"):
        lock.check()
    lock.release()
    with open(uri) as handle:
        assert json.load(handle)["owner"] == "second"


def test_a_lock_that_cannot_be_refreshed_is_lost(uri, monkeypatch):
    def refuse(self, record):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lockfile._LocalLockFile, "refresh", refuse)
    with RunLock(uri, heartbeat_seconds=0.01, stale_seconds=0.05) as lock:
        lock.check()
        time.sleep(0.3)
        with pytest.raises(errors.RunDirectoryError, match=r"could not be refreshed for .* \(Input/output error\)"):
            lock.check()


def test_a_lock_file_that_was_never_finished_is_taken_over_when_it_is_old(uri, monkeypatch):
    monkeypatch.setattr("t5core.lock._PAUSE_SECONDS", 0.0)
    os.makedirs(os.path.dirname(uri))
    with open(uri, "w"):
        pass
    with pytest.raises(errors.RunDirectoryError, match=r"cannot be taken.*delete it if no run is under way"):
        RunLock(uri).acquire()
    os.utime(uri, (time.time() - 100, time.time() - 100))
    with RunLock(uri) as lock:
        lock.check()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run").write_text("a file in the way")
    with pytest.raises(errors.RunDirectoryError, match=r"cannot write .*lock.json: File exists; free space or"):
        RunLock(str(tmp_path / "run" / "lock.json")).acquire()
