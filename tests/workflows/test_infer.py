"""Batch prediction from the command line, after a run; and the DAG as a cluster gets it."""

import json

import pytest
from flyteidl.core import dynamic_job_pb2, literals_pb2
from flytekit import FlyteContextManager
from flytekit.bin import entrypoint
from flytekit.configuration import SERIALIZED_CONTEXT_ENV_VAR, Image, ImageConfig, SerializationSettings
from flytekit.core.type_engine import TypeEngine

from t5core.config.edges import CheckpointRef, VocabularyRef
from t5core.config.infer_edges import InferJob, RowPosition, ShardRequest, TrainedModel
from t5core.config.schema import ClusterConfig, ModelConfig
from tasks import profiles
from tests.packaging.package import IMAGES
from tests.workflows import command_line
from workflows import infer


@pytest.mark.e2e
def test_the_rows_of_a_file_are_predicted_with_a_finished_run(finished, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"run: {{root: {finished.root}}}\n"
        f"checkpoint: {finished.directory}\n"
        f"source: {{files: ['{finished.config.parent}/text/*.tsv'], inputs: 'say {{word}}'}}\n"
        "shard_rows: 40\n"
    )
    first = command_line.run("--config", str(config), workflow="infer")
    assert first.code == 0, first.text
    folder = finished.root / "infer"
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    words = (finished.config.parent / "text/words.tsv").read_text().splitlines()[1:]
    assert [row["word"] for row in rows] == words
    assert all(isinstance(row["prediction"], str) for row in rows)
    assert (summary["status"], summary["rows"], summary["shards"]) == ("completed", 63, 2)
    assert summary["checkpoint"]["digest"] == command_line.summary(finished.root)["state_digest"]
    assert "<html" in (folder / "report.html").read_text()
    assert "rows 0 to 40: 40/40 rows" in first.text, "progress is shown"
    overrides = json.dumps(["checkpoint=nowhere/demo"])
    mistake = command_line.run("--config", str(config), "--overrides", overrides, workflow="infer")
    assert mistake.code == 1
    assert mistake.error == (
        "Error: checkpoint='nowhere/demo' does not exist; name a run directory, the folder of one step, or "
        "published:NAME (`make pretrain` trains runs/demo)"
    )


def job_on(pool):
    config = infer.EXAMPLE.model_copy(update={"cluster": ClusterConfig(pool=pool)})
    trained = TrainedModel(
        checkpoint=CheckpointRef(uri="gs://bucket/run/checkpoints/1", step=1, digest="d"),
        model=ModelConfig(),
        vocabulary=VocabularyRef(uri="", kind="bytes", extra_ids=0, size=259, fingerprint="f"),
        feature_lengths={"inputs": 4, "targets": 4},
    )
    return InferJob(uri="gs://bucket/infer", config=config, trained=trained, files=[])


def compiled(folder, monkeypatch, **inputs):
    """Returns what the pod of `infer_on_pool` leaves for the engine."""
    images = [Image.look_up_image_info(name, image) for name, image in IMAGES.items()]
    settings = SerializationSettings(image_config=ImageConfig.create_from(images[0], images))
    monkeypatch.setenv(SERIALIZED_CONTEXT_ENV_VAR, settings.serialized_context)
    context, given = FlyteContextManager.current_context(), {}
    for name, (value, type_) in inputs.items():
        kind = TypeEngine.to_literal_type(type_)
        given[name] = TypeEngine.to_literal(context, value, type_, kind).to_flyte_idl()
    (folder / "inputs.pb").write_bytes(literals_pb2.LiteralMap(literals=given).SerializeToString())
    command = ["--inputs", folder / "inputs.pb", "--output-prefix", folder / "out"]
    command += ["--raw-output-data-prefix", folder / "raw"]
    command += ["--resolver", "flytekit.core.python_auto_container.default_task_resolver", "--"]
    command += ["task-module", "workflows.infer", "task-name", "infer_on_pool"]
    entrypoint.execute_task_cmd.main([str(word) for word in command], standalone_mode=False)
    return dynamic_job_pb2.DynamicJobSpec.FromString((folder / "out" / "futures.pb").read_bytes())


def test_the_shards_are_mapped_over_the_pool_of_the_job(tmp_path, monkeypatch):
    job = job_on("tpu_v5e_8")
    requests = [
        ShardRequest(job=job, start=n, stop=n + 1, begin=RowPosition(file=0, offset=2**40 + n, line=n), content="c")
        for n in range(3)
    ]
    spec = compiled(tmp_path, monkeypatch, job=(job, InferJob), requests=(requests, list[ShardRequest]))
    [node] = [node for node in spec.nodes if node.HasField("array_node")]
    shard = node.array_node.node.task_node
    selectors = shard.overrides.pod_template.pod_spec["nodeSelector"]
    expected = profiles.pool_template("tpu_v5e_8").pod_spec.node_selector
    assert dict(selectors) == expected
    assert node.array_node.min_success_ratio == 1.0
    assert "infer_shard" in shard.reference_id.name
