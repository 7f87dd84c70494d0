"""A few real training steps on the devices of this machine, to know what the others will take."""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np

from t5core import build
from t5core.config.edges import ResolvedRun
from t5core.preflight import model
from t5core.preflight.record import Probe

STEPS = 5
_SECONDS = 10.0


def probe(run: ResolvedRun) -> Probe:
    """Returns what compiling and up to STEPS steps took, on random tokens; fewer where 10 s are over before.

    The program is the one that training runs, and is kept for it in the run's compilation cache.
    """
    build.use_compilation_cache(run.config)
    trainer = build.make_trainer(run.config, seed=run.seed)
    batch = _random_batch(run)
    began = time.monotonic()
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    step = trainer.trace_train_step(shapes).lower().compile()
    compilation_seconds = time.monotonic() - began
    reserved = step.memory_analysis()
    state = trainer.initial_state()
    state, _ = step(state, trainer.partitioner.shard_batch(batch))  # the first one warms up
    jax.block_until_ready(state)
    seconds: list[float] = []
    while len(seconds) < STEPS and sum(seconds) < _SECONDS:
        began = time.monotonic()
        state, _ = step(state, trainer.partitioner.shard_batch(batch))
        jax.block_until_ready(state)
        seconds.append(time.monotonic() - began)
    return Probe(
        steps=len(seconds),
        seconds_per_step=statistics.median(seconds),
        compilation_seconds=compilation_seconds,
        step_bytes=getattr(reserved, "temp_size_in_bytes", None),
    )


def _random_batch(run: ResolvedRun) -> dict[str, np.ndarray]:
    """Returns a batch without padding: every token counts, each row is one example."""
    config = run.config
    batch = model.zero_batch(config, rows=config.train.batch_size)
    random = np.random.default_rng(0)
    tokens = config.model.architecture().vocab_size
    for name, zeros in batch.items():
        if name.endswith("_tokens"):
            batch[name] = random.integers(2, tokens, zeros.shape, dtype=np.int32)
        elif name.endswith("_positions"):
            batch[name] = np.broadcast_to(np.arange(zeros.shape[1], dtype=np.int32), zeros.shape).copy()
        else:
            batch[name] = np.ones_like(zeros)
    return batch
