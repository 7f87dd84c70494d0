"""Calls spread over several processes, each of which serves one at a time."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from t5core import named
from t5core.data import worker
from t5core.data.worker import Worker

Call = tuple[Any, ...]
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Caller(Protocol):
    """Whoever answers calls: this process, or another."""

    def call(self, target: str, *args: Any, on_progress: Callable[[int], None] | None = None) -> Any:
        """Returns what the function `target` ("module:function") gives for `args`."""
        ...


class Here:
    """Answers calls in this process."""

    def call(self, target: str, *args: Any, on_progress: Callable[[int], None] | None = None) -> Any:
        """Returns what the function `target` ("module:function") gives for `args`."""
        with worker.reporting_to(on_progress):
            return named.target(target)(*args)


def sensible_processes(*, memory_each: int) -> int:
    """Returns how many processes this machine should run, each needing `memory_each` bytes.

    That is one for each core that this process may use, as long as they need no more than half of the free memory.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _free_memory() // 2 // memory_each))


def _free_memory() -> int:
    """Returns the bytes that can be had, or that the container may hold."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _MEMORY_LIMITS:
        if os.path.exists(file):
            with open(file, encoding="ascii") as handle:
                limit = handle.read().strip()
            free = min(free, int(limit)) if limit.isdigit() else free
    return free


def results(
    target: str,
    calls: Sequence[Call],
    *,
    callers: Sequence[Caller],
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """Yields what `target` gives for each of `calls`, in order; each of `callers` is kept busy.

    Whatever a call raises is raised here, and calls that wait are dropped; one under way in another process is broken
    off with it.
    """
    idle: queue.SimpleQueue[Caller] = queue.SimpleQueue()
    for caller in callers:
        idle.put(caller)
    lock = threading.Lock()

    def advance(amount: int) -> None:
        with lock:
            if on_progress is not None:
                on_progress(amount)

    def answer(call: Call) -> Any:
        caller = idle.get()
        try:
            return caller.call(target, *call, on_progress=advance)
        finally:
            idle.put(caller)

    if len(callers) == 1:
        yield from map(answer, calls)
        return
    executor = concurrent.futures.ThreadPoolExecutor(len(callers), thread_name_prefix="pool")
    try:
        yield from executor.map(answer, calls)
    except BaseException:
        waiting = [idle.get() for _ in range(idle.qsize())]
        for caller in callers:
            if isinstance(caller, Worker) and caller not in waiting:
                caller.kill()  # its answer is not wanted any more
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
