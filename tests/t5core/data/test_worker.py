import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from t5core import errors
from t5core.data import worker

HERE = __name__


def double(number):
    return 2 * number


def fail(kind):
    raise {
        "user": errors.DataError("a.txt:3: no text; add some"),
        "builtin": ValueError("wrong value"),
        "foreign": ForeignError("from elsewhere"),
    }[kind]


class ForeignError(Exception):
    pass


def count_to(number):
    for amount in range(1, number + 1):
        worker.report(amount)
    return "done"


def say_and_die(how):
    os.write(1, b"about to go\n")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def environment(name):
    return os.environ.get(name)


@pytest.fixture(scope="module")
def light():
    """A worker that imports nothing heavy."""
    child = worker.Worker(preload="json")
    yield child
    child.close()


def test_it_computes_elsewhere(light):
    assert light.call(f"{HERE}:double", 21) == 42
    assert light.call("os:getpid") not in (os.getpid(), None)
    assert light.call("os:getpid") == light.call("os:getpid")


def test_it_hides_gpus_and_quiets_tensorflow(light):
    assert light.call(f"{HERE}:environment", "CUDA_VISIBLE_DEVICES") == "-1"
    assert light.call(f"{HERE}:environment", "TF_CPP_MIN_LOG_LEVEL") == "3"


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("user", errors.DataError, "a.txt:3: no text; add some"),
        ("builtin", ValueError, "wrong value"),
        ("foreign", RuntimeError, f"{HERE}:fail: ForeignError: from elsewhere"),
    ],
)
def test_exceptions_come_back_and_the_worker_lives_on(light, kind, error, message):
    with pytest.raises(error) as caught:
        light.call(f"{HERE}:fail", kind)
    assert type(caught.value) is error
    assert str(caught.value) == message
    assert "in fail" in "".join(caught.value.__notes__)
    assert light.call(f"{HERE}:double", 1) == 2


def test_what_does_not_exist_is_an_exception(light):
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        light.call("no_such_module:function")
    with pytest.raises(AttributeError, match="no_such_function"):
        light.call("json:no_such_function")


def test_a_result_that_cannot_travel_is_an_exception(light):
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        light.call("threading:Lock")
    assert light.call(f"{HERE}:double", 1) == 2


def test_progress_comes_while_it_works(light):
    seen = []
    assert light.call(f"{HERE}:count_to", 4, on_progress=seen.append) == "done"
    assert seen == [1, 2, 3, 4]
    assert light.call(f"{HERE}:count_to", 2) == "done"


def test_a_call_that_is_broken_off_leaves_nothing_to_the_next():
    child = worker.Worker(preload="json")

    def impatient(amount):
        time.sleep(0.3)  # by now the child has sent its answer
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.call(f"{HERE}:count_to", 3, on_progress=impatient)
    with pytest.raises(errors.RecoverableError):
        child.call(f"{HERE}:double", 1)
    child.close()


def test_it_need_not_be_waited_for_while_it_imports(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    child = worker.Worker(preload="never_imported")
    time.sleep(0.5)
    began = time.monotonic()
    child.close()
    assert time.monotonic() - began < 2


def test_report_outside_a_worker_does_nothing():
    assert worker.report(1) is None


@pytest.mark.parametrize(
    ("how", "told", "hint"), [("exit", "exit code 3", "run again"), ("kill", "SIGKILL", "give it more memory")]
)
def test_a_worker_that_dies_is_a_recoverable_error(how, told, hint):
    child = worker.Worker(preload="json")
    assert child.usable
    with pytest.raises(errors.RecoverableError) as caught:
        child.call(f"{HERE}:say_and_die", how)
    assert str(caught.value) == f"the data worker died ({told}) in {HERE}:say_and_die: about to go; {hint}"
    assert not child.usable
    child.close()


def test_starting_does_not_wait_for_the_import(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2)\nREADY = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    began = time.monotonic()
    child = worker.Worker(preload="slow_to_import")
    assert time.monotonic() - began < 1.5
    assert child.call("os:getpid") > 0
    assert time.monotonic() - began >= 2
    child.close()


def test_the_parent_s_search_path_holds(tmp_path, monkeypatch):
    (tmp_path / "of_the_user.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    child = worker.Worker(preload="json")
    assert child.call("of_the_user:answer") == 42
    child.close()


@pytest.mark.parametrize("busy", [False, True])
def test_it_dies_with_a_parent_that_is_killed(busy):
    script = f"""
        import threading, time
        from t5core.data.worker import Worker
        child = Worker(preload="json")
        print(child.call("os:getpid"), flush=True)
        if {busy}:
            child.call("time:sleep", 60)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(pid)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_worker_for_the_process(monkeypatch):
    monkeypatch.setattr(worker, "_worker", None)
    original = worker.Worker
    monkeypatch.setattr(worker, "Worker", lambda: original(preload="json"))
    one = worker.start()
    assert worker.start() is one
    assert worker.call(f"{HERE}:double", 4) == 8
    with pytest.raises(errors.RecoverableError):
        worker.call(f"{HERE}:say_and_die", "exit")
    assert worker.call(f"{HERE}:double", 4) == 8
    assert worker.start() is not one
    worker.stop()
    assert not one.usable
