"""What runs have in common: the way from a settled run to its report, and the chain of segments in it.

A segment is trained and evaluated, and then it is decided whether to go on.

Whether to go on is known only when a block has run, so the chain is a dynamic workflow in which each later block sits
in a conditional. After a stop only `passthrough` nodes run: no accelerator is asked for.
"""

from __future__ import annotations

from typing import Any

from flytekit import conditional, workflow

from t5core import schedule
from t5core.config.edges import Cursor, RunInputs
from tasks import profiles
from tasks.configuration import plan_tasks
from tasks.data import assemble_mixture, build_vocabulary, verify_vocabulary
from tasks.publishing import publish
from tasks.reporting import report
from tasks.training import BlockResult, check_actions, evaluate, initialise, passthrough, train_segment
from workflows.datasets import make_datasets


def _make_block(pool: str) -> Any:
    """Returns the block whose heavy tasks run on `pool`: overrides do not reach into a workflow from outside."""

    def block(inputs: RunInputs, cursor: Cursor, end: int) -> BlockResult:
        """One segment with its evaluation and its decision."""
        template = profiles.pool_template(pool)
        segment = train_segment(inputs=inputs, cursor=cursor, end=end).with_overrides(pod_template=template)
        evaluation = evaluate(inputs=inputs, segment=segment).with_overrides(pod_template=template)
        return check_actions(inputs=inputs, cursor=cursor, segment=segment, evaluation=evaluation)

    block.__name__ = block.__qualname__ = f"block_{pool}"
    return workflow(block)


BLOCKS = {pool: _make_block(pool) for pool in profiles.POOLS}


@profiles.compose_task()
def train_in_segments(inputs: RunInputs) -> Cursor:
    """Initialises, then chains one block per segment of the whole run; what is committed already returns at once."""
    config = inputs.run.config
    block = BLOCKS[config.cluster.pool]
    start = initialise(inputs=inputs).with_overrides(pod_template=profiles.pool_template(config.cluster.pool))
    ends = [end for _, end in schedule.of(config.train).segments(inputs.run.first_step)]
    result = block(inputs=inputs, cursor=start, end=ends[0])
    for end in ends[1:]:
        result = (
            conditional(f"segment_to_{end}")
            .if_(result.halt.is_false())
            .then(block(inputs=inputs, cursor=result.cursor, end=end))
            .else_()
            .then(passthrough(cursor=result.cursor))
        )
    return result.cursor


def train_and_report(run: Any) -> Any:
    """Composes the nodes from a run to its summary, both of them promises; in a workflow they are its own nodes."""
    vocabulary = build_vocabulary(run=run)
    datasets = make_datasets(plan_tasks(run=run, vocabulary=vocabulary))
    mixture = assemble_mixture(run=run, vocabulary=vocabulary, tasks=datasets)
    inputs = verify_vocabulary(run=run, vocabulary=vocabulary, tasks=datasets, mixture=mixture)
    end = train_in_segments(inputs=inputs)
    return report(inputs=inputs, cursor=publish(inputs=inputs, cursor=end))
