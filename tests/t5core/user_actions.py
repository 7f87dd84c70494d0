"""What a user names in `train.actions` under `call`."""

import numpy as np

from t5core.actions.base import BaseAction

calls = []


def loss_below(train_state, metrics_by_task, *, limit, task="mine"):
    calls.append(train_state)
    return np.float32(metrics_by_task[task]["loss"]) < limit


def forgets_its_answer(train_state, metrics_by_task):
    return None


class Countdown(BaseAction):
    """Stops at the n-th evaluation, counted over all segments."""

    def __init__(self, n, watched_task=None):
        if n < 1:
            raise ValueError("n counts from 1")
        self.n, self.left, self._task = n, n, watched_task

    def run(self, train_state, metrics_by_task):
        self.left -= 1
        return self.left <= 0

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]

    @property
    def watched(self):
        return (self._task, "loss") if self._task else None

    @property
    def reason(self):
        return f"{self.n} evaluations are enough"


class NotAnAction:
    pass


class HalfAnAction(BaseAction):
    pass
