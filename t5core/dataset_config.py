"""Which examples `train` reads, and how."""

from __future__ import annotations

from typing import Any

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from t5core import errors
from t5core.config import base


class DatasetConfig(base.StrictModel):
    """A task or mixture, and how its examples become batches.

    Source: t5x/utils.py@cc342d4 `DatasetConfig`.

    Attributes:
      mixture_or_task_name: a SeqIO name, a SeqIO Task or Mixture, or the URI of a dataset that the data stages wrote;
        for evaluation also several URIs, of the datasets of a mixture's tasks.
      task_feature_lengths: tokens by feature; None lets inference evaluation take the longest example.
      split: of the task.
      batch_size: rows of a global batch; None or 0: one for each data shard of the mesh.
      shuffle: whether the examples come in an order of their own.
      seed: of shuffling and random preprocessing; None draws one, which the run keeps.
      use_cached: reads what SeqIO's cache holds.
      pack: puts several examples into a row.
      use_custom_packing_ops: SeqIO's compiled packing; needs `pack`.
      module: Python module to import before the name is looked up.
      use_memory_cache: keeps the batches of an evaluation in memory from one evaluation to the next.
      trim_output_features: cuts features at their length.
      runtime_preprocessors, num_prefetch_threads, num_workers: of AirIO in T5X; nothing reads them here, so a value is
        refused.
    """

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    mixture_or_task_name: Any
    task_feature_lengths: dict[str, PositiveInt] | None
    split: str
    batch_size: NonNegativeInt | None
    shuffle: bool
    seed: int | None = Field(ge=0, lt=2**31)
    use_cached: bool = False
    pack: bool = False
    use_custom_packing_ops: bool = False
    module: str | None = None
    use_memory_cache: bool = True
    trim_output_features: bool = True
    runtime_preprocessors: Any = None
    num_prefetch_threads: int | None = None
    num_workers: int = 0

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except pydantic.ValidationError as error:
            raise errors.ConfigError(f"DatasetConfig: {base.describe(error, type(self))}") from error

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> DatasetConfig:
        if not self.mixture_or_task_name:
            raise ValueError("mixture_or_task_name is empty; name a task, a mixture or a dataset")
        if self.use_custom_packing_ops and not self.pack:
            raise ValueError("use_custom_packing_ops=True has no effect without pack=True; set both or neither")
        for field in ("runtime_preprocessors", "num_prefetch_threads", "num_workers"):
            if getattr(self, field):
                raise ValueError(f"{field}={getattr(self, field)!r} has no effect: it is AirIO's; leave it out")
        return self

    @property
    def name(self) -> str:
        """The name of the task or mixture, or the URI of the dataset; of several, the names joined."""
        given = self.mixture_or_task_name
        several = given if isinstance(given, list | tuple) else [given]
        return "+".join(one if isinstance(one, str) else one.name for one in several)
