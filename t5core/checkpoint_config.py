"""What `train` saves and what it starts from, under T5X's names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from t5core import errors
from t5core.config import base

# Nested dicts of arrays with 'target' (parameters) and 'state' ('step', 'param_states') at the top, as T5X names them.
StateDict = dict[str, Any]
SaveTransformation = Callable[[StateDict], StateDict]
# Called as `fn(stored, wanted, is_resuming=...)` and returns what is restored.
RestoreTransformation = Callable[..., StateDict]
AssignmentMap = Sequence[tuple[str, str | None]]


class _Config(base.StrictModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except pydantic.ValidationError as error:
            raise errors.ConfigError(f"{type(self).__name__}: {base.describe(error, type(self))}") from error


class SaveCheckpointConfig(_Config):
    """When and how the state is saved. Whatever is set here, the last step and every stop have a checkpoint.

    Attributes:
      dtype: in which parameters are stored; None stores them as they are. The state of the optimiser never changes.
      period: steps between checkpoints, at its multiples; None or 0: none but the ones at stops and `checkpoint_steps`.
      checkpoint_steps: absolute steps that have a checkpoint too, in any order.
      keep: newest ones to keep; None keeps all. A folder that holds a file PINNED stays in any case, and so does what
        a `t5core.actions.keeping.KeepBestAction` among the actions wants.
      keep_period: every checkpoint at a multiple of so many steps stays too; None: no such rule. It is what
        `force_keep_period` is to T5X's `SaveBestCheckpointer`.
      keep_dataset_checkpoints: refused: no state of the data is stored that could be kept or deleted by itself.
      save_dataset: the position in the data is the step, so a resumed run goes on behind the last batch with either
        value.
      checkpointer_cls: makes the store of checkpoints, called as `CheckpointStore(uri, retention=...)` is, and with
        `metrics` when actions keep some for theirs; None takes the one that `use_orbax` says.
      state_transformation_fns: applied in turn to what is about to be written; see `StateDict`.
      checkpoint_manager_cls: refused: an Orbax class, and `checkpointer_cls` is where another store comes in.

    Source: t5x/utils.py@cc342d4 `SaveCheckpointConfig`. Difference from T5X: `dtype` counts with Orbax too, and a
    transformation takes and gives the state alone.
    """

    dtype: Literal["float32", "bfloat16"] | None = "float32"
    period: NonNegativeInt | None = None
    checkpoint_steps: tuple[PositiveInt, ...] | None = None
    keep: PositiveInt | None = None
    keep_period: PositiveInt | None = None
    keep_dataset_checkpoints: int | None = None
    save_dataset: bool = False
    checkpointer_cls: Callable[..., Any] | None = None
    state_transformation_fns: tuple[SaveTransformation, ...] = ()
    checkpoint_manager_cls: Any = None

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> SaveCheckpointConfig:
        if self.keep_dataset_checkpoints is not None:
            raise ValueError(
                f"keep_dataset_checkpoints={self.keep_dataset_checkpoints} has no effect: the position in the data is "
                f"the step, and nothing of it is stored; leave it out"
            )
        if self.keep_period is not None and self.keep is None:
            raise ValueError(f"keep_period={self.keep_period} has no effect: keep=None keeps all; give it a number")
        _refuse_manager(self.checkpoint_manager_cls)
        return self


class RestoreCheckpointConfig(_Config):
    """Another run's checkpoint to start from, when `model_dir` has none of its own.

    Attributes:
      path: a checkpoint ('specific') or a folder of them ('latest'), of T5X's native layout or this project's; ''
        restores nothing.
      mode: 'latest' or 'specific'. T5X's 'all' means something to evaluation only, and training refuses it.
      assignment_map: (pattern of a name here, name there or None) pairs; see `t5core.assignment`.
      strict: whether a checkpoint that holds more than the model is refused.
      fallback_to_scratch: draws what the checkpoint lacks; needs an `assignment_map` or a transformation.
      dtype: that parameters are cast to, which must be the model's; None: they must be stored in it.
      restore_dataset: goes on in the data where the checkpoint's run stood; else the data begins at its beginning.
      checkpointer_cls: reads the checkpoint, as in `SaveCheckpointConfig`; None recognises its kind.
      state_transformation_fns: `fn(stored, wanted, is_resuming=...)`, applied after `assignment_map`; again with
        `is_resuming=True` when a checkpoint of `model_dir` is restored.
      checkpoint_manager_cls: refused, as in `SaveCheckpointConfig`.

    Source: t5x/utils.py@cc342d4 `RestoreCheckpointConfig`.
    """

    path: str | tuple[str, ...]
    mode: Literal["latest", "specific", "all"] = "latest"
    assignment_map: tuple[tuple[str, str | None], ...] | None = None
    strict: bool = True
    fallback_to_scratch: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    restore_dataset: bool = False
    checkpointer_cls: Callable[..., Any] | None = None
    state_transformation_fns: tuple[RestoreTransformation, ...] = ()
    checkpoint_manager_cls: Any = None

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> RestoreCheckpointConfig:
        _refuse_manager(self.checkpoint_manager_cls)
        if self.fallback_to_scratch and not self.transformations:
            raise ValueError(
                "fallback_to_scratch=True without assignment_map or state_transformation_fns; say by them what the "
                "checkpoint lacks"
            )
        for pattern, _ in self.assignment_map or ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"assignment_map: {pattern!r} is no regular expression ({error})") from error
        return self

    @property
    def transformations(self) -> tuple[RestoreTransformation, ...]:
        """Everything that is applied to what was stored: the assignment map first."""
        if not self.assignment_map:
            return self.state_transformation_fns
        from t5core import assignment  # imports JAX

        first = functools.partial(assignment.apply_assignment_map, assignment_map=self.assignment_map)
        return (first, *self.state_transformation_fns)


class CheckpointConfig(_Config):
    """What is saved, and what the run starts from; None: nothing is."""

    save: SaveCheckpointConfig | None = None
    restore: RestoreCheckpointConfig | None = Field(default=None)


def _refuse_manager(given: Any) -> None:
    if given is not None:
        raise ValueError(f"checkpoint_manager_cls={given!r} has no effect: it is Orbax's; use checkpointer_cls")
