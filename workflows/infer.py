"""Batch prediction or scoring with a trained checkpoint.

pyflyte run workflows/infer.py
pyflyte run workflows/infer.py --config my.yaml --overrides '["checkpoint=published:best"]'
"""

from __future__ import annotations

import pathlib

from flytekit import map_task, workflow

from t5core.config import load
from t5core.config.infer_edges import InferJob, InferSummary, ShardRef, ShardRequest
from t5core.config.infer_schema import InferConfig
from tasks import profiles
from tasks.inference import gather_shards, infer_shard, plan_shards, resolve_inference

EXAMPLE = load.load(str(pathlib.Path(__file__).parent / "configs" / "infer.yaml"), InferConfig)


@profiles.compose_task()
def infer_on_pool(job: InferJob, requests: list[ShardRequest]) -> list[ShardRef]:
    """Maps the shards over the node pool of the job, which is known only when it runs."""
    template = profiles.pool_template(job.config.cluster.pool)
    return map_task(infer_shard)(request=requests).with_overrides(pod_template=template)


@workflow
def infer(config: InferConfig = EXAMPLE, overrides: list[str] = []) -> InferSummary:  # noqa: B006 - flytekit copies it
    """Predicts or scores rows of files or of a SeqIO task: settle, cut into shards, work through each, gather.

    Args:
        config: YAML file with the settings; without it workflows/configs/infer.yaml
        overrides: settings put over it, as a JSON list of "section.key=value"

    Returns:
        what came of the rows and where the results lie
    """
    job = resolve_inference(config=config, overrides=overrides)
    return gather_shards(job=job, shards=infer_on_pool(job=job, requests=plan_shards(job=job)))
