"""Numbers, durations and names as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from t5core.evaluation.metric_functions import METRICS

_LABELS = {
    "loss_per_nonpadding_target_token": "loss per target token",
    "timing/target_tokens_per_second": "target tokens per second",
    "timing/steps_per_second": "steps per second",
}


def number(value: float) -> str:
    """Returns `value` with four significant digits, whole from 1,000 up."""
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if value and not 1e-3 <= abs(value) < 1e12:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if value == int(value) or abs(value) >= 999.5:
        return f"{value or 0:,.0f}"
    return f"{value:.4g}"


def column(values: Sequence[float]) -> list[str]:
    """Returns numbers that stand below each other, with as many decimals as give the largest four digits."""
    sizes = [abs(value) for value in values if math.isfinite(value)]
    largest = max(sizes, default=0.0)
    if not 1e-2 <= largest < 1e12 or all(size == int(size) for size in sizes):
        return [number(value) for value in values]
    decimals = max(0, 3 - math.floor(math.log10(largest)))
    return [f"{value:,.{decimals}f}" if math.isfinite(value) else number(value) for value in values]


def duration(seconds: float) -> str:
    """Returns `seconds` in the two largest units that say something."""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(amount: float) -> str:
    """Returns `amount` bytes in the largest unit that leaves a whole digit, units being powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"


def change(before: float, after: float) -> str:
    """Returns how far `after` lies from `before` in percent, '' where that means nothing."""
    if not before or not math.isfinite(before) or not math.isfinite(after):
        return ""
    return f"{100 * (after - before) / abs(before):+.0f} %".replace("-", "−")


def label(name: str) -> str:
    """Returns the metric or field called `name` in words; names that a user chose stay as they are."""
    return _LABELS.get(name, name)


def heading(name: str) -> str:
    """Returns `label` with the unit, where the metric has one: what a column or a curve of its values is called."""
    return f"{label(name)} (%)" if name in METRICS else label(name)


def bounds(name: str) -> tuple[float, float] | None:
    """Returns the worst and the best value that the metric called `name` can have, None where they are not known."""
    if name in METRICS:
        return 0.0, 100.0
    return (0.0, 1.0) if name == "length_limit_fraction" else None


def short(fingerprint: str) -> str:
    """Returns the first 12 characters of a digest: enough to tell two apart by eye."""
    return fingerprint[:12]
