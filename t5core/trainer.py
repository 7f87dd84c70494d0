"""The trainer: one jitted training step, one jitted evaluation step, and the state they work on."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from t5core import axis_rules, errors
from t5core.metrics.weights import WeightMetricsComputer
from t5core.optim.base import Optimizer
from t5core.partitioning import Partitioner
from t5core.state import TrainState

Batch = Mapping[str, Any]
Metrics = dict[str, Array]


# Parameters do not depend on batch or length; two tokens are enough to trace them.
_TRACED_SHAPES = {name: (1, 2) for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")}


def boxed_params(model: Any) -> Any:
    """Returns the shapes of a model's parameters with the names of their axes, without computing anything."""
    return jax.eval_shape(lambda key: model.get_initial_variables(key, _TRACED_SHAPES), jax.random.PRNGKey(0))


class Trainer:
    """Updates a `TrainState` by batches.

    Args:
      model: a T5X-style model: `loss_fn`, `eval_fn`, `loss_normalizer`, `get_initial_variables`.
      optimizer: what turns gradients into new parameters.
      partitioner: the mesh and the shardings.
      learning_rate_fn: step (before the update) -> rate.
      seed: of initialisation and dropout; the key of a step is `fold_in(trainer_key, step)`, as in T5X.
      num_microbatches: parts that a batch is split into to save memory. The gradient is that of the whole batch with
        every loss normalisation. Difference from T5X: it sums per-part normalised losses, k times too large.
      weight_metrics_computer: adds metrics by parameter to those of each training step; None: there are none.

    Attributes:
      compilation_seconds: what the first call of 'train_step' and of 'eval_step' took before it returned, which is
        mostly compiling; a step that was not called yet is missing.
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Optimizer,
        partitioner: Partitioner,
        learning_rate_fn: Callable[[Any], Any],
        seed: int,
        num_microbatches: int = 1,
        weight_metrics_computer: WeightMetricsComputer | None = None,
    ) -> None:
        self.model = model
        self.partitioner = partitioner
        self._optimizer = optimizer
        self._learning_rate_fn = learning_rate_fn
        self._num_microbatches = num_microbatches
        self._weight_metrics_computer = weight_metrics_computer
        self.compilation_seconds: dict[str, float] = {}
        self._inference_steps: dict[str, Callable[[dict[str, Any], Batch, Array], Any]] = {}
        self._init_key, self._trainer_key = jax.random.split(jax.random.PRNGKey(seed), 2)

    def _initial_state(self, key: Array) -> TrainState:
        params = nn.meta.unbox(self.model.get_initial_variables(key, _TRACED_SHAPES))
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=self._optimizer.init(params))

    @functools.cached_property
    def _boxed_params(self) -> Any:
        return boxed_params(self.model)

    @property
    def logical_axes(self) -> dict[str, tuple[str | None, ...]]:
        """The names of every parameter's axes, by path."""
        return axis_rules.logical_axes(self._boxed_params)

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """Where each leaf of the state lives, a TrainState of shardings."""
        params = self.partitioner.param_shardings(self._boxed_params)
        shapes = jax.eval_shape(self._initial_state, self._init_key)
        opt_state = self.partitioner.opt_state_shardings(shapes.opt_state, shapes.params, params)
        step: Any = self.partitioner.replicated
        return TrainState(step=step, params=params, opt_state=opt_state)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """The state's shapes, dtypes and shardings: what a checkpoint is restored into."""
        shapes = jax.eval_shape(self._initial_state, self._init_key)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.state_shardings,
        )

    def initial_state(self) -> TrainState:
        """Returns the state before the first step, drawn from the seed."""
        return self._initialise(self._init_key)

    def state_of(self, params: dict[str, Any], opt_state: dict[str, Any] | None, *, step: int) -> TrainState:
        """Returns the state of `step` with these parameters; `opt_state` None: that of an optimiser which begins."""
        begin = self.partitioner.partition(
            self._optimizer.init,
            in_shardings=(self.state_shardings.params,),
            out_shardings=self.state_shardings.opt_state,
        )
        counter = jnp.asarray(step, jnp.int32)
        return TrainState(
            step=jax.device_put(counter, self.partitioner.replicated),
            params=params,
            opt_state=begin(params) if opt_state is None else opt_state,
        )

    @functools.cached_property
    def _initialise(self) -> Callable[[Array], TrainState]:
        return self.partitioner.partition(
            self._initial_state,
            in_shardings=self.partitioner.replicated,
            out_shardings=self.state_shardings,
        )

    @functools.cached_property
    def _train_step(self) -> Any:  # a jitted function, which can be traced as well
        return self.partitioner.partition(
            self._update,
            in_shardings=(self.state_shardings, self.partitioner.data_sharding),
            out_shardings=(self.state_shardings, self.partitioner.replicated),
            donate_argnums=(0,),
        )

    @functools.cached_property
    def _eval_step(self) -> Callable[[dict[str, Any], Batch], Metrics]:
        return self.partitioner.partition(
            lambda params, batch: self.model.eval_fn(params, batch)[1],
            in_shardings=(self.state_shardings.params, self.partitioner.data_sharding),
            out_shardings=self.partitioner.replicated,
        )

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Returns the state after one update by the global `batch` and the step's metric sums; `state` is consumed.

        The metrics hold `learning_rate`, the rate that was used, and the weight metrics beside the model's sums.
        """
        with self._timing_the_first("train_step"):
            return self._train_step(state, self.partitioner.shard_batch(batch))

    def trace_train_step(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> jax.stages.Traced:
        """Returns the training step traced for global batches of these shapes, to be looked at or compiled."""
        return self._train_step.trace(self.abstract_state, batch)

    def eval_step(self, params: dict[str, Any], batch: Batch) -> Metrics:
        """Returns the metric sums of a global `batch`, without dropout."""
        with self._timing_the_first("eval_step"):
            return self._eval_step(params, self.partitioner.shard_batch(batch))

    def inference_step(self, method: str, params: dict[str, Any], batch: Batch, key: Array) -> Any:
        """Returns what a method of the model makes of a global `batch`, whole on every process.

        Args:
          method: 'predict_batch', 'predict_batch_with_aux' or 'score_batch'.
          params: of the model.
          batch: as for `eval_step`.
          key: for those that draw samples.
        """
        if method not in self._inference_steps:
            function = getattr(self.model, method)

            def step(params: dict[str, Any], batch: Batch, key: Array) -> Any:
                return function(params, batch) if method == "score_batch" else function(params, batch, rng=key)

            self._inference_steps[method] = self.partitioner.partition(
                step,
                in_shardings=(self.state_shardings.params, self.partitioner.data_sharding, self.partitioner.replicated),
                out_shardings=self.partitioner.replicated,
            )
        return self._inference_steps[method](params, self.partitioner.shard_batch(batch), key)

    @contextlib.contextmanager
    def _timing_the_first(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.compilation_seconds.setdefault(step, time.monotonic() - began)

    def _update(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        learning_rate = self._learning_rate_fn(state.step)
        key = jax.random.fold_in(self._trainer_key, state.step)
        if self._num_microbatches == 1:
            grads, metrics = self._gradient(state.params, batch, key)
        else:
            grads, metrics = self._accumulated_gradient(state.params, batch, key)
        params, opt_state = self._optimizer.apply_gradient(
            grads, state.params, state.opt_state, step=state.step, learning_rate=learning_rate
        )
        metrics = {**metrics, "learning_rate": jnp.asarray(learning_rate, jnp.float32)}
        if self._weight_metrics_computer is not None:
            metrics |= self._weight_metrics_computer.compute_metrics(grads, state.params, params)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    def _gradient(
        self, params: dict[str, Any], batch: Batch, key: Array, normalizer: Float[Array, ""] | None = None
    ) -> tuple[dict[str, Any], Metrics]:
        loss_fn = functools.partial(self.model.loss_fn, batch=batch, dropout_rng=key, normalizer=normalizer)
        (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return grads, metrics

    def _accumulated_gradient(self, params: dict[str, Any], batch: Batch, key: Array) -> tuple[dict[str, Any], Metrics]:
        """Sums gradients and metrics over micro-batches, each divided by the normaliser of the whole batch."""
        parts = self._num_microbatches
        rows = next(iter(batch.values())).shape[0]
        if rows % parts:
            raise errors.ConfigError(f"batch_size={rows} does not divide into num_microbatches={parts}; change one")
        normalizer = self.model.loss_normalizer(batch)
        # Row i goes to micro-batch i % parts: each device's rows stay on it, whatever the number of parts.
        split = {name: x.reshape((rows // parts, parts, *x.shape[1:])).swapaxes(0, 1) for name, x in batch.items()}

        def accumulate(total: Any, part: Any) -> tuple[Any, None]:
            microbatch, microbatch_key = part
            result = self._gradient(params, microbatch, microbatch_key, normalizer)
            return jax.tree.map(jnp.add, total, result), None

        keys = jax.random.split(key, parts)
        first = jax.tree.map(lambda x: x[0], (split, keys))
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(lambda part: self._gradient(params, part[0], part[1], normalizer), first),
        )
        return jax.lax.scan(accumulate, zeros, (split, keys))[0]
