"""What the preflight of a run found: figures, what is reused, warnings, and what it refuses."""

from __future__ import annotations

from t5core import records
from t5core.config.base import StrictModel
from t5core.rundir import RunDirectory


class Devices(StrictModel):
    """The devices that train; `memory_bytes` is that of each, None where it is not known."""

    name: str
    count: int
    memory_bytes: int | None


class ModelFigures(StrictModel):
    """What the model takes.

    Attributes:
      parameters: how many there are.
      state_bytes: parameters, optimiser state and step; each device holds all of it.
      step_bytes_low: what one training step needs beside the state on a device, if the compiler keeps nothing that it
        can compute again.
      step_bytes_high: the same, if it keeps every intermediate value.
      checkpoint_bytes: of one checkpoint on disk.
    """

    parameters: int
    state_bytes: int
    step_bytes_low: int
    step_bytes_high: int
    checkpoint_bytes: int


class CheckpointFigures(StrictModel):
    """How many checkpoints lie on the disk at most at once, and do already; and its free bytes (None: no limit)."""

    most: int
    present: int
    free_bytes: int | None


class DataFigures(StrictModel):
    """What one reading of the mixture holds.

    Attributes:
      basis: what the figures come from, in words.
      is_exact: whether they were counted, and not estimated.
      examples: before packing.
      rows: after it.
      tokens: entries that are not padding, by stored feature.
      efficiency: the share of entries that are not padding, by stored feature.
      truncated: the share of training examples that are cut, by task and feature; shares of 0 are left out.
    """

    basis: str
    is_exact: bool
    examples: int
    rows: int
    tokens: dict[str, int]
    efficiency: dict[str, float]
    truncated: dict[str, dict[str, float]] = {}


class Reuse(StrictModel):
    """Whether something that a stage makes is there already, and why it is or is not."""

    what: str
    found: bool
    reason: str


class Probe(StrictModel):
    """What a few real training steps took here; `step_bytes` is what the compiler reserved (None: it does not tell)."""

    steps: int
    seconds_per_step: float
    compilation_seconds: float
    step_bytes: int | None


class Preflight(StrictModel):
    """All of it. `estimated` and `exact` are None while there is nothing to tell them from."""

    devices: Devices
    total_steps: int
    batch_size: int
    first_step: int
    model: ModelFigures | None = None
    checkpoints: CheckpointFigures | None = None
    estimated: DataFigures | None = None
    exact: DataFigures | None = None
    reuse: list[Reuse] = []
    probe: Probe | None = None
    warnings: list[str] = []
    refusals: list[str] = []

    @property
    def data(self) -> DataFigures | None:
        """The best figures of the data that there are."""
        return self.exact or self.estimated

    @property
    def epochs(self) -> float | None:
        """How often the run reads the mixture; None while its size is not known."""
        return self.total_steps * self.batch_size / self.data.rows if self.data and self.data.rows else None

    @property
    def seconds_left(self) -> float | None:
        """What the steps that are left will take on the devices of the probe; None without one."""
        return self.steps_left * self.probe.seconds_per_step if self.probe else None

    @property
    def steps_left(self) -> int:
        """The steps that the run has still to take."""
        return self.total_steps - self.first_step


def write(run_uri: str, preflight: Preflight) -> None:
    """Writes the preflight into the run directory."""
    records.write(RunDirectory(run_uri).preflight_uri, preflight)


def read(run_uri: str) -> Preflight | None:
    """Returns the preflight of the run, None while there is none.

    Raises:
      IntegrityError: what lies there is none.
    """
    return records.read(RunDirectory(run_uri).preflight_uri, Preflight)
