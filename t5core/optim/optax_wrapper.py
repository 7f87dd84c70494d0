"""Any optax optimiser by name, with the trainer's learning rate really used."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.typing import ArrayLike

from t5core import errors, trees
from t5core.optim.base import OptState, Params

Factory = Callable[[ArrayLike], optax.GradientTransformation]
Argument = bool | int | float | str | None

_WANTS_LOSS = "it wants the value of the loss at each update"
_IGNORES_RATE = "it does not use the learning rate of the schedule"
_OTHER_WEIGHTS = "it evaluates other weights than those that it trains"
_REFUSED = {
    "cocob": _IGNORES_RATE,
    "dpsgd": "it wants one gradient for each example",
    "lbfgs": _WANTS_LOSS,
    "momo": _WANTS_LOSS,
    "momo_adam": _WANTS_LOSS,
    "noisy_sgd": "it keeps a random key in its state, where checkpoints hold numbers",
    "optimistic_adam": "optax replaced it by optimistic_adam_v2",
    "rprop": _IGNORES_RATE,
    "schedule_free_adamw": _OTHER_WEIGHTS,
    "schedule_free_sgd": _OTHER_WEIGHTS,
    "sophia": _WANTS_LOSS,
}
_NOT_OPTIMIZERS = ("adafactor", "schedule_free")  # Adafactor is T5X's own; the other wraps an optimiser


class OptaxOptimizer:
    """An optax optimiser driven by the trainer's learning rate.

    The transformation is built anew from the rate at each update, inside the traced step, so that the rate in the
    logs is the rate in the update. Difference from T5X: there an optax optimiser has a schedule of its own, and the
    trainer's rate is only logged.

    The state is {"param_states": ...} with the names of optax's own fields; parts that hold nothing are left out.

    Args:
      factory: learning rate -> transformation. The structure of its state must not depend on the rate.
    """

    state_per_parameter = False

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def init(self, params: Params) -> OptState:
        """Returns the state before the first update."""
        return _as_dict(self._factory(0.0).init(params))

    def apply_gradient(
        self, grads: Params, params: Params, opt_state: OptState, *, step: ArrayLike, learning_rate: ArrayLike
    ) -> tuple[Params, OptState]:
        """Returns the parameters and the state after one update; optax counts steps in its own state."""
        del step
        transformation = self._factory(learning_rate)
        state = _from_dict(opt_state, jax.eval_shape(self._factory(0.0).init, params))
        updates, state = transformation.update(grads, state, params)
        return cast(Params, optax.apply_updates(params, updates)), _as_dict(state)


def _as_dict(state: Any) -> OptState:
    flat = {_path(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(state)}
    return {"param_states": trees.unflatten(flat)}


def _from_dict(opt_state: OptState, like: Any) -> Any:
    """Returns the optax state that `_as_dict` turned into `opt_state`, given its structure."""
    flat = trees.flatten(opt_state["param_states"])
    return jax.tree_util.tree_map_with_path(lambda keys, _: flat[_path(keys)], like)


def _path(keys: tuple[Any, ...]) -> str:
    """Returns the fields, dictionary keys and positions that lead to a leaf, such as '0/mu/decoder_norm/scale'."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def optimizer_names() -> tuple[str, ...]:
    """Returns the names of the optax optimisers (those of `optax.contrib` too) that take a learning rate."""
    return tuple(sorted(_constructors()))


@functools.cache
def _constructors() -> dict[str, Callable[..., optax.GradientTransformation]]:
    found = {}
    for module in (optax.contrib, optax):
        for name, member in inspect.getmembers(module, inspect.isfunction):
            is_part = name.startswith(("_", "scale_by_")) or name in _NOT_OPTIMIZERS
            if not is_part and "learning_rate" in inspect.signature(member).parameters:
                found[name] = member
    return {name: constructor for name, constructor in found.items() if name not in _REFUSED}


def optax_optimizer(name: str, arguments: Mapping[str, Argument]) -> OptaxOptimizer:
    """Returns the optax optimiser called `name`.

    Args:
      name: of a function in `optax` or `optax.contrib`.
      arguments: its keyword arguments but for the learning rate, which is the schedule's.

    Raises:
      ConfigError: no such optimiser or argument (with the nearest name), one that cannot work here, or values that
        optax refuses.
    """
    if name in _REFUSED:
        raise errors.ConfigError(
            f"optimizer {name!r} cannot be used: {_REFUSED[name]}; choose another, such as 'adamw'"
        )
    if name not in _constructors():
        raise errors.ConfigError(errors.unknown_name("optimizer", name, ("adafactor", *optimizer_names())))
    constructor = _constructors()[name]
    known = [parameter for parameter in inspect.signature(constructor).parameters if parameter != "learning_rate"]
    for argument in arguments:
        if argument == "learning_rate":
            raise errors.ConfigError(f"optimizer {name!r}: learning_rate is the schedule's; set train.learning_rate")
        if argument not in known:
            raise errors.ConfigError(errors.unknown_name(f"{name} argument", argument, known))

    def factory(learning_rate: ArrayLike) -> optax.GradientTransformation:
        return constructor(learning_rate=learning_rate, **arguments)

    _probe(name, arguments, factory)
    return OptaxOptimizer(factory)


def _probe(name: str, arguments: Mapping[str, Argument], factory: Factory) -> None:
    """Refuses arguments that would only fail once training has begun, by tracing one update of a small matrix."""
    optimizer = OptaxOptimizer(factory)

    def update(params: Params, learning_rate: ArrayLike) -> tuple[Params, OptState]:
        return optimizer.apply_gradient(params, params, optimizer.init(params), step=0, learning_rate=learning_rate)

    try:
        jax.eval_shape(update, {"kernel": jnp.zeros((4, 4))}, jnp.zeros(()))
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise errors.ConfigError(
            f"optimizer {name!r} refuses the arguments {dict(arguments)}: {reason}; correct them"
        ) from error
