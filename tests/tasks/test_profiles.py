"""Each task takes what it asks of a cluster from one place."""

import ast
import datetime
import importlib
import pathlib
import typing

import pytest
from flytekit import Resources
from flytekit.core.array_node_map_task import ArrayNodeMapTask
from flytekit.core.base_task import PythonTask
from flytekit.core.context_manager import FlyteEntities

from t5core.config.schema import ClusterConfig
from tasks import profiles

ROOT = pathlib.Path(__file__).parents[2]
PROFILES = {name: value for name, value in vars(profiles).items() if name.endswith("_task")}


def all_tasks():
    for package in ("tasks", "workflows"):
        for path in sorted((ROOT / package).glob("*.py")):
            importlib.import_module(f"{package}.{path.stem}".removesuffix(".__init__"))
    tasks = [entity for entity in FlyteEntities.entities if isinstance(entity, PythonTask)]
    ours = [task for task in tasks if task.name.startswith(("tasks.", "workflows."))]
    return {task.name: task for task in ours if not isinstance(task, ArrayNodeMapTask)}


def asked(task):
    """Returns what a task asks for, in the words of the profiles."""
    metadata, resources = task.metadata, task.resources
    found = {
        "container_image": task.container_image,
        "retries": metadata.retries,
        "timeout": metadata.timeout or None,
        "interruptible": metadata.interruptible,
        "requests": resources.requests,
        "limits": resources.limits,
    }
    return {name: value for name, value in found.items() if value not in (None, Resources())}


def test_no_task_stands_outside_of_the_profiles():
    tasks = all_tasks()
    assert len(tasks) >= 12
    for name, task in tasks.items():
        assert asked(task) in [profile.keywords for profile in PROFILES.values()], f"{name} asks for {asked(task)}"


def test_only_the_profiles_use_flytekits_decorators():
    for package in ("tasks", "workflows"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == "flytekit" and path.name != "profiles.py":
                    named = {alias.name for alias in node.names} & {"task", "dynamic", "eager"}
                    assert not named, f"{path} decorates with flytekit's {named}; take a profile"


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_leaves_nothing_to_chance(name):
    profile = PROFILES[name].keywords
    assert profile["retries"] >= 1
    assert profile["interruptible"] in (True, False)
    assert "{{.image." in profile["container_image"]
    if name == "compose_task":
        assert "timeout" not in profile, "it would count for all that the task starts"
    else:
        assert datetime.timedelta(0) < profile["timeout"] <= datetime.timedelta(days=2)
    if name == "model_task":
        assert not {"requests", "limits"} & profile.keys(), "Flyte would put them in the place of the pool's"
    else:
        assert profile["requests"].cpu
        assert profile["limits"].mem


def test_every_pool_of_the_settings_is_there_and_no_other():
    assert set(typing.get_args(ClusterConfig.model_fields["pool"].annotation)) == profiles.POOLS.keys()


@pytest.mark.parametrize("name", profiles.POOLS)
def test_a_pool_names_image_devices_and_platform(name):
    template = profiles.pool_template(name)
    (container,) = template.pod_spec.containers
    assert container.name == template.primary_container_name
    assert container.resources.requests == container.resources.limits, "an accelerator is not shared"
    assert {"cpu", "memory"} < {*container.resources.requests, "accelerator"}
    (platforms,) = (variable.value for variable in container.env if variable.name == "JAX_PLATFORMS")
    kind = name.partition("_")[0]
    assert platforms.split(",")[0] == {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}[kind]
    assert container.image == getattr(profiles, f"{kind.upper()}_IMAGE")
    assert template.labels == {"app.kubernetes.io/name": "t5flow", "t5flow/pool": name}
    device = {"cpu": None, "gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}[kind]
    tolerated = [toleration.key for toleration in template.pod_spec.tolerations or []]
    assert tolerated == ([device] if device else [])
    assert device is None or int(container.resources.requests[device]) == int(name.rpartition("_")[2])
    if kind == "tpu":
        topology = template.pod_spec.node_selector["cloud.google.com/gke-tpu-topology"]
        rows, columns = map(int, topology.split("x"))
        assert rows * columns == int(container.resources.requests[device]), "all chips of one host: a task is one pod"
