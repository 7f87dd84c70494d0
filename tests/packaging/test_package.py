"""What a cluster is handed: every workflow, task and launch plan there is, packaged and read back."""

from __future__ import annotations

import importlib
import re

import pytest
from flytekit import FlyteContextManager, LaunchPlan
from flytekit.core.array_node_map_task import ArrayNodeMapTask
from flytekit.core.base_task import PythonTask
from flytekit.core.context_manager import FlyteEntities
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import WorkflowBase
from flytekit.models.literals import Literal

from t5core import cron
from t5core.config.schedule_schema import ScheduleConfig
from tasks import profiles
from tests.packaging import package
from tests.packaging.package import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("packaging")]

# What the engine fills in when it starts a pod.
FILLED_IN = {"input", "outputPrefix", "rawOutputDataPrefix", "checkpointOutputPrefix", "prevCheckpointPrefix"}


def entities(kind):
    """Returns everything of `kind` under tasks/ and workflows/, by name."""
    for folder in ("tasks", "workflows"):
        for path in sorted((ROOT / folder).glob("*.py")):
            importlib.import_module(f"{folder}.{path.stem}".removesuffix(".__init__"))
    found = {entity.name: entity for entity in FlyteEntities.entities if isinstance(entity, kind)}
    if kind is WorkflowBase:  # a dynamic that has run in this process has left a workflow of its name
        found = {name: entity for name, entity in found.items() if name not in entities(PythonTask)}
    return {name: entity for name, entity in found.items() if name.startswith(("tasks.", "workflows."))}


def function_of(template):
    """Returns the full name of the task that a container runs; a mapped one runs its task under another name."""
    arguments = list(template.container.args)
    return ".".join(arguments[arguments.index(word) + 1] for word in ("task-module", "task-name"))


def test_every_workflow_has_a_launch_plan_and_all_its_tasks(packaged):
    workflows = entities(WorkflowBase)
    assert {"workflows.pretrain.pretrain"} | {f"workflows.blocks.block_{pool}" for pool in profiles.POOLS} <= set(
        workflows
    )
    assert set(packaged.workflows) == set(workflows)
    assert set(packaged.launch_plans) == set(workflows) | set(entities(LaunchPlan))
    for workflow, _, task in packaged.task_nodes():
        assert task in packaged.tasks, f"{workflow} needs {task}"
    plain = {name for name, task in entities(PythonTask).items() if not isinstance(task, ArrayNodeMapTask)}
    assert {function_of(template) for template in packaged.templates.values()} == plain


def test_each_task_asks_for_what_its_profile_says(packaged):
    tasks = entities(PythonTask)
    for name, template in packaged.templates.items():
        task = tasks[function_of(template)]
        metadata, given = task.metadata, template.metadata
        assert given.retries.retries == metadata.retries >= 1, name
        assert given.timeout.seconds == (metadata.timeout.total_seconds() if metadata.timeout else 0), name
        assert given.interruptible is metadata.interruptible, name
        assert (given.discoverable, given.discovery_version) == (metadata.cache, metadata.cache_version), name
        assert template.container.image == package.IMAGES["cpu"], name
        for side in ("requests", "limits"):
            written = {entry.name: entry.value for entry in getattr(template.container.resources, side)}
            asked = getattr(task.resources, side)
            expected = [asked.cpu, asked.mem, asked.ephemeral_storage] if asked else []
            assert sorted(written.values()) == sorted(filter(None, expected)), name


def test_each_node_repeats_what_its_task_asks_for(packaged):
    seen = 0
    for workflow, node, task in packaged.task_nodes():
        metadata, given = packaged.templates[task].metadata, node.metadata
        assert given.retries.retries == metadata.retries.retries, f"{task} in {workflow}"
        assert given.timeout == metadata.timeout, f"{task} in {workflow}"
        assert given.interruptible == metadata.interruptible, f"{task} in {workflow}"
        seen += 1
    assert seen > 10


def test_whatever_needs_the_model_runs_on_a_pool(packaged):
    """A model task has no resources of its own: without a pool it would get a node's leavings."""
    needy = {name for name, template in packaged.templates.items() if not template.container.resources.requests}
    assert {"tasks.training.train_segment", "tasks.training.evaluate", "tasks.training.initialise"} <= needy
    for workflow, node, task in packaged.task_nodes():
        template = node.task_node.overrides.pod_template
        if task in needy:
            (container,) = package.pod_spec(template)["containers"]
            assert container["resources"]["requests"], f"{task} in {workflow}"
        else:
            assert not package.pod_spec(template), f"{task} in {workflow}"


@pytest.mark.parametrize("name", profiles.POOLS)
def test_a_block_asks_for_its_pool(packaged, name):
    pool = profiles.POOLS[name]
    heavy = [node for workflow, node, _ in packaged.task_nodes() if workflow == f"workflows.blocks.block_{name}"]
    heavy = [node for node in heavy if package.pod_spec(node.task_node.overrides.pod_template)]
    assert len(heavy) == 2, "a segment and its evaluation"
    for node in heavy:
        template = node.task_node.overrides.pod_template
        spec, labels = package.pod_spec(template), dict(template.metadata.labels)
        (container,) = spec["containers"]
        assert container["name"] == template.primary_container_name
        assert container["image"] == package.IMAGES[name.partition("_")[0]]
        assert container["resources"] == {"requests": pool.resources, "limits": pool.resources}
        assert container["env"] == [{"name": "JAX_PLATFORMS", "value": pool.platforms}]
        assert container["args"] == list(packaged.templates[node.task_node.reference_id.name].container.args)
        assert spec.get("nodeSelector", {}) == pool.selector
        tolerated = [{"key": pool.taint, "operator": "Exists", "effect": "NoSchedule"}] if pool.taint else []
        assert spec.get("tolerations", []) == tolerated
        assert labels == {"app.kubernetes.io/name": "t5flow", "t5flow/pool": name}


def test_a_launch_plan_carries_its_labels_and_every_input_without_a_default(packaged):
    plans = entities(LaunchPlan)
    for name, plan in packaged.launch_plans.items():
        inputs = packaged.workflows[plan.spec.workflow_id.name].template.interface.inputs.variables
        given = {*plan.spec.default_inputs.parameters, *plan.spec.fixed_inputs.literals}
        assert given == set(inputs), name
        for side in ("labels", "annotations"):
            declared = getattr(plans.get(name), side, None)
            assert dict(getattr(plan.spec, side).values) == (declared.values if declared else {}), name


def test_a_scheduled_plan_fires_as_written_and_leaves_nothing_open_but_the_time(packaged):
    """The scheduler gives the time of each firing and nothing else: any other open input fails at every firing."""
    found = {}
    for name, plan in packaged.launch_plans.items():
        schedule = plan.spec.entity_metadata.schedule
        if schedule.WhichOneof("ScheduleExpression") is None:
            continue
        found[name] = schedule.cron_schedule.schedule
        cron.check(found[name])
        open_ones = {name for name, parameter in plan.spec.default_inputs.parameters.items() if parameter.required}
        assert open_ones == {schedule.kickoff_time_input_arg} == {"kickoff_time"}, name
        assert set(plan.spec.fixed_inputs.literals) == {"config", "schedule"}, name
        literal = Literal.from_flyte_idl(plan.spec.fixed_inputs.literals["schedule"])
        settings = TypeEngine.to_python_value(FlyteContextManager.current_context(), literal, ScheduleConfig)
        assert settings.cron == found[name], "a tick is told apart by the expression that fires it"
        assert plan.spec.labels.values["t5flow/schedule"] == settings.name
    assert found == {
        "workflows.schedules.nightly_finetune": "0 3 * * *",
        "workflows.schedules.nightly_evaluate": "0 6 * * *",
    }


def test_a_tick_runs_its_pipeline_or_says_that_it_is_skipped(packaged):
    for name, pipeline in (("finetune", "workflows.finetune.finetune"), ("evaluate", "workflows.evaluate.evaluate")):
        nodes = packaged.workflows[f"workflows.schedules.scheduled_{name}"].template.nodes
        (branch,) = (node.branch_node.if_else for node in nodes if node.HasField("branch_node"))
        assert branch.case.then_node.workflow_node.sub_workflow_ref.name == pipeline
        assert branch.else_node.task_node.reference_id.name == f"tasks.scheduling.skipped_{name}"


def test_nothing_is_left_for_the_cluster_to_guess(packaged):
    for message in (*packaged.tasks.values(), *packaged.workflows.values()):
        left = set(re.findall(r"\{\{\s*\.(\w+)[^}]*\}\}", str(message)))
        assert left <= FILLED_IN, f"{left - FILLED_IN} in {message.template.id.name}"


def test_everything_registers_in_a_dry_run(packaged):
    config = ("-c", str(ROOT / "flyte.config"))
    said = package.pyflyte(*config, "register", "--dry-run", "--copy", "none", "--version", "v1", "workflows")
    listed = re.findall(r"\[✔\] (Task|Workflow|Launch Plan):\s+(\S+)\s+\(Dry run Mode\)", said)
    assert {name for kind, name in listed if kind == "Task"} == set(packaged.tasks)
    assert {name for kind, name in listed if kind == "Workflow"} == set(packaged.workflows)
    assert {name for kind, name in listed if kind == "Launch Plan"} == set(packaged.launch_plans)
