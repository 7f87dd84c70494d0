"""Tasks that need the model: initialisation, segments, evaluation; and the decision between segments."""

from __future__ import annotations

from typing import NamedTuple

from t5core.config.edges import Cursor, Evaluation, RunInputs, SegmentRecord
from tasks import failures, owner, profiles


class BlockResult(NamedTuple):
    """Where the run stands; `halt` stands apart because conditionals take plain values only."""

    cursor: Cursor
    halt: bool


@profiles.model_task()
def initialise(inputs: RunInputs) -> Cursor:
    """Commits the state before the first step, or finds where the run stands."""
    from t5core.stages import initialise

    with failures.retry_what_helps():
        return initialise.initialise(inputs, owner=owner.current())


@profiles.model_task()
def train_segment(inputs: RunInputs, cursor: Cursor, end: int) -> SegmentRecord:
    """Trains up to step `end` and commits it."""
    from t5core.stages import segment

    with failures.retry_what_helps():
        return segment.train_segment(inputs, cursor, end, owner=owner.current())


@profiles.model_task()
def evaluate(inputs: RunInputs, segment: SegmentRecord) -> Evaluation:
    """Evaluates the segment's checkpoint where the schedule asks for it."""
    from t5core.stages import evaluate

    with failures.retry_what_helps():
        return evaluate.evaluate(inputs, segment)


@profiles.light_task()
def check_actions(inputs: RunInputs, cursor: Cursor, segment: SegmentRecord, evaluation: Evaluation) -> BlockResult:
    """Runs the actions on the evaluation and moves the cursor on; a stop holds from here on."""
    from t5core.stages import check

    with failures.retry_what_helps():
        moved = check.check_actions(inputs, cursor, segment, evaluation)
    return BlockResult(cursor=moved, halt=moved.halt)


@profiles.light_task()
def passthrough(cursor: Cursor) -> BlockResult:
    """Hands the cursor on after a stop."""
    return BlockResult(cursor=cursor, halt=cursor.halt)
