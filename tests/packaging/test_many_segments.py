"""A run may be cut into many segments: what the engine is handed grows by the same amount for each."""

import collections

import pytest
from flytekit.configuration import SERIALIZED_CONTEXT_ENV_VAR

from tests.packaging import compile_segments

pytestmark = pytest.mark.xdist_group("packaging")

SEGMENTS = 30
MOST_BYTES_OF_A_SEGMENT = 3000


def test_each_segment_adds_a_node_of_one_size_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv(SERIALIZED_CONTEXT_ENV_VAR, "")  # put back at the end
    job = compile_segments.compiled(SEGMENTS, tmp_path)
    nodes = [node for node in job.nodes if node.id not in ("start-node", "end-node")]
    assert collections.Counter(node.WhichOneof("target") for node in nodes) == {
        "task_node": 1,
        "workflow_node": 1,
        "branch_node": SEGMENTS - 1,
    }
    sizes = [node.ByteSize() for node in nodes if node.HasField("branch_node")]
    assert max(sizes) - min(sizes) < 50, "digits of steps and of node names"
    assert max(sizes) < MOST_BYTES_OF_A_SEGMENT
    assert [sub.id.name for sub in job.subworkflows] == ["workflows.blocks.block_cpu"]
    assert len(job.tasks) == 5, "initialise, train_segment, evaluate, check_actions, passthrough: once each"
