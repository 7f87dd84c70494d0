"""Pods on this machine: a task's container command in a process that knows nothing but what a cluster tells it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from flyteidl.core import dynamic_job_pb2, errors_pb2, literals_pb2

from tests.bucket import Bucket
from tests.packaging.engine import Outcome, Pod
from tests.packaging.package import ROOT, pod_spec

BIN = pathlib.Path(sys.executable).parent
FAULTS = ROOT / "tests" / "packaging" / "faults"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """A pod that ran: what the cluster was asked for, and what came of it."""

    path: str
    task: str
    attempt: int
    index: int | None
    image: str
    spec: dict[str, Any]
    environment: dict[str, str]
    outcome: Outcome
    code: int
    text: str
    lock: dict[str, Any] | None

    @property
    def is_heavy(self) -> bool:
        """Whether it asked for a node of a pool."""
        return bool(self.spec)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pods:
    """Starts pods against a bucket, all of one execution.

    Attributes:
      execution: its name, which every pod is told.
      lock_uri: of the run that it works on.
      faults: what goes wrong, by the end of a node path and the attempt (faults/sitecustomize.py).
    """

    bucket: Bucket
    folder: pathlib.Path
    execution: str
    lock_uri: str
    faults: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    started: list[Started] = dataclasses.field(default_factory=list)

    def launch(self, pod: Pod) -> Outcome:
        """Runs one pod to its end."""
        place = f"{self.execution}{pod.path}/{pod.attempt}"
        prefix = f"gs://bucket/metadata/{place}"
        inputs = literals_pb2.LiteralMap(literals=pod.inputs)
        self.bucket.put(f"{prefix}/inputs.pb", inputs.SerializeToString())
        image, command, environment, spec = _container(pod)
        words = {
            "{{.input}}": f"{prefix}/inputs.pb",
            "{{.outputPrefix}}": f"{prefix}/out",
            "{{.rawOutputDataPrefix}}": f"gs://bucket/raw/{place}",
            "{{.checkpointOutputPrefix}}": f"gs://bucket/raw/{place}/checkpoints",
            "{{.prevCheckpointPrefix}}": '""',
        }
        command = [words.get(word, word) for word in command]
        assert not [word for word in command if "{{" in word], f"a cluster would not fill in {command}"
        told = environment | self._told(pod)
        home = self.folder / place.replace("/", "_")
        home.mkdir(parents=True)
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=home,
            env={**_image_environment(home), **self.bucket.environment, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=240,
        )
        outcome = self._outcome(f"{prefix}/out")
        lock = self._lock_left_behind()
        self.started.append(
            Started(
                path=pod.path,
                task=pod.task.id.name.rpartition(".")[2],
                attempt=pod.attempt,
                index=pod.index,
                image=image,
                spec=spec,
                environment=environment,
                outcome=outcome,
                code=done.returncode,
                text=done.stdout,
                lock=lock,
            )
        )
        return outcome

    def _told(self, pod: Pod) -> dict[str, str]:
        """Returns the variables that the engine adds to a container."""
        told = {
            "FLYTE_INTERNAL_EXECUTION_ID": self.execution,
            "FLYTE_INTERNAL_EXECUTION_PROJECT": "project",
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": "development",
            "FLYTE_INTERNAL_TASK_NAME": pod.task.id.name,
            "FLYTE_ATTEMPT_NUMBER": str(pod.attempt),
        }
        if pod.index is not None:
            told |= {"BATCH_JOB_ARRAY_INDEX_VAR_NAME": "FLYTE_K8S_ARRAY_INDEX", "FLYTE_K8S_ARRAY_INDEX": str(pod.index)}
        known = self.faults.items()
        fault = next((f for (end, attempt), f in known if pod.path.endswith(end) and attempt == pod.attempt), None)
        return {**told, "FAULT": fault, "PYTHONPATH": f"{FAULTS}{os.pathsep}{ROOT}"} if fault else told

    def _lock_left_behind(self) -> dict[str, Any] | None:
        """Returns the run's lock if the pod left it, as one on another node would: nobody here can see that it died."""
        content = self.bucket.get(self.lock_uri)
        if content is None:
            return None
        lock = json.loads(content)
        lock["process"]["host"] = "another-node"
        self.bucket.put(self.lock_uri, json.dumps(lock).encode())
        return lock

    def _outcome(self, prefix: str) -> Outcome:
        if error := self.bucket.get(f"{prefix}/error.pb"):
            return Outcome(error=errors_pb2.ErrorDocument.FromString(error).error)
        if futures := self.bucket.get(f"{prefix}/futures.pb"):
            return Outcome(futures=dynamic_job_pb2.DynamicJobSpec.FromString(futures))
        outputs = self.bucket.get(f"{prefix}/outputs.pb")
        if outputs is None:
            return Outcome()
        return Outcome(outputs=dict(literals_pb2.LiteralMap.FromString(outputs).literals))


def _container(pod: Pod) -> tuple[str, list[str], dict[str, str], dict[str, Any]]:
    """Returns image, command, environment and pod spec of a pod; a pod template takes the place of the task."""
    spec = pod_spec(pod.overrides.pod_template)
    if spec:
        (container,) = spec["containers"]
        named = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        return container["image"], [*container["command"], *container["args"]], named, spec
    container = pod.task.container
    named = {pair.key: pair.value for pair in container.env}
    return container.image, [*container.command, *container.args], named, {}


def _image_environment(home: pathlib.Path) -> dict[str, str]:
    """Returns what the image says (containers/), and where a process on this machine may write."""
    return {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "TMPDIR": str(home),
        "EPATH_USE_TF": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # As all tests: the same programs, compiled in less time.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"],
    }


def structure(literal: literals_pb2.Literal) -> Any:
    """Returns the JSON that a literal of one of our models holds."""
    import msgpack

    return msgpack.unpackb(literal.scalar.binary.value)


def as_literal(value: Any) -> literals_pb2.Literal:
    """Returns a model's or a list's literal, as a launch form would send it."""
    from flytekit import FlyteContextManager
    from flytekit.core.type_engine import TypeEngine

    context, kind = FlyteContextManager.current_context(), type(value) if not isinstance(value, list) else list[str]
    return TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()


def read_json(bucket: Bucket, uri: str) -> Any:
    """Returns the JSON at `uri`."""
    content = bucket.get(uri)
    assert content is not None, f"there is no {uri}"
    return json.loads(content)
