"""What the processes that tokenise a task are told."""

from __future__ import annotations

import dataclasses
import hashlib

from t5core import errors
from t5core.config.data_schema import DataConfig, TaskConfig
from t5core.config.edges import TaskRequest
from t5core.data.sources import Scan

# Validation examples are masked alike in every run, so that runs with different seeds can be compared.
VALIDATION_SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A task whose examples are wanted, and what its text holds (None: SeqIO's own)."""

    request: TaskRequest
    scan: Scan | None

    @property
    def task(self) -> TaskConfig:
        """The task."""
        return task_named(self.data, self.request.task)

    @property
    def data(self) -> DataConfig:
        """The data settings of the run."""
        return self.request.run.config.data


def task_named(data: DataConfig, name: str) -> TaskConfig:
    """Returns the task called `name`.

    Raises:
      ConfigError: there is none; the message gives the nearest.
    """
    for task in data.tasks:
        if task.name == name:
            return task
    raise errors.ConfigError(errors.unknown_name("task", name, (task.name for task in data.tasks)))


def pass_seed(run_seed: int, number: int) -> int:
    """Returns the seed of a pass; neighbouring seeds would share noise, as SeqIO counts up from the one given."""
    return int.from_bytes(hashlib.sha256(f"{run_seed} {number}".encode()).digest()[:4], "big") >> 1
