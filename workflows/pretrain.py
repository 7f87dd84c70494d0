"""Pre-training: from text to a trained, evaluated model.

pyflyte run workflows/pretrain.py
pyflyte run workflows/pretrain.py --config my.yaml --overrides '["train.total_steps=40"]'
"""

from __future__ import annotations

import pathlib

from flytekit import workflow

from t5core.config import load
from t5core.config.edges import Summary
from t5core.config.schema import PretrainConfig
from tasks.configuration import preflight, resolve_config
from workflows.blocks import train_and_report

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
    return train_and_report(run=preflight(run=resolve_config(config=config, overrides=overrides)))
