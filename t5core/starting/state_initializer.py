"""The state before the first step."""

from __future__ import annotations

from t5core.state import TrainState
from t5core.trainer import Trainer


class TrainStateInitializer:
    """Draws the state of a trainer from its seed; a class of the same interface may make it in another way.

    Differences from T5X: it is made from the trainer, which knows shapes, layout and seed; checkpoints are restored by
    `t5core.starting.restore`, which asks it for what they lack.
    """

    def __init__(self, *, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and layout of the state."""
        return self._trainer.abstract_state

    def from_scratch(self) -> TrainState:
        """Returns a new state, laid out over the mesh."""
        return self._trainer.initial_state()
