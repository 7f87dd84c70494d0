"""Both ends of every edge of every workflow have the same Python type.

flytekit checks this at run time only: a string joined to a structured input imports and serialises.
"""

import importlib
import pkgutil
import typing

import pytest
from flytekit.core.condition import BranchNode
from flytekit.core.workflow import PythonFunctionWorkflow

import workflows
from t5core.config.schema import PretrainConfig
from tasks import training
from workflows import blocks


def found():
    """Returns every workflow in the package `workflows`, by name."""
    modules = [
        importlib.import_module(f"workflows.{module.name}") for module in pkgutil.iter_modules(workflows.__path__)
    ]
    values = [value for module in modules for value in vars(module).values()] + list(blocks.BLOCKS.values())
    return {value.short_name: value for value in values if isinstance(value, PythonFunctionWorkflow)}


WORKFLOWS = found()


def edges(workflow):
    """Yields (name, type given, type taken) for each binding of each node, and for the workflow's outputs."""
    nodes = {node.id: node for node in workflow.nodes}
    for node in (inner for outer in workflow.nodes for inner in branches(outer)):
        taken = node.flyte_entity.python_interface.inputs
        for binding in node.bindings:
            if binding.binding.promise is None:
                continue  # a constant, which flytekit converts when the workflow is declared
            yield f"{node.flyte_entity.name}.{binding.var}", given(workflow, nodes, binding.binding), taken[binding.var]
    for binding in workflow.output_bindings:
        outputs = workflow.python_interface.outputs
        yield f"{workflow.name}.{binding.var}", given(workflow, nodes, binding.binding), outputs[binding.var]


def given(workflow, nodes, binding):
    source = binding.promise
    if not source.node_id or source.node_id not in nodes:
        return workflow.python_interface.inputs[source.var]
    kinds = [branch.flyte_entity.python_interface.outputs[source.var] for branch in branches(nodes[source.node_id])]
    assert all(kind == kinds[0] for kind in kinds), f"the branches behind {source.var} return {kinds}"
    return kinds[0]


def branches(node):
    """Returns the nodes one of which runs: those of a conditional, or the node itself."""
    if not isinstance(node.flyte_entity, BranchNode):
        return [node]
    block = node.flyte_entity._ifelse_block
    return [block.case.then_node, *(case.then_node for case in block.other or []), block.else_node]


def plain(type_):
    """Returns the type with `typing.List[x]`, flytekit's own spelling in mapped tasks, read as `list[x]`."""
    return list[typing.get_args(type_)[0]] if typing.get_origin(type_) is list else type_


def test_every_workflow_is_found():
    assert {"pretrain", "finetune", "convert", "block_cpu"} <= WORKFLOWS.keys()


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_both_ends_of_every_edge_agree(name):
    joined = list(edges(WORKFLOWS[name]))
    assert len(joined) >= 4
    for edge, gives, takes in joined:
        assert plain(gives) == plain(takes), f"{edge} is given {gives} and takes {takes}"


def test_every_block_and_its_passthrough_are_interchangeable():
    """The branches of a conditional must return the same thing."""
    passed = typing.get_type_hints(training.passthrough.task_function)["return"]
    for block in blocks.BLOCKS.values():
        assert typing.get_type_hints(block._workflow_function)["return"] is passed
        assert block.python_interface.outputs == training.passthrough.python_interface.outputs


def test_the_probe_sees_a_wrong_edge():
    from flytekit import task, workflow

    @task
    def gives_text() -> str:
        return "a"

    @task
    def takes_cursor(cursor: training.Cursor) -> int:
        return 1

    @workflow
    def wrong() -> int:
        return takes_cursor(cursor=gives_text())

    assert any(gives != takes for _, gives, takes in edges(wrong))


def test_every_kind_of_action_crosses_an_edge_as_it_is():
    """Kinds have settings of their own, so a list of them is a union, which Flyte turns into a structure and back."""
    from flytekit import FlyteContextManager
    from flytekit.core.type_engine import TypeEngine

    actions = [
        {"name": "early_stopping", "task": "mine", "patience": 2, "rtol": 1e-05},
        {"name": "terminate_on_nan", "task": "mine"},
        {"name": "budget", "target_tokens": 2**53 + 1},
        {"name": "keep_best", "task": "mine", "mode": "max"},
        {"name": "call", "function": "a.b", "arguments": {"i": 3, "f": 3.0, "yes": True, "none": None}},
    ]
    settings = {"data": {"tasks": [{"name": "mine", "files": ["a.txt"]}]}, "train": {"actions": actions}}
    config = PretrainConfig.model_validate(settings)
    context, literal_type = FlyteContextManager.current_context(), TypeEngine.to_literal_type(PretrainConfig)
    literal = TypeEngine.to_literal(context, config, PretrainConfig, literal_type)
    back = TypeEngine.to_python_value(context, literal, PretrainConfig)
    assert back == config
    assert back.model_dump_json() == config.model_dump_json(), "equal numbers are of the same type too"
