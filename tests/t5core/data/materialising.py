"""Materialises a task and assembles its mixture in a process of its own, to be killed or weighed by a test.

Arguments: a request as JSON, bytes of a piece (0: as usual), and whether to assemble. Prints a line of JSON at the end.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from t5core import progress
from t5core.config.edges import TaskRequest
from t5core.data import pieces
from t5core.data.materialise import materialise_task
from t5core.data.mixture import assemble_mixture

SECONDS_BETWEEN_LOOKS = 0.05


def family(process):
    """Returns a process and all that it started."""
    try:
        children = " ".join(file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children"))
    except OSError:
        return []
    return [process, *(found for child in children.split() for found in family(int(child)))]


def resident_bytes(process):
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


class Scales:
    """Weighs this process and its children together, again and again."""

    def __init__(self):
        self.peak = 0
        threading.Thread(target=self._weigh, daemon=True).start()

    def _weigh(self):
        while True:
            self.peak = max(self.peak, sum(map(resident_bytes, family(os.getpid()))))
            time.sleep(SECONDS_BETWEEN_LOOKS)


def main(request, piece_bytes, assemble):
    scales = Scales()
    request = TaskRequest.model_validate_json(request)
    if int(piece_bytes):
        pieces.PIECE_BYTES = int(piece_bytes)
    dataset = materialise_task(request)
    rows = dataset.rows
    if assemble == "assemble":
        rows = assemble_mixture(request.run, vocabulary=request.vocabulary, tasks=[dataset]).rows
    progress.say(json.dumps({"examples": dataset.rows, "rows": rows, "peak": scales.peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
