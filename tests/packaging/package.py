"""A package as `pyflyte package` writes it for a cluster, read back."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core import tasks_pb2
from flyteidl.core import workflow_pb2 as workflow_nodes
from google.protobuf import json_format

ROOT = pathlib.Path(__file__).parents[2]
PYFLYTE = pathlib.Path(sys.executable).parent / "pyflyte"
IMAGES = {name: f"images.test/t5flow-{name}:v1" for name in ("cpu", "gpu", "tpu")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """What a package holds, each by its name."""

    tasks: dict[str, task_pb2.TaskSpec]
    workflows: dict[str, workflow_pb2.WorkflowSpec]
    launch_plans: dict[str, launch_plan_pb2.LaunchPlan]

    @functools.cached_property
    def templates(self) -> dict[str, tasks_pb2.TaskTemplate]:
        """The tasks' templates."""
        return {name: spec.template for name, spec in self.tasks.items()}

    def task_nodes(self) -> Iterator[tuple[str, workflow_nodes.Node, str]]:
        """Yields (workflow, node, name of its task) for each node of each workflow that is a task, mapped ones too."""
        for name, spec in self.workflows.items():
            for node in spec.template.nodes:
                inner = node.array_node.node if node.HasField("array_node") else node
                if inner.HasField("task_node"):
                    yield name, inner, inner.task_node.reference_id.name


def write(file: pathlib.Path) -> None:
    """Packages everything under workflows/ into `file`, as docs/cluster.md says."""
    images = [argument for name, image in IMAGES.items() for argument in ("-i", f"{name}={image}")]
    pyflyte("--pkgs", "workflows", "package", "--force", *images, "-o", str(file))


def pyflyte(*arguments: str) -> str:
    """Returns what `pyflyte` prints in the repository."""
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([PYFLYTE, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(file: pathlib.Path) -> Package:
    """Returns the contents of `file`."""
    kinds = {"1": (task_pb2.TaskSpec, {}), "2": (workflow_pb2.WorkflowSpec, {}), "3": (launch_plan_pb2.LaunchPlan, {})}
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            if member.name.endswith(".pb"):
                kind, found = kinds[member.name.removesuffix(".pb").rpartition("_")[2]]
                message = kind.FromString(archive.extractfile(member).read())
                found[_identifier(message).name] = message
    return Package(tasks=kinds["1"][1], workflows=kinds["2"][1], launch_plans=kinds["3"][1])


def _identifier(message: Any) -> Any:
    return message.id if isinstance(message, launch_plan_pb2.LaunchPlan) else message.template.id


def pod_spec(pod_template: Any) -> dict[str, Any]:
    """Returns the pod spec of a node's pod template, and {} for a node without one."""
    return json_format.MessageToDict(pod_template.pod_spec)
