"""The parameters of a checkpoint alone."""

from __future__ import annotations

from typing import Any

from t5core import errors
from t5core.checkpoints import index, pins
from t5core.checkpoints.store import CheckpointStore
from t5core.config.edges import CheckpointRef


def read(checkpoint: CheckpointRef, abstract_params: Any) -> dict[str, Any]:
    """Returns the parameters of `checkpoint`, verified; retention leaves it alone meanwhile.

    Args:
      checkpoint: which one.
      abstract_params: shapes with the shardings wanted.

    Raises:
      CheckpointError: it is gone, is not what it was, or does not fit.
      RecoverableError: the storage failed.
    """
    folder, step = index.locate(checkpoint.uri)
    with pins.reading(folder, step), CheckpointStore(folder) as store:
        restored = store.restore_params(abstract_params, step=step)
    if restored.record.digest != checkpoint.digest:
        raise errors.CheckpointError(
            f"{checkpoint.uri} has digest {restored.record.digest[:12]}, and {checkpoint.digest[:12]} was asked for; "
            f"run again"
        )
    return restored.state["params"]
