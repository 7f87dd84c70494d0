"""SIGTERM as a request: finish the step, commit, and leave as recoverable."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Asks for a stop at the end of the running step."""
        self._event.set()


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """Turns SIGTERM into a `StopRequest` inside the block and puts the old handler back after it.

    Outside the main thread signals cannot be handled; there the request never comes from the system.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: request.set())
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, previous)
