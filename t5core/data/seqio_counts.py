"""Counts of what preprocessors do to examples, kept for this process until the split that they belong to is written."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """How many examples were left out, and what befell how many of the others, by reason."""

    dropped: Mapping[str, int]
    noted: Mapping[str, int]


_lock = threading.Lock()
_dropped: collections.Counter[str] = collections.Counter()
_noted: collections.Counter[str] = collections.Counter()


def taken() -> Counts:
    """Returns what was counted since the last call."""
    with _lock:
        found = Counts(dropped=dict(_dropped), noted=dict(_noted))
        _dropped.clear()
        _noted.clear()
    return found


def keeps_or_counts(keeps: Any, *, reason: str) -> Any:
    """Returns the scalar `keeps`, and counts a drop wherever the pipeline finds it false."""
    return tf.cond(keeps, lambda: tf.constant(True), lambda: _counted(_dropped, reason, answer=False))


def note(happens: Any, *, reason: str) -> None:
    """Counts, wherever the pipeline finds the scalar `happens` true, that something befell an example that stays."""
    tf.cond(happens, lambda: _counted(_noted, reason, answer=True), lambda: tf.constant(False))


def _counted(counter: collections.Counter[str], reason: str, *, answer: bool) -> Any:
    def count() -> np.bool_:
        with _lock:
            counter[reason] += 1
        return np.bool_(answer)

    counted = tf.numpy_function(count, [], tf.bool)
    counted.set_shape([])
    return counted
