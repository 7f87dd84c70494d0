"""What a checkpoint of any kind comes to once it is read: parameters under our names, and how each got there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import linen as nn

from t5core import errors, trees
from t5core.checkpoints import digest
from t5core.config.base import StrictModel
from t5core.config.presets import Architecture
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.build import build_model
from t5core.trainer import boxed_params

# What float32 holds without loss.
_EXACT = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class TensorMapping(StrictModel):
    """One parameter and where it comes from; `how` names what was done to the source's array."""

    source: str
    name: str
    shape: list[int]
    dtype: str
    how: str = "as it is"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """A checkpoint in memory.

    Attributes:
      architecture: every dimension of the model.
      step: updates done.
      params: flat, float32, by this project's paths.
      opt_state: nested dicts as `TrainState` has them; empty where the source has none.
      mapping: one entry for each parameter.
      unused: tensors of the source that nothing was made of, each with the reason.
      notes: what a reader of the report has to know besides, a line each.
    """

    architecture: Architecture
    step: int
    params: Mapping[str, np.ndarray]
    opt_state: Mapping[str, Any]
    mapping: tuple[TensorMapping, ...]
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_tree(self) -> dict[str, Any]:
        """Returns the state that a checkpoint of this project stores."""
        return {
            "step": np.int32(self.step),
            "params": trees.unflatten(self.params),
            "opt_state": dict(self.opt_state),
        }

    def detached(self) -> Contents:
        """Returns the same in memory of its own: arrays read from a file may be views of it."""
        return dataclasses.replace(self, params={path: np.array(leaf) for path, leaf in self.params.items()})

    def digest(self) -> str:
        """Returns the digest that a checkpoint of this state has."""
        return digest.state_digest(digest.leaf_digests(self.as_tree()))


def model_config(architecture: Architecture) -> ModelConfig:
    """Returns the settings of a model with these dimensions, for use without dropout."""
    settings = architecture.model_dump()
    if architecture.family == "decoder_only":
        settings.pop("num_encoder_layers")  # 0: it has none
    for fixed in ("relative_attention_num_buckets", "relative_attention_max_distance"):
        default = Architecture.model_fields[fixed].default
        if settings.pop(fixed) != default:
            raise errors.CheckpointError(
                f"the source has {fixed}={getattr(architecture, fixed)}, and models here have {default}; "
                f"it cannot be imported"
            )
    return ModelConfig.model_validate(settings | {"dropout_rate": 0.0})


def expected_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter of a model with these dimensions."""
    boxed = boxed_params(build_model(model_config(architecture), LossConfig()))
    return {path: tuple(leaf.shape) for path, leaf in trees.flatten(nn.meta.unbox(boxed)).items()}


def require_shapes(found: Mapping[str, tuple[int, ...]], architecture: Architecture, *, source: str) -> None:
    """Returns when `found` are the parameters of such a model, no more and no less.

    Raises:
      CheckpointError: one that is missing, unknown or of another shape.
    """
    expected = expected_shapes(architecture)
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    wrong = [path for path in sorted(expected.keys() & found.keys()) if found[path] != expected[path]]
    if missing:
        raise errors.CheckpointError(
            f"{source} has no {missing[0]}{and_more(missing)}; check that it is a whole T5 model"
        )
    if unknown:
        raise errors.CheckpointError(
            f"{source} has {unknown[0]}{and_more(unknown)}, which no T5 of these dimensions has; it cannot be imported"
        )
    if wrong:
        raise errors.CheckpointError(
            f"{source}: {wrong[0]} has shape {list(found[wrong[0]])}, not {list(expected[wrong[0]])}{and_more(wrong)}; "
            f"check which model it is"
        )


def require_same_architecture(found: Architecture, wanted: Architecture, *, source: str) -> None:
    """Returns when the model at `source` has the dimensions that were asked for.

    Raises:
      CheckpointError: it has not; the message has the first that differs.
    """
    for name in Architecture.model_fields:
        here, there = getattr(found, name), getattr(wanted, name)
        irrelevant = name == "num_encoder_layers" and found.family == "decoder_only"
        if here != there and not irrelevant:
            raise errors.CheckpointError(
                f"{source} has {name}={here!r}, and {there!r} was asked for; mend model.{name}"
            )


def and_more(names: list[str]) -> str:
    """Returns how many names there are besides the first, in words; nothing for one."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def as_float32(array: np.ndarray, *, name: str) -> np.ndarray:
    """Returns `array` in the dtype of parameters, with the same values.

    Raises:
      CheckpointError: float32 cannot hold them.
    """
    if array.dtype not in _EXACT:
        raise errors.CheckpointError(
            f"{name} is {array.dtype.name}, which float32 does not hold exactly; convert it to float32 first"
        )
    return np.asarray(array, dtype=np.float32, order="C")


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Returns whether two arrays are the same in shape, dtype and every bit."""
    return (left.shape, left.dtype) == (right.shape, right.dtype) and left.tobytes() == right.tobytes()


def logits(architecture: Architecture, params: Mapping[str, Any]) -> np.ndarray:
    """Returns the logits of `sample_batch`, float32 [2, 12, vocab], without dropout.

    Args:
      architecture: of the model.
      params: flat parameters.
    """
    computed = _network(architecture.model_dump_json())(trees.unflatten(params), sample_batch(architecture))
    return np.asarray(jax.device_get(computed), dtype=np.float32)


@functools.lru_cache(maxsize=2)
def _network(architecture_json: str) -> Callable[[Any, Any], Any]:
    """Returns the compiled network, parameters and features to logits: the same object for the same model."""
    architecture = Architecture.model_validate_json(architecture_json)
    module = build_model(model_config(architecture), LossConfig()).module
    return jax.jit(lambda params, batch: module.apply({"params": params}, *batch))


def sample_batch(architecture: Architecture) -> tuple[Any, ...]:
    """Returns what a model is called with to compare logits: always the same tokens, a padded row among them."""
    random = np.random.default_rng(0)
    inputs = random.integers(1, architecture.vocab_size, (2, 16))
    targets = random.integers(1, architecture.vocab_size, (2, 12))
    inputs[1, 10:], targets[1, 9:] = 0, 0
    decoder = (np.pad(targets[:, :-1], ((0, 0), (1, 0))), targets)
    features = decoder if architecture.family == "decoder_only" else (inputs, *decoder)
    return tuple(jnp.asarray(feature, jnp.int32) for feature in features)
