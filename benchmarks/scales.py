"""What this process and all that it started hold in memory together."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import types

_SECONDS_BETWEEN_LOOKS = 0.05


class Scales:
    """Weighs all processes together, again and again, while the block lasts.

    Attributes:
      peak_bytes: the most that they held; pages that several of them share count for each.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._weigh, daemon=True)

    def _weigh(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, _family(os.getpid()))))

    def __enter__(self) -> Scales:
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._over.set()
        self._watch.join()


def _family(process: int) -> list[int]:
    children = ""
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread is gone
            children += f" {file.read_text()}"
    return [process, *(found for child in children.split() for found in _family(int(child)))]


def _resident_bytes(process: int) -> int:
    try:
        lines = pathlib.Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
