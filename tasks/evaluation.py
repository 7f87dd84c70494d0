"""Tasks that evaluate checkpoints of runs and put the metrics into a table."""

from __future__ import annotations

from t5core.config.edges import DatasetRef, TaskRequest
from t5core.config.evaluate_edges import EvaluatedCheckpoint, EvaluationPlan, EvaluationRequest, EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from tasks import failures, owner, profiles


@profiles.light_task()
def settle_evaluation(config: EvaluationConfig, overrides: list[str]) -> EvaluationPlan:
    """Settles every setting, finds the checkpoints and claims the folder of the evaluation."""
    from t5core.stages import evaluation

    with failures.retry_what_helps():
        return evaluation.settle(config, overrides, owner=owner.current())


@profiles.light_task()
def plan_datasets(plan: EvaluationPlan) -> list[TaskRequest]:
    """Lists the tasks to materialise, one request each."""
    from t5core.stages import evaluation

    with failures.retry_what_helps():
        return evaluation.dataset_requests(plan)


@profiles.light_task()
def plan_evaluations(plan: EvaluationPlan, datasets: list[DatasetRef]) -> list[EvaluationRequest]:
    """Lists the checkpoints to evaluate, one request each."""
    from t5core.stages import evaluation

    with failures.retry_what_helps():
        return evaluation.evaluation_requests(plan, datasets)


@profiles.model_task()
def evaluate_checkpoint(request: EvaluationRequest) -> EvaluatedCheckpoint:
    """Evaluates one checkpoint, unless the same was done before."""
    from t5core.stages import evaluation

    with failures.retry_what_helps():
        return evaluation.evaluate_checkpoint(request)


@profiles.light_task(enable_deck=True)
def tabulate(plan: EvaluationPlan, results: list[EvaluatedCheckpoint]) -> EvaluationSummary:
    """Puts the metrics into a table by step, and shows the report as the task's deck."""
    from flytekit import Deck

    from t5core.stages import evaluation

    with failures.retry_what_helps():
        summary, page = evaluation.tabulate(plan, results)
    Deck("report", page)
    return summary
