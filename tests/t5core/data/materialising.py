"""Materialises a task and assembles its mixture in a process of its own, to be killed or weighed by a test.

Arguments: a request as JSON, bytes of a piece (0: as usual), and whether to assemble. Prints a line of JSON at the end.
"""

import json
import sys

from benchmarks.scales import Scales
from t5core import progress
from t5core.config.edges import TaskRequest
from t5core.data import pieces
from t5core.data.materialise import materialise_task
from t5core.data.mixture import assemble_mixture


def main(request, piece_bytes, assemble):
    request = TaskRequest.model_validate_json(request)
    if int(piece_bytes):
        pieces.PIECE_BYTES = int(piece_bytes)
    with Scales() as scales:
        dataset = materialise_task(request)
        rows = dataset.rows
        if assemble == "assemble":
            rows = assemble_mixture(request.run, vocabulary=request.vocabulary, tasks=[dataset]).rows
    progress.say(json.dumps({"examples": dataset.rows, "rows": rows, "peak": scales.peak_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
