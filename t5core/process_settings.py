"""Settings of the whole process that a run changes while it lasts, and puts back however it ends."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import jax

HARDWARE_PRNG = "unsafe_rbg"


@contextlib.contextmanager
def random_numbers(*, from_hardware: bool) -> Iterator[None]:
    """Makes JAX's keys draw from the hardware's generator while the block runs, as T5X does, in this thread alone."""
    if not from_hardware:
        yield
        return
    with jax.default_prng_impl(HARDWARE_PRNG):
        yield


@contextlib.contextmanager
def garbage_collection(*, paused: bool) -> Iterator[None]:
    """Keeps Python's collector from starting by itself while the block runs; it is left as it was found."""
    if not paused or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
