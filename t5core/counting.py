"""Amounts of things in words."""

from __future__ import annotations


def count(amount: int, unit: str, several: str = "") -> str:
    """Returns `amount` of `unit`; of other amounts than 1 it is called `several`, '' putting the plural's s to it."""
    return f"{amount:,} {unit if amount == 1 else several or f'{unit}s'}"
