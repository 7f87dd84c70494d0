"""Which process wrote something, told so that it can be known later whether that process still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from t5core.config.base import StrictModel


class ProcessIdentity(StrictModel):
    """A process that no other can be mistaken for: process ids are used again, but not with the same start."""

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.started}"

    def is_alive(self) -> bool | None:
        """Tells whether the process still runs; None when it is on another machine, where nobody here can look."""
        if self.host != socket.gethostname():
            return None
        return _start_time(self.pid) == self.started


def this_process() -> ProcessIdentity:
    """Returns the identity of the calling process."""
    started = _start_time(os.getpid())
    assert started is not None, "a process that asks is running"
    return ProcessIdentity(host=socket.gethostname(), pid=os.getpid(), started=started)


def _start_time(pid: int) -> str | None:
    """Returns when `pid` started, in ticks since the machine did ('' where that is not told); None when it is gone."""
    if not Path("/proc/self/stat").exists():
        return _start_time_without_proc(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started  # a killed process leaves its entry until its parent looks at it


def _start_time_without_proc(pid: int) -> str | None:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""  # somebody else's, so it runs
    return ""
