"""Walks a compiled workflow as Flyte's engine does: nodes in their order, each task in a pod of its own.

It knows what the engine knows and no more: protobufs in, protobufs out. Promises, mapped tasks, conditionals and
dynamic workflows are resolved here; what a pod does is the business of `launch`.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flyteidl.core import condition_pb2, dynamic_job_pb2, errors_pb2, literals_pb2, tasks_pb2, workflow_pb2

from tests.packaging.package import Package

Literals = dict[str, literals_pb2.Literal]
SYSTEM_RETRIES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pod:
    """One attempt of a task: what is started, and where in the graph."""

    path: str
    attempt: int
    task: tasks_pb2.TaskTemplate
    overrides: workflow_pb2.TaskNodeOverrides
    inputs: Literals
    index: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a pod left: outputs, a compiled graph to go on with, an error, or none of them when it died."""

    outputs: Literals | None = None
    futures: dynamic_job_pb2.DynamicJobSpec | None = None
    error: errors_pb2.ContainerError | None = None


class Failed(Exception):
    """A node failed for good."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """The graphs and tasks that a graph may refer to."""

    tasks: Mapping[str, tasks_pb2.TaskTemplate]
    workflows: Mapping[str, workflow_pb2.WorkflowTemplate]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """Runs workflows of a package; `launch` runs a pod and returns what it left."""

    package: Package
    launch: Callable[[Pod], Outcome]

    def run(self, workflow: str, inputs: Literals) -> Literals:
        """Returns the outputs of a workflow."""
        spec = self.package.workflows[workflow]
        subs = {sub.id.name: sub for sub in spec.sub_workflows}
        return self._graph(spec.template, Scope(tasks=self.package.templates, workflows=subs), inputs, path="")

    def _graph(self, graph: Any, scope: Scope, inputs: Literals, *, path: str) -> Literals:
        """Runs the nodes of a workflow or of a dynamic job, and returns its outputs."""
        done: dict[str, Literals] = {"": inputs, "start-node": inputs}
        waiting = [node for node in graph.nodes if node.id not in ("start-node", "end-node")]
        while waiting:
            ready = next(node for node in waiting if set(_upstream(node)) <= done.keys())
            done[ready.id] = self._node(ready, scope, done, path=f"{path}/{ready.id}")
            waiting.remove(ready)
        return {binding.var: resolve(binding.binding, done) for binding in graph.outputs}

    def _node(self, node: workflow_pb2.Node, scope: Scope, done: dict[str, Literals], *, path: str) -> Literals:
        inputs = {binding.var: resolve(binding.binding, done) for binding in node.inputs}
        kind = node.WhichOneof("target")
        if kind == "task_node":
            return self._task(node, scope, inputs, path=path)
        if kind == "workflow_node":
            name = getattr(node.workflow_node, node.workflow_node.WhichOneof("reference")).name
            return self._graph(scope.workflows[name], scope, inputs, path=path)
        if kind == "branch_node":
            chosen = choose(node.branch_node.if_else, inputs)
            return self._node(chosen, scope, done, path=f"{path}/{chosen.id}")
        assert kind == "array_node", f"{path} is a {kind}, which this engine does not know"
        return self._array(node.array_node.node, scope, inputs, path=path)

    def _array(self, node: workflow_pb2.Node, scope: Scope, inputs: Literals, *, path: str) -> Literals:
        """Runs a mapped task, one pod for each element; each gets all of the elements and its own index."""
        (count,) = {len(given.collection.literals) for given in inputs.values() if given.HasField("collection")}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(
                pool.map(lambda i: self._task(node, scope, inputs, path=f"{path}/{i}", index=i), range(count))
            )
        return {var: _collection(result[var] for result in results) for var in results[0]}

    def _task(
        self, node: workflow_pb2.Node, scope: Scope, inputs: Literals, *, path: str, index: int | None = None
    ) -> Literals:
        """Runs a task, again and again while its retries last and another attempt may help."""
        task = scope.tasks[node.task_node.reference_id.name]
        retries = {"recoverable": node.metadata.retries.retries, "system": SYSTEM_RETRIES}
        attempt = 0
        while True:
            outcome = self.launch(
                Pod(
                    path=path,
                    attempt=attempt,
                    task=task,
                    overrides=node.task_node.overrides,
                    inputs=inputs,
                    index=index,
                )
            )
            if outcome.outputs is not None:
                return outcome.outputs
            if outcome.futures is not None:
                return self._graph(outcome.futures, _inner(outcome.futures), {}, path=path)
            kind = "system" if outcome.error is None else "recoverable"
            if outcome.error is not None and outcome.error.kind != errors_pb2.ContainerError.RECOVERABLE:
                raise Failed(f"{path} {task.id.name}: {outcome.error.message}")
            if retries[kind] == 0:
                raise Failed(f"{path} {task.id.name}: no retries left")
            retries[kind] -= 1
            attempt += 1


def _inner(job: dynamic_job_pb2.DynamicJobSpec) -> Scope:
    """Returns what the graph of a dynamic job may refer to: what it carries itself."""
    return Scope(
        tasks={task.id.name: task for task in job.tasks},
        workflows={sub.id.name: sub for sub in job.subworkflows},
    )


def _upstream(node: workflow_pb2.Node) -> Iterable[str]:
    yield from node.upstream_node_ids
    for binding in node.inputs:
        yield from _promised(binding.binding)


def _promised(binding: literals_pb2.BindingData) -> Iterable[str]:
    kind = binding.WhichOneof("value")
    if kind == "promise":
        yield binding.promise.node_id
    elif kind == "collection":
        for inner in binding.collection.bindings:
            yield from _promised(inner)
    elif kind == "map":
        for inner in binding.map.bindings.values():
            yield from _promised(inner)


def resolve(binding: literals_pb2.BindingData, done: Mapping[str, Literals]) -> literals_pb2.Literal:
    """Returns the value that a binding stands for once the nodes that it names are done."""
    kind = binding.WhichOneof("value")
    if kind == "promise":
        assert not binding.promise.attr_path, "an attribute of a promise reads well and fails in conditionals"
        return done[binding.promise.node_id][binding.promise.var]
    if kind == "scalar":
        return literals_pb2.Literal(scalar=binding.scalar)
    if kind == "collection":
        return _collection(resolve(inner, done) for inner in binding.collection.bindings)
    values = {key: resolve(inner, done) for key, inner in binding.map.bindings.items()}
    return literals_pb2.Literal(map=literals_pb2.LiteralMap(literals=values))


def _collection(literals: Iterable[literals_pb2.Literal]) -> literals_pb2.Literal:
    return literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=list(literals)))


def choose(if_else: workflow_pb2.IfElseBlock, inputs: Literals) -> workflow_pb2.Node:
    """Returns the node of the branch that holds; it fails where none does."""
    for block in (if_else.case, *if_else.other):
        if _holds(block.condition, inputs):
            return block.then_node
    assert if_else.HasField("else_node"), if_else.error.message
    return if_else.else_node


def _holds(expression: condition_pb2.BooleanExpression, inputs: Literals) -> bool:
    assert expression.HasField("comparison"), "only comparisons are used"
    left, right = (
        _operand(side, inputs) for side in (expression.comparison.left_value, expression.comparison.right_value)
    )
    if expression.comparison.operator == condition_pb2.ComparisonExpression.EQ:
        return left == right
    assert expression.comparison.operator == condition_pb2.ComparisonExpression.NEQ
    return left != right


def _operand(operand: condition_pb2.Operand, inputs: Literals) -> Any:
    kind = operand.WhichOneof("val")
    primitive = inputs[operand.var].scalar.primitive if kind == "var" else operand.primitive
    if kind == "scalar":
        primitive = operand.scalar.primitive
    return getattr(primitive, primitive.WhichOneof("value"))
