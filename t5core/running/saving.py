"""Saving in the course of a run: what is stored of a state, and when that was done already."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t5core.checkpoint_config import SaveCheckpointConfig
from t5core.checkpoints.record import Provenance
from t5core.checkpoints.t5x_tree import from_t5x, to_t5x
from t5core.metrics.summary_writer import SummaryWriter
from t5core.state import TrainState


class Saver:
    """Saves each step of a run once; without a store it saves nothing.

    Args:
      store: a `CheckpointStore`, or one of its interface; None: nothing is ever saved.
      cfg: in which dtype, and after which transformations.
      provenance: tells what goes into a record besides the state.
      writer: of the metrics, which are flushed before a checkpoint is committed.
      still_ours: called before anything is saved; raises when another execution has taken the directory over.
      saved_step: the step that the store holds already; None when it does not.
    """

    def __init__(
        self,
        store: Any | None,
        *,
        cfg: SaveCheckpointConfig | None,
        provenance: Callable[[], Provenance],
        writer: SummaryWriter,
        still_ours: Callable[[], None],
        saved_step: int | None,
    ) -> None:
        self._store, self._cfg = store, cfg
        self._provenance = provenance
        self._writer = writer
        self._still_ours = still_ours
        self._saved_step = saved_step

    def save(self, state: TrainState, step: int) -> None:
        """Saves the state of `step`, which may be given up to the next step at once, unless that is done."""
        if self._store is None or step == self._saved_step:
            return
        began = time.monotonic()
        self._still_ours()
        self._writer.flush()
        self._store.save(step, self._stored(state), self._provenance())
        self._saved_step = step
        seconds = time.monotonic() - began
        jax.monitoring.record_event_duration_secs("/jax/checkpoint/write/durations_sec", seconds)
        self._writer.write_scalars(step, {"timing/checkpoint_seconds": seconds})

    def wait(self) -> None:
        """Returns when everything saved is committed."""
        if self._store is not None:
            self._store.wait()

    def _stored(self, state: TrainState) -> dict[str, Any]:
        tree = state.as_tree()
        if self._cfg is None:
            return tree
        if self._cfg.dtype is not None:
            tree = {**tree, "params": _cast(tree["params"], jnp.dtype(self._cfg.dtype))}
        if not self._cfg.state_transformation_fns:
            return tree
        named = to_t5x(tree)
        for transform in self._cfg.state_transformation_fns:
            named = transform(named)
        return from_t5x(named)


def _cast(params: Any, dtype: Any) -> Any:
    def cast(leaf: jax.Array) -> jax.Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, params)
