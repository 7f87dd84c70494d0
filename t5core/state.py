"""The state of training: everything that the next step needs, and nothing else."""

from __future__ import annotations

from typing import Any

from flax import struct
from jaxtyping import Array, Int32


@struct.dataclass
class TrainState:
    """Parameters and optimiser state after `step` updates, as nested dicts of arrays named as T5X names them.

    The random stream and the position in the data are functions of `step` and the run's seed: they are not stored.
    """

    step: Int32[Array, ""]
    params: dict[str, Any]
    opt_state: dict[str, Any]

    def as_tree(self) -> dict[str, Any]:
        """Returns the nested dict that a checkpoint stores."""
        return {"step": self.step, "params": self.params, "opt_state": self.opt_state}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> TrainState:
        """Returns the state whose `as_tree` is `tree`."""
        return cls(step=tree["step"], params=tree["params"], opt_state=tree["opt_state"])
