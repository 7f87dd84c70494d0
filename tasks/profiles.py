"""What each kind of task asks of a cluster, chosen in one place: image, resources, retries, timeout, interruptibility.

Retries count only failures that are worth another attempt (`tasks.failures`); a user's mistake is never retried. Every
task is idempotent from the run directory, so an attempt continues where the last one committed.
"""

from __future__ import annotations

import datetime
import functools

from flytekit import PodTemplate, Resources, task
from kubernetes.client import V1Container, V1PodSpec, V1ResourceRequirements, V1Toleration

CPU_IMAGE = "{{.image.cpu.fqn}}:{{.image.cpu.version}}"
TRAINER_IMAGE = "{{.image.trainer.fqn}}:{{.image.trainer.version}}"

# Settling settings, references and flags: seconds on any node.
light_task = functools.partial(
    task,
    container_image=CPU_IMAGE,
    requests=Resources(cpu="500m", mem="1Gi"),
    limits=Resources(cpu="2", mem="4Gi"),
    retries=2,
    timeout=datetime.timedelta(minutes=30),
    interruptible=False,
)

# Tokenising, mixing, training a vocabulary: hours of CPU at most, restartable, fit for spot nodes.
data_task = functools.partial(
    task,
    container_image=CPU_IMAGE,
    requests=Resources(cpu="4", mem="8Gi", ephemeral_storage="20Gi"),
    limits=Resources(cpu="8", mem="16Gi", ephemeral_storage="50Gi"),
    retries=3,
    timeout=datetime.timedelta(hours=24),
    interruptible=True,
)

# Whatever needs the model: the node pool's template (`pool_template`) brings resources and selectors, and Flyte would
# put a task's own Resources in the place of the template's, so there are none here.
model_task = functools.partial(
    task,
    container_image=TRAINER_IMAGE,
    retries=5,
    timeout=datetime.timedelta(hours=48),
    interruptible=True,
)


def pool_template(pool: str) -> PodTemplate:
    """Returns the pod template of a node pool by its name in `cluster.pool`."""
    return _POOLS[pool]()


def _template(resources: dict[str, str], selector: dict[str, str], taint: str | None) -> PodTemplate:
    container = V1Container(name="primary", resources=V1ResourceRequirements(requests=resources, limits=resources))
    tolerations = [V1Toleration(key=taint, operator="Exists", effect="NoSchedule")] if taint else None
    return PodTemplate(
        primary_container_name="primary",
        pod_spec=V1PodSpec(containers=[container], node_selector=selector or None, tolerations=tolerations),
    )


def _tpu(accelerator: str, topology: str, chips: int) -> PodTemplate:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return _template({"google.com/tpu": str(chips), "cpu": "24", "memory": "100Gi"}, selector, "google.com/tpu")


_POOLS = {
    "cpu": lambda: _template({"cpu": "8", "memory": "16Gi"}, {}, None),
    "gpu_1": lambda: _template({"nvidia.com/gpu": "1", "cpu": "8", "memory": "48Gi"}, {}, "nvidia.com/gpu"),
    "tpu_v5e_8": lambda: _tpu("tpu-v5-lite-podslice", "2x4", 8),
    "tpu_v6e_8": lambda: _tpu("tpu-v6e-slice", "2x4", 8),
}
POOLS = tuple(_POOLS)
