"""Tasks that settle what a run is."""

from __future__ import annotations

from t5core.config.edges import ResolvedRun, TaskRequest, VocabularyRef
from t5core.config.schema import PretrainConfig
from tasks import failures, owner, profiles


@profiles.light_task()
def resolve_config(config: PretrainConfig, overrides: list[str], workflow: str = "pretrain") -> ResolvedRun:
    """Settles every setting and claims the run directory for a run of `workflow`."""
    from t5core.stages import resolve

    with failures.retry_what_helps():
        return resolve.resolve_run(config, overrides, owner=owner.current(), workflow=workflow)


@profiles.light_task()
def preflight(run: ResolvedRun) -> ResolvedRun:
    """Computes what the run will take, and refuses one that cannot work."""
    from t5core.stages import preflight as stage

    with failures.retry_what_helps():
        return stage.preflight(run, on_pool=owner.current() is not None)


@profiles.light_task()
def plan_tasks(run: ResolvedRun, vocabulary: VocabularyRef) -> list[TaskRequest]:
    """Lists the tasks to materialise, one request each."""
    from t5core.stages import resolve

    with failures.retry_what_helps():
        return resolve.task_requests(run, vocabulary)
