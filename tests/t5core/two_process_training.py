"""One of two processes with four devices each; prints what it read and what it trained.

Run as `python -m tests.t5core.two_process_training PORT PROCESS`.
"""

import json
import sys

import jax
import numpy as np

from t5core import trees
from t5core.partitioning import Partitioner
from tests.t5core import partitioning_cases as cases


def main(port, process):
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    partitioner = Partitioner(2)
    mine = partitioner.process_rows(cases.ROWS)
    (values, _), _, _ = cases.trained(partitioner, rows={name: rows[mine] for name, rows in cases.batch().items()})
    sums = jax.jit(lambda tree: jax.tree.map(lambda x: (x * x).sum(), tree), out_shardings=partitioner.replicated)
    totals = {path: float(np.asarray(leaf)) for path, leaf in trees.flatten(sums(values)).items()}
    shared = Partitioner(8)
    whole = shared.shard_batch(cases.batch())["tokens"].shape
    everything = shared.process_rows(cases.ROWS)
    result = {
        "rows": [mine.start, mine.stop],
        "totals": totals,
        "rows_of_a_shared_copy": [everything.start, everything.stop],
        "shape_of_a_shared_copy": whole,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
