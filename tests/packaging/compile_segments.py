"""Compiles the dynamic workflow of a run of some segments as its pod does, and says what that costs.

python -m tests.packaging.compile_segments 500
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import sys
import tempfile
import time

from flyteidl.core import dynamic_job_pb2, literals_pb2
from flytekit import FlyteContextManager
from flytekit.bin import entrypoint
from flytekit.configuration import SERIALIZED_CONTEXT_ENV_VAR, Image, ImageConfig, SerializationSettings
from flytekit.core.type_engine import TypeEngine

from t5core.config.edges import DatasetRef, ResolvedRun, RunInputs, VocabularyRef
from tests.packaging.package import IMAGES
from workflows.pretrain import DEMO


def inputs_of(segments: int) -> RunInputs:
    """Returns the inputs of a demo run cut into so many segments; nothing is read of what they name."""
    train = DEMO.train.model_copy(update={"total_steps": segments, "segment_steps": 1, "eval_period": 0})
    run = ResolvedRun(uri="gs://bucket/run", config=DEMO.model_copy(update={"train": train}), fingerprint="f")
    data = DatasetRef(name="a", uri="gs://bucket/a", fingerprint="f", rows=1, reused=False, reason="")
    vocabulary = VocabularyRef(uri="", kind="bytes", extra_ids=0, size=384, fingerprint="f")
    return RunInputs(run=run, vocabulary=vocabulary, tasks=[data], mixture=data)


def compiled(segments: int, folder: pathlib.Path) -> dynamic_job_pb2.DynamicJobSpec:
    """Returns what the pod leaves for the engine; once in a process, for flytekit keeps the first."""
    images = [Image.look_up_image_info(name, image) for name, image in IMAGES.items()]
    settings = SerializationSettings(image_config=ImageConfig.create_from(images[0], images))
    os.environ[SERIALIZED_CONTEXT_ENV_VAR] = settings.serialized_context  # as the task's container has it
    context = FlyteContextManager.current_context()
    kind = TypeEngine.to_literal_type(RunInputs)
    literal = TypeEngine.to_literal(context, inputs_of(segments), RunInputs, kind).to_flyte_idl()
    given = literals_pb2.LiteralMap(literals={"inputs": literal})
    (folder / "inputs.pb").write_bytes(given.SerializeToString())
    command = ["--inputs", folder / "inputs.pb", "--output-prefix", folder / "out"]
    command += ["--raw-output-data-prefix", folder / "raw"]
    command += ["--resolver", "flytekit.core.python_auto_container.default_task_resolver", "--"]
    command += ["task-module", "workflows.blocks", "task-name", "train_in_segments"]
    entrypoint.execute_task_cmd.main([str(word) for word in command], standalone_mode=False)
    return dynamic_job_pb2.DynamicJobSpec.FromString((folder / "out" / "futures.pb").read_bytes())


def main() -> None:
    """Prints the cost as JSON."""
    segments = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        job = compiled(segments, pathlib.Path(folder))
        cost = {
            "segments": segments,
            "nodes": len([node for node in job.nodes if node.id not in ("start-node", "end-node")]),
            "bytes": job.ByteSize(),
            "bytes_of_nodes": sum(node.ByteSize() for node in job.nodes),
            "seconds": round(time.monotonic() - began, 2),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    print(json.dumps(cost))  # noqa: T201


if __name__ == "__main__":
    main()
