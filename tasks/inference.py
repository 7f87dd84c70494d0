"""Tasks that predict or score rows in batches."""

from __future__ import annotations

from t5core.config.infer_edges import InferJob, InferSummary, ShardRef, ShardRequest
from t5core.config.infer_schema import InferConfig
from tasks import failures, owner, profiles


@profiles.light_task()
def resolve_inference(config: InferConfig, overrides: list[str]) -> InferJob:
    """Settles every setting and claims the folder of the predictions."""
    from t5core.stages import infer

    with failures.retry_what_helps():
        return infer.resolve(config, overrides, owner=owner.current())


@profiles.data_task()
def plan_shards(job: InferJob) -> list[ShardRequest]:
    """Counts the rows and cuts them into shards."""
    from t5core.stages import infer

    with failures.retry_what_helps():
        return infer.plan(job)


@profiles.model_task()
def infer_shard(request: ShardRequest) -> ShardRef:
    """Predicts or scores the rows of one shard and commits them."""
    from t5core.stages import infer

    with failures.retry_what_helps():
        return infer.work_through(request)


@profiles.data_task(enable_deck=True)
def gather_shards(job: InferJob, shards: list[ShardRef]) -> InferSummary:
    """Puts the shards together, and shows the report as the task's deck."""
    from flytekit import Deck

    from t5core.stages import infer

    with failures.retry_what_helps():
        summary, page = infer.gather(job, shards)
    Deck("report", page)
    return summary
