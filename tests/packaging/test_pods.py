"""A run as a cluster makes it, pod by pod against a bucket, ends as the run of the command line on a disk does."""

from __future__ import annotations

import collections
import dataclasses
import json
import signal
from typing import Any

import pytest
from flyteidl.core import errors_pb2

from t5core.config import yaml_text
from t5core.config.schema import PretrainConfig
from tests import bucket
from tests.packaging import package, pods
from tests.packaging.engine import Engine, Outcome
from tests.workflows import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("packaging")]

# Segments end at 3, 6, 9 and 12; the second evaluation is no better than the first, and the run stops at 6. The second
# segment commits step 5 on its way.
OVERRIDES = [
    "train.segment_steps=3",
    "train.eval_period=3",
    "train.checkpoint_period=5",
    "train.total_steps=12",
    "train.actions=[{name: early_stopping, task: copy, metric: exact_match, mode: max, patience: 1}]",
]
# What the cluster is told beside: each task is tokenised in two pods.
IN_SHARES = "data.shares=2"
SECOND_SEGMENT = "/dn2/dn0/dn0"  # of the dynamic job: second block, then-branch, first node
LOCK = "gs://bucket/runs/tiny/lock.json"
FAULTS = {(SECOND_SEGMENT, 0): "lost:5", (SECOND_SEGMENT, 1): "killed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Both:
    """The two runs: what they wrote as their summary, and the pods of the one in the bucket."""

    local: dict[str, Any]
    remote: dict[str, Any]
    outputs: dict[str, Any]
    started: list[pods.Started]
    served: bucket.Bucket


@pytest.fixture(scope="module")
def both(tmp_path_factory, packaged):
    folder = tmp_path_factory.mktemp("pods")
    command_line.write_text(folder / "text")
    config = command_line.write_config(folder, root=folder / "runs", text=folder / "text")
    local = command_line.start("--config", str(config), "--overrides", json.dumps(OVERRIDES))
    with bucket.serve() as served:
        for file in (folder / "text").iterdir():
            served.put(f"gs://bucket/text/{file.name}", file.read_bytes())
        text = command_line.CONFIG.format(root="gs://bucket/runs", text="gs://bucket/text")
        settings = PretrainConfig.model_validate(yaml_text.parse(text, origin="remote"))
        cluster = pods.Pods(bucket=served, folder=folder / "pods", execution="execution1", lock_uri=LOCK, faults=FAULTS)
        inputs = {"config": pods.as_literal(settings), "overrides": pods.as_literal([*OVERRIDES, IN_SHARES])}
        outputs = Engine(package=packaged, launch=cluster.launch).run("workflows.pretrain.pretrain", inputs)
        done = command_line.finish(local)
        assert done.code == 0, done.text
        yield Both(
            local=command_line.summary(folder / "runs"),
            remote=pods.read_json(served, "gs://bucket/runs/tiny/summary.json"),
            outputs=pods.structure(outputs["o0"]),
            started=cluster.started,
            served=served,
        )


def of(both, task):
    return [pod for pod in both.started if pod.task == task]


def test_it_ends_with_the_bits_of_the_local_run(both):
    assert both.remote["state_digest"] == both.local["state_digest"]
    assert both.outputs["state_digest"] == both.local["state_digest"]
    for part in ("status", "final_step", "stop_reason", "metrics", "loss"):
        assert both.remote[part] == both.local[part], part
    assert (both.remote["status"], both.remote["final_step"]) == ("stopped", 6)


def test_every_task_of_the_run_was_a_pod(both, packaged):
    graphs = ("workflows.pretrain.pretrain", "workflows.blocks.block_cpu")
    named = {task.rpartition(".")[2] for workflow, _, task in packaged.task_nodes() if workflow in graphs}
    assert len(named) >= 15
    assert {pod.task for pod in both.started} == named | {"initialise", "passthrough"}


def test_each_task_is_tokenised_in_as_many_pods_as_it_has_shares(both):
    mapped = collections.defaultdict(list)
    for pod in both.started:
        if pod.index is not None:
            mapped[pod.task.split("_")[1]].append(pod)  # map_NAME_HASH
    indices = {name: sorted(pod.index for pod in found) for name, found in mapped.items()}
    assert indices == {"survey": [0, 1], "tokenise": [0, 1, 2, 3], "materialise": [0, 1]}
    shares = [pods.structure(pod.outcome.outputs["o0"]) for pod in mapped["tokenise"]]
    assert sorted((share["task"], share["index"], share["made"]) for share in shares) == [
        ("copy", 0, 1),
        ("copy", 1, 1),
        ("text", 0, 1),
        ("text", 1, 1),
    ]
    first = min(both.started.index(pod) for pod in mapped["materialise"])
    assert not {pod.path for pod in both.started[first:]} & {pod.path for pod in mapped["tokenise"]}
    assert not any("tokenise" in pod.text for pod in mapped["materialise"]), "nothing was left for it to make"


def test_nothing_heavy_starts_after_the_stop(both):
    heavy = collections.Counter(pod.task for pod in both.started if pod.is_heavy)
    assert heavy == {"initialise": 1, "train_segment": 4, "evaluate": 2}, "the second segment took three attempts"
    assert [pod.task for pod in both.started[-3:]] == ["passthrough", "publish", "report"]
    for pod in both.started:
        assert pod.image == package.IMAGES["cpu"]
        assert pod.environment.get("JAX_PLATFORMS") == ("cpu" if pod.is_heavy else None)


def test_the_third_attempt_goes_on_from_the_last_committed_step(both):
    first, *attempts = of(both, "train_segment")
    assert first.outcome.outputs is not None
    lost, killed, last = attempts
    assert lost.outcome.error.kind == errors_pb2.ContainerError.RECOVERABLE
    assert "the storage went away" in lost.outcome.error.message
    assert (killed.code, killed.outcome) == (-signal.SIGKILL, Outcome())
    record = pods.structure(last.outcome.outputs["o0"])
    assert (record["start"], record["end"], record["trained_steps"], record["parent"]["step"]) == (3, 6, 1, 5)


def test_a_lock_is_the_executions(both):
    """A pod that was killed leaves its lock on a node of its own, and the next attempt takes it over at once."""
    left = [pod for pod in both.started if pod.lock is not None]
    assert [(pod.task, pod.attempt, pod.lock["owner"]) for pod in left] == [("train_segment", 1, "flyte:execution1")]
    assert both.served.get(LOCK) is None
    assert all(pod.code == 0 for pod in both.started if pod not in left)
