"""Conversion of checkpoints: T5X's and Hugging Face's into ours, ours into theirs, each into the other.

pyflyte run workflows/convert.py
pyflyte run workflows/convert.py --config my.yaml --overrides '["source.uri=gs://bucket/model/checkpoint_1000000"]'
"""

from __future__ import annotations

import pathlib

from flytekit import workflow

from t5core.config import load
from t5core.config.convert_edges import ConversionSummary
from t5core.config.convert_schema import ConvertConfig
from tasks.conversion import convert_checkpoint, inspect_source, report_parity

EXAMPLE = load.load(str(pathlib.Path(__file__).parent / "configs" / "convert.yaml"), ConvertConfig)


@workflow
def convert(config: ConvertConfig = EXAMPLE, overrides: list[str] = []) -> ConversionSummary:  # noqa: B006 - flytekit copies it
    """Converts a checkpoint: inspect, convert, compare.

    Args:
        config: YAML file with the settings of the conversion; without it workflows/configs/convert.yaml
        overrides: settings put over it, as a JSON list of "section.key=value"

    Returns:
        how the conversion ended and where its report lies
    """
    plan = inspect_source(config=config, overrides=overrides)
    return report_parity(conversion=convert_checkpoint(plan=plan))
