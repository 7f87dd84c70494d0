"""Numbers that JSON has no word for: NaN and the infinities travel as the strings "NaN", "Infinity" and "-Infinity"."""

from __future__ import annotations

import math
from typing import Annotated, Any

import pydantic

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Returns `value`, at any depth of its lists and dicts, as strict JSON can hold it."""
    if isinstance(value, dict):
        return {key: encode(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(value: Any) -> Any:
    """Returns what `encode` made `value` from."""
    if isinstance(value, dict):
        return {key: decode(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [decode(inner) for inner in value]
    return _NAMES.get(value, value) if isinstance(value, str) else value


# A field of a record for whatever has to come back as it was, NaN and infinities included.
AnyState = Annotated[dict[str, Any], pydantic.BeforeValidator(decode)]
