"""Evaluation of one checkpoint, or of all of a run, on any tasks.

pyflyte run workflows/evaluate.py
pyflyte run workflows/evaluate.py --config my.yaml --overrides '["checkpoint=published:best"]'
"""

from __future__ import annotations

import pathlib

from flytekit import map_task, workflow

from t5core.config import load
from t5core.config.evaluate_edges import EvaluatedCheckpoint, EvaluationPlan, EvaluationRequest, EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from tasks import profiles
from tasks.evaluation import evaluate_checkpoint, plan_datasets, plan_evaluations, settle_evaluation, tabulate
from workflows.datasets import make_datasets

EXAMPLE = load.load(str(pathlib.Path(__file__).parent / "configs" / "evaluate.yaml"), EvaluationConfig)


@profiles.compose_task()
def evaluate_on_pool(plan: EvaluationPlan, requests: list[EvaluationRequest]) -> list[EvaluatedCheckpoint]:
    """Maps the checkpoints over the node pool of the evaluation, which is known only when it runs."""
    template = profiles.pool_template(plan.config.cluster.pool)
    return map_task(evaluate_checkpoint)(request=requests).with_overrides(pod_template=template)


@workflow
def evaluate(
    config: EvaluationConfig = EXAMPLE,
    overrides: list[str] = [],  # noqa: B006 - flytekit copies it
) -> EvaluationSummary:
    """Evaluates checkpoints: settle, make the datasets, evaluate each checkpoint, put the metrics into a table.

    Args:
        config: YAML file with the settings; without it workflows/configs/evaluate.yaml
        overrides: settings put over it, as a JSON list of "section.key=value"

    Returns:
        how many checkpoints were evaluated and where the table lies
    """
    plan = settle_evaluation(config=config, overrides=overrides)
    datasets = make_datasets(plan_datasets(plan=plan))
    requests = plan_evaluations(plan=plan, datasets=datasets)
    return tabulate(plan=plan, results=evaluate_on_pool(plan=plan, requests=requests))
