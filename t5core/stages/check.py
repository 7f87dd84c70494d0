"""The decision between two segments: the actions look at the run and its evaluation, and a stop holds from then on."""

from __future__ import annotations

import functools

from t5core import progress
from t5core.actions import budget, configured, keeping
from t5core.actions.base import TRAIN_TASK, ActionMode
from t5core.actions.decision import ActionSet
from t5core.checkpoints import retention
from t5core.config.edges import Cursor, Evaluation, RunInputs, SegmentRecord
from t5core.rundir import RunDirectory
from t5core.stages import failure, holding


def check_actions(inputs: RunInputs, cursor: Cursor, segment: SegmentRecord, evaluation: Evaluation) -> Cursor:
    """Returns the cursor at the segment's checkpoint, halted if an action asked for a stop now or one did before.

    Budgets are looked at after every segment, all other actions after an evaluation; then what no metric keeps
    any more is deleted. The decision follows from the run's records alone, so a repeated one is the same and a
    changed action counts at once.
    """
    holding.check(inputs.run.uri)
    with failure.recorded(inputs.run.uri, where=f"actions at step {segment.checkpoint.step}"):
        moved = _decided(inputs, cursor, segment, evaluation)
        policy = keeping.policy_of(inputs.run.config.train, inputs.run.config.publish)
        if policy.needs_metrics and evaluation.metrics:
            directory = RunDirectory(inputs.run.uri)
            retention.delete_old(directory.checkpoints_uri, policy=policy, metrics=keeping.evaluated(directory))
    return moved


def _decided(inputs: RunInputs, cursor: Cursor, segment: SegmentRecord, evaluation: Evaluation) -> Cursor:
    directory, checkpoint = RunDirectory(inputs.run.uri), segment.checkpoint
    configs = inputs.run.config.train.actions
    spent = functools.partial(budget.recorded, directory, checkpoint.step)
    budgets = configured.after_a_segment(configs, spent=spent)
    if not (budgets or evaluation.metrics):
        return cursor.model_copy(update={"checkpoint": checkpoint})
    others = configured.after_an_evaluation(configs)
    acts = ActionSet({ActionMode.TRAIN: budgets, ActionMode.TRAIN_EVAL: others}, alone=True)
    acts.load(cursor.action_state)
    acts.look(ActionMode.TRAIN, checkpoint, {TRAIN_TASK: {}})
    if evaluation.metrics:
        acts.look(ActionMode.TRAIN_EVAL, checkpoint, evaluation.metrics)
    reasons = acts.asked.values()
    moved = Cursor(
        checkpoint=checkpoint,
        halt=cursor.halt or acts.stop,
        stop_reason="; ".join(filter(None, [cursor.stop_reason, *reasons])),
        action_state=acts.memory(),
    )
    directory.write_cursor(moved)
    if reasons:
        progress.say(f"stop at step {checkpoint.step}: {moved.stop_reason}")
    return moved
