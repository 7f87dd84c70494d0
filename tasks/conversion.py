"""Tasks that convert checkpoints and report on it."""

from __future__ import annotations

from t5core.config.convert_edges import Conversion, ConversionPlan, ConversionSummary
from t5core.config.convert_schema import ConvertConfig
from tasks import failures, profiles


@profiles.data_task()
def inspect_source(config: ConvertConfig, overrides: list[str]) -> ConversionPlan:
    """Settles every setting and looks at what is to be converted."""
    from t5core.stages import convert

    with failures.retry_what_helps():
        return convert.inspect(config, overrides)


@profiles.data_task()
def convert_checkpoint(plan: ConversionPlan) -> Conversion:
    """Reads the source and writes it in the other format."""
    from t5core.stages import convert

    with failures.retry_what_helps():
        return convert.convert(plan)


@profiles.data_task(enable_deck=True)
def report_parity(conversion: Conversion) -> ConversionSummary:
    """Reads both again, compares them, and shows the report as the task's deck."""
    from flytekit import Deck

    from t5core.stages import convert

    with failures.retry_what_helps():
        summary, page = convert.compare(conversion)
    Deck("report", page)
    return summary
