"""Calls spread over processes."""

import os
import signal
import time

import pytest

from t5core import errors
from t5core.data import pool, worker
from t5core.data.worker import Worker

HERE = "tests.t5core.data.test_pool"


def double(number):
    time.sleep(0.05 * (number % 3))  # later calls may finish first
    worker.report(1)
    return 2 * number, os.getpid()


def fail_at(number, culprit):
    if number == culprit:
        raise errors.DataError(f"{number} cannot be doubled")
    time.sleep(30 if number > culprit else 0)
    return number


@pytest.fixture(scope="module")
def two():
    """Two processes, which tests may break."""
    workers = [Worker(preload="json") for _ in range(2)]
    yield workers
    for process in workers:
        process.close()


def test_results_come_in_order_from_every_process(two):
    reported = []
    calls = [(number,) for number in range(12)]
    found = list(pool.results(f"{HERE}:double", calls, callers=two, on_progress=reported.append))
    assert [result for result, _ in found] == [2 * number for number in range(12)]
    assert len({process for _, process in found} - {os.getpid()}) == 2
    assert reported == [1] * 12


def test_this_process_answers_as_others_do():
    reported = []
    calls = [(number,) for number in range(3)]
    found = list(pool.results(f"{HERE}:double", calls, callers=[pool.Here()], on_progress=reported.append))
    assert found == [(2 * number, os.getpid()) for number in range(3)]
    assert reported == [1] * 3
    worker.report(1)  # nobody listens any more
    assert len(reported) == 3


def test_what_a_call_raises_is_raised_here_and_breaks_off_the_others(two):
    began = time.monotonic()
    calls = [(number, 4) for number in range(8)]
    with pytest.raises(errors.DataError, match="4 cannot be doubled"):
        list(pool.results(f"{HERE}:fail_at", calls, callers=two))
    assert time.monotonic() - began < 20  # and not the 30 s of the call beside it


def test_a_process_that_is_killed_is_an_error_worth_another_attempt():
    victim, other = (Worker(preload="json") for _ in range(2))
    try:
        os.kill(victim._process.pid, signal.SIGKILL)
        with pytest.raises(errors.RecoverableError, match="the data worker died"):
            list(pool.results(f"{HERE}:double", [(number,) for number in range(6)], callers=[victim, other]))
    finally:
        victim.close()
        other.close()


@pytest.mark.parametrize(("cores", "free", "expected"), [(8, 100, 5), (8, 1000, 8), (8, 5, 1), (1, 1000, 1)])
def test_as_many_processes_as_cores_and_memory_allow(monkeypatch, cores, free, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(pool, "_free_memory", lambda: free)
    assert pool.sensible_processes(memory_each=10) == expected
