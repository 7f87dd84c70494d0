"""What each kind of task asks of a cluster, chosen in one place: image, resources, retries, timeout, interruptibility.

Retries count only failures that are worth another attempt (`tasks.failures`); a user's mistake is never retried. Every
task is idempotent from the run directory, so an attempt continues where the last one committed.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools

from flytekit import PodTemplate, Resources, dynamic, task
from kubernetes.client import V1Container, V1EnvVar, V1PodSpec, V1ResourceRequirements, V1Toleration

# The images by their names in flyte.config; containers/ has a Dockerfile for each.
CPU_IMAGE = "{{.image.cpu.fqn}}:{{.image.cpu.version}}"
GPU_IMAGE = "{{.image.gpu.fqn}}:{{.image.gpu.version}}"
TPU_IMAGE = "{{.image.tpu.fqn}}:{{.image.tpu.version}}"

# Settling settings, references and flags: seconds on any node, so that an eviction would cost more than the node.
light_task = functools.partial(
    task,
    container_image=CPU_IMAGE,
    requests=Resources(cpu="500m", mem="1Gi"),
    limits=Resources(cpu="2", mem="4Gi"),
    retries=2,
    timeout=datetime.timedelta(minutes=30),
    interruptible=False,
)

# Writing out which tasks follow from what a run turned out to be. A timeout would count for all that it starts, hence
# there is none.
compose_task = functools.partial(
    dynamic,
    container_image=CPU_IMAGE,
    requests=Resources(cpu="500m", mem="1Gi"),
    limits=Resources(cpu="2", mem="4Gi"),
    retries=2,
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

# Whatever needs the model, on a pool: `pool_template` brings image, resources and selectors, and Flyte would put a
# task's own Resources in the place of the template's, so there are none here. A preemption that is answered in time
# counts as a retry, and a long segment on spot nodes sees many.
model_task = functools.partial(
    task,
    container_image=CPU_IMAGE,
    retries=20,
    timeout=datetime.timedelta(hours=48),
    interruptible=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Nodes of one kind. A task is one pod, so an accelerator pool is one host with all of its chips.

    Attributes:
      image: that the model tasks run in.
      resources: requested of the node and its limit too.
      platforms: that JAX has to find; without the accelerator it fails instead of training on the processor.
      selector: labels of the nodes.
      taint: that keeps other pods off the nodes; None: nothing does.
    """

    image: str
    resources: dict[str, str]
    platforms: str
    selector: dict[str, str] = dataclasses.field(default_factory=dict)
    taint: str | None = None


def _tpu(accelerator: str, topology: str, chips: int) -> Pool:
    return Pool(
        image=TPU_IMAGE,
        resources={"google.com/tpu": str(chips), "cpu": "24", "memory": "100Gi"},
        platforms="tpu,cpu",
        selector={
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        },
        taint="google.com/tpu",
    )


POOLS = {
    "cpu": Pool(image=CPU_IMAGE, resources={"cpu": "8", "memory": "16Gi"}, platforms="cpu"),
    "gpu_1": Pool(
        image=GPU_IMAGE,
        resources={"nvidia.com/gpu": "1", "cpu": "8", "memory": "48Gi"},
        platforms="cuda",  # "cuda,cpu" would train on the processor where no GPU is found
        taint="nvidia.com/gpu",
    ),
    "tpu_v5e_8": _tpu("tpu-v5-lite-podslice", "2x4", 8),
    "tpu_v6e_8": _tpu("tpu-v6e-slice", "2x4", 8),
}


def pool_template(name: str) -> PodTemplate:
    """Returns the pod template of a node pool by its name in `cluster.pool`."""
    pool = POOLS[name]
    container = V1Container(
        name="primary",
        image=pool.image,
        resources=V1ResourceRequirements(requests=pool.resources, limits=pool.resources),
        env=[V1EnvVar(name="JAX_PLATFORMS", value=pool.platforms)],
    )
    tolerations = [V1Toleration(key=pool.taint, operator="Exists", effect="NoSchedule")] if pool.taint else None
    return PodTemplate(
        primary_container_name="primary",
        pod_spec=V1PodSpec(containers=[container], node_selector=pool.selector or None, tolerations=tolerations),
        labels={"app.kubernetes.io/name": "t5flow", "t5flow/pool": name},
    )
