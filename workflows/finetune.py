"""Fine-tuning: from a checkpoint, anybody's, to a better one under a name.

pyflyte run workflows/finetune.py
pyflyte run workflows/finetune.py --config my.yaml --overrides '["run.init_from.checkpoint=published:demo-best"]'
"""

from __future__ import annotations

import pathlib

from flytekit import workflow

from t5core.config import load
from t5core.config.edges import Summary
from t5core.config.schema import PretrainConfig
from tasks.configuration import preflight, resolve_config
from tasks.publishing import import_parent
from workflows.blocks import train_and_report

EXAMPLE = load.load(str(pathlib.Path(__file__).parent / "configs" / "finetune.yaml"), PretrainConfig)


@workflow
def finetune(config: PretrainConfig = EXAMPLE, overrides: list[str] = []) -> Summary:  # noqa: B006 - flytekit copies it
    """Fine-tunes a T5 model: a checkpoint to vocabulary to dataset to segments to publication and report.

    Args:
        config: YAML file with the settings of the run; without it workflows/configs/finetune.yaml
        overrides: settings put over it, as a JSON list of "section.key=value"

    Returns:
        how the run ended and where its report lies
    """
    settled = import_parent(config=config, overrides=overrides)
    return train_and_report(run=preflight(run=resolve_config(config=settled, overrides=[], workflow="finetune")))
