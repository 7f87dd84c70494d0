"""Between the last segment and the report: the best checkpoint takes the name that the run publishes under, or not."""

from __future__ import annotations

import math

from t5core import incumbent, progress, publishing, records
from t5core.checkpoints import index
from t5core.config.edges import Cursor, Evaluation, RunInputs
from t5core.config.publish_schema import PublishConfig
from t5core.publishing import Candidate
from t5core.rundir import RunDirectory
from t5core.stages import evaluate, failure


def publish(inputs: RunInputs, cursor: Cursor, *, owner: str | None = None) -> Cursor:
    """Returns `cursor` as it is, once the decision about the run's best checkpoint is made and recorded.

    Without `publish` in the configuration nothing is done.

    Raises:
      RunDirectoryError: nothing can be written below the root.
    """
    rule = inputs.run.config.publish
    if rule is None:
        return cursor
    with failure.recorded(inputs.run.uri, where="publish"):
        decision = publishing.publish_if_better(
            rule,
            candidate_of(inputs, cursor, rule),
            root=inputs.run.config.run.root,
            remeasured=incumbent.recorded(inputs.run.uri),
            execution=owner,
        )
        records.write(RunDirectory(inputs.run.uri).publication_uri, decision)
    progress.say(f"publish: {publishing.in_words(decision)}")
    return cursor


def candidate_of(inputs: RunInputs, cursor: Cursor, rule: PublishConfig) -> Candidate:
    """Returns the best checkpoint by the rule's metric that was evaluated and still lies there, else the last one."""
    settings = evaluate.settings_fingerprint(inputs)
    by_step = {found.step: found for found in _evaluated(inputs, cursor, settings)}
    values = {step: found.metrics.get(rule.task, {}).get(rule.metric) for step, found in by_step.items()}
    sign = 1 if rule.mode == "min" else -1
    ranked = sorted((sign * v, -step) for step, v in values.items() if v is not None and math.isfinite(v))
    best = -ranked[0][1] if ranked else cursor.checkpoint.step
    return Candidate(
        run_name=inputs.run.config.run.name,
        run_uri=inputs.run.uri,
        checkpoint=by_step[best].checkpoint if best in by_step else cursor.checkpoint,
        value=values.get(best),
        measured_on=settings,
    )


def _evaluated(inputs: RunInputs, cursor: Cursor, settings: str) -> list[Evaluation]:
    """Returns the evaluations up to the cursor of checkpoints that are still the ones that were evaluated."""
    directory = RunDirectory(inputs.run.uri)
    committed = index.committed_steps(directory.checkpoints_uri)
    return [
        found
        for found in directory.evaluations()
        if found.settings == settings
        and found.step <= cursor.checkpoint.step
        and found.step in committed
        and index.reference(directory.checkpoints_uri, found.step).digest == found.checkpoint.digest
    ]
