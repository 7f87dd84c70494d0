"""Pre-training: from text to a trained, evaluated model.

pyflyte run workflows/pretrain.py
pyflyte run workflows/pretrain.py --config my.yaml --overrides '["train.total_steps=40"]'
"""

from __future__ import annotations

import pathlib

from flytekit import map_task, workflow

from t5core.config import load
from t5core.config.edges import Summary
from t5core.config.schema import PretrainConfig
from tasks.configuration import plan_tasks, preflight, resolve_config
from tasks.data import assemble_mixture, build_vocabulary, materialise, verify_vocabulary
from tasks.reporting import report
from workflows.blocks import train_in_segments

DEMO = load.load(str(pathlib.Path(__file__).parent / "configs" / "demo.yaml"), PretrainConfig)


@workflow
def pretrain(config: PretrainConfig = DEMO, overrides: list[str] = []) -> Summary:  # noqa: B006 - flytekit copies it
    """Pre-trains a T5 model: text to vocabulary to dataset to segments to report.

    Args:
        config: YAML file with the settings of the run; without it the demo recipe, workflows/configs/demo.yaml
        overrides: settings put over it, as a JSON list of "section.key=value"

    Returns:
        how the run ended and where its report lies
    """
    run = preflight(run=resolve_config(config=config, overrides=overrides))
    vocabulary = build_vocabulary(run=run)
    datasets = map_task(materialise)(request=plan_tasks(run=run, vocabulary=vocabulary))
    mixture = assemble_mixture(run=run, vocabulary=vocabulary, tasks=datasets)
    inputs = verify_vocabulary(run=run, vocabulary=vocabulary, tasks=datasets, mixture=mixture)
    end = train_in_segments(inputs=inputs)
    return report(inputs=inputs, cursor=end)
