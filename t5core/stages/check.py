"""The decision between two segments: the actions look at the evaluation, and a stop holds from then on."""

from __future__ import annotations

from t5core import actions, progress
from t5core.actions import ActionMode
from t5core.config.edges import Cursor, Evaluation, RunInputs, SegmentRecord
from t5core.decision import ActionSet
from t5core.rundir import RunDirectory


def check_actions(inputs: RunInputs, cursor: Cursor, segment: SegmentRecord, evaluation: Evaluation) -> Cursor:
    """Returns the cursor at the segment's checkpoint, halted if an action asked for a stop now or one did before.

    The decision follows from the evaluations alone, so a repeated one is the same and a changed action counts at once.
    """
    if not evaluation.metrics:
        return cursor.model_copy(update={"checkpoint": segment.checkpoint})
    configured = inputs.run.config.train.actions
    built = {f"{i}-{config.name}": actions.build_action(config) for i, config in enumerate(configured)}
    acts = ActionSet({ActionMode.TRAIN_EVAL: built}, alone=True)
    acts.load(cursor.action_state)
    acts.look(ActionMode.TRAIN_EVAL, segment.checkpoint, evaluation.metrics)
    reasons = acts.asked.values()
    moved = Cursor(
        checkpoint=segment.checkpoint,
        halt=cursor.halt or acts.stop,
        stop_reason="; ".join(filter(None, [cursor.stop_reason, *reasons])),
        action_state=acts.memory(),
    )
    RunDirectory(inputs.run.uri).write_cursor(moved)
    if reasons:
        progress.say(f"stop at step {segment.checkpoint.step}: {moved.stop_reason}")
    return moved
