"""What the two model families share: loss, metrics, scores, and the contract of a model."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from t5core.config.train_schema import LossConfig
from t5core.models.decoding import single_rng
from t5core.models.loss_weights import loss_normalizer, loss_weights, objective_weights
from t5core.models.losses import token_losses

Batch = Mapping[str, Array]
Params = Mapping[str, Any]
Metrics = dict[str, Float[Array, ""]]

DEFAULT_EOS_ID = 1


class HasEos(Protocol):
    """The part of a vocabulary that decoding needs."""

    eos_id: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderParams:
    """What `predict_batch` uses where a call says nothing else: beams or samples, and whether all are returned."""

    num_decodes: int = 1
    return_all_decodes: bool = False


class BaseTransformerModel(abc.ABC):
    """A network with its loss and its ways of decoding; everything is a pure function of the parameters.

    Args:
      module: the network.
      loss: z-loss, label smoothing and normalisation of the training loss.
      input_vocabulary: of the inputs; only passed on to those who ask.
      output_vocabulary: of the targets; tells the EOS id, which is 1 without a vocabulary.
      decode_fn: called as T5X calls it, `decode_fn(inputs=, cache=, tokens_to_logits=, eos_id=, num_decodes=,
        decode_rng=, cache_offset=, ...)`. Each leaf of the cache has the batch first.
      default_decoder_params: see `DecoderParams`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: LossConfig,
        decode_fn: Callable[..., tuple[Array, Array]],
        input_vocabulary: HasEos | None = None,
        output_vocabulary: HasEos | None = None,
        default_decoder_params: DecoderParams | None = None,
    ) -> None:
        self.module = module
        self._loss = loss
        self._decode_fn = decode_fn
        self._input_vocabulary = input_vocabulary
        self._output_vocabulary = output_vocabulary
        self._default_decoder_params = default_decoder_params or DecoderParams()

    @property
    def input_vocabulary(self) -> HasEos | None:
        """The vocabulary of the inputs, as it was given."""
        return self._input_vocabulary

    @property
    def output_vocabulary(self) -> HasEos | None:
        """The vocabulary of the targets, as it was given."""
        return self._output_vocabulary

    @property
    def eos_id(self) -> int:
        """The token that ends a target: the output vocabulary's, or 1 without a vocabulary."""
        return DEFAULT_EOS_ID if self._output_vocabulary is None else self._output_vocabulary.eos_id

    @property
    def decode_fn(self) -> Callable[..., tuple[Array, Array]]:
        """The decoding function."""
        return self._decode_fn

    @property
    def draws_by_row(self) -> bool:
        """Whether a batch to decode may name its rows by a feature `row_ids`, an int32 for each.

        A sample then belongs to its row: it is the same wherever the row stands and however rows are batched.
        """
        return self._decode_fn_takes("row_ids")

    @property
    @abc.abstractmethod
    def FEATURE_CONVERTER_CLS(self) -> type:
        """The SeqIO feature converter that makes this model's batches; imports SeqIO."""

    @abc.abstractmethod
    def get_initial_variables(self, rng: Array, input_shapes: Mapping[str, tuple[int, ...]]) -> Params:
        """Returns freshly drawn parameters, boxed with their logical axis names.

        Args:
          rng: a key; the same one gives T5X's very parameters.
          input_shapes: shapes of the token features. Parameters do not depend on batch or length.
        """

    @abc.abstractmethod
    def _logits(self, params: Params, batch: Batch, dropout_rng: Array | None) -> Float[Array, "batch length vocab"]:
        """Returns the logits of every target; without a key there is no dropout."""

    @abc.abstractmethod
    def _token_features(self, batch: Batch) -> dict[str, tuple[Int[Array, "batch length"], bool]]:
        """Returns, by the name it has in metrics, each token feature or (packed: True) its segment ids."""

    def loss_normalizer(self, batch: Batch) -> Float[Array, ""]:
        """Returns what `loss_fn` divides the summed loss of the whole `batch` by."""
        return loss_normalizer(batch, self._loss.loss_normalizing_factor)

    def loss_fn(
        self,
        params: Params,
        batch: Batch,
        dropout_rng: Array | None,
        normalizer: Float[Array, ""] | float | None = None,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss to differentiate and metric sums.

        The sums are over tokens with their `decoder_loss_weights`, before any normalisation, and add up over batches
        and micro-batches: `loss` = `cross_ent_loss` + `z_loss`, `weight_sum`, `correct` and `nonpadding_tokens` (both
        count tokens with weight), `target_tokens` (all), `num_examples` (rows with weight), `objective` (the loss that
        is differentiated); and by feature the counts of `_feature_metrics`.

        Args:
          params: of the module.
          batch: features as T5X's converters name them.
          dropout_rng: None switches dropout off.
          normalizer: what to divide by instead of the batch's own `loss_normalizer`: for a micro-batch that of the
            whole batch.
        """
        return self.loss_of_logits(self._logits(params, batch, dropout_rng), batch, normalizer)

    def loss_of_logits(
        self,
        logits: Float[Array, "batch length vocab"],
        batch: Batch,
        normalizer: Float[Array, ""] | float | None = None,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns what `loss_fn` does, from the logits of the batch."""
        targets = jnp.asarray(batch["decoder_target_tokens"], jnp.int32)
        losses = token_losses(logits, targets, label_smoothing=self._loss.label_smoothing, z_loss=self._loss.z_loss)
        per_token = losses.cross_entropy + losses.z_loss
        if normalizer is None:
            normalizer = self.loss_normalizer(batch)
        objective = jnp.sum(per_token * objective_weights(batch, self._loss.loss_normalizing_factor)) / normalizer

        weights = loss_weights(batch)
        counted = weights > 0
        metrics = {
            "objective": objective,
            "loss": jnp.sum(per_token * weights),
            "z_loss": jnp.sum(losses.z_loss * weights),
            "cross_ent_loss": jnp.sum(losses.cross_entropy * weights),
            "weight_sum": jnp.sum(weights),
            "correct": jnp.sum(losses.correct & counted),
            "nonpadding_tokens": jnp.sum(counted),
            "target_tokens": targets.size,
            "num_examples": jnp.sum(jnp.any(counted, axis=1)),
            **self._feature_metrics(batch),
        }
        return objective, {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}

    def _feature_metrics(self, batch: Batch) -> dict[str, Any]:
        """Returns, by feature, `non_padding_tokens/`, `tokens/` (all) and `effective_batch_size/` (examples)."""
        metrics: dict[str, Any] = {}
        for name, (ids, packed) in self._token_features(batch).items():
            metrics[f"non_padding_tokens/{name}"] = jnp.sum(ids > 0)
            metrics[f"tokens/{name}"] = ids.size
            metrics[f"effective_batch_size/{name}"] = jnp.sum(
                jnp.max(ids, axis=1) if packed else jnp.any(ids > 0, axis=1)
            )
        return metrics

    def eval_fn(self, params: Params, batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """Returns what `loss_fn` does, without dropout."""
        return self.loss_fn(params, batch, None)

    def score_batch(
        self, params: Params, batch: Batch, *, return_intermediates: bool = False
    ) -> Float[Array, " batch"] | tuple[Float[Array, " batch"], dict[str, Any]]:
        """Returns each row's log-probability: the sum over its targets, with their `decoder_loss_weights`.

        Neither z-loss nor label smoothing enter. With `return_intermediates` a dict follows as in T5X: under "decoder"
        `target_tokens`, `loss_weights` and `token_scores`, each in a tuple of one.
        """
        weights = jnp.asarray(batch["decoder_loss_weights"], jnp.float32)
        targets = jnp.asarray(batch["decoder_target_tokens"], jnp.int32)
        token_scores = -token_losses(self._logits(params, batch, None), targets).cross_entropy * weights
        scores = token_scores.sum(axis=-1)
        if not return_intermediates:
            return scores
        intermediates = {"target_tokens": (targets,), "loss_weights": (weights,), "token_scores": (token_scores,)}
        return scores, {"decoder": intermediates}

    def predict_batch(self, params: Params, batch: Batch, *, rng: Array | None = None) -> Int[Array, "batch length"]:
        """Returns the predicted tokens of each row: EOS and then 0 at the end."""
        return self.predict_batch_with_aux(params, batch, rng=rng)[0]

    @abc.abstractmethod
    def predict_batch_with_aux(
        self,
        params: Params,
        batch: Batch,
        *,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
    ) -> tuple[Int[Array, "batch *decodes length"], dict[str, Array]]:
        """Returns predicted tokens and {"scores": ...}: of the best decode, or of all, in ascending order.

        Args:
          params: of the module.
          batch: features of unpacked examples; targets only give the length, except where they are the prompt.
          rng: key of a sampling decode function.
          decoder_params: further arguments of the decode function, such as `alpha` or `temperature`.
          return_all_decodes: None takes the model's default (the best only).
          num_decodes: beams or samples; None takes the model's default (1).

        Raises:
          ConfigError: two keys are given, or the batch is packed.
        """

    def _decode(
        self,
        tokens_to_logits: Callable[[Any], tuple[Array, Any]],
        *,
        prompt: Int[Array, "batch length"],
        cache: Any,
        rng: Array | None,
        row_ids: Int[Array, " batch"] | None,
        decoder_params: Mapping[str, Any] | None,
        num_decodes: int,
    ) -> tuple[Int[Array, "batch decodes length"], Float[Array, "batch decodes"]]:
        """Calls the decode function by T5X's convention."""
        arguments = dict(decoder_params or {})
        arguments["decode_rng"] = single_rng(rng, arguments.get("decode_rng"))
        if row_ids is not None and self.draws_by_row:
            arguments.setdefault("row_ids", row_ids)
        return self._decode_fn(
            inputs=prompt,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            eos_id=self.eos_id,
            num_decodes=num_decodes,
            cache_offset=0,
            **arguments,
        )

    def _decode_fn_takes(self, argument: str) -> bool:
        return argument in inspect.signature(self._decode_fn).parameters

    def _chosen(
        self,
        decodes: Int[Array, "batch decodes length"],
        scores: Float[Array, "batch decodes"],
        return_all_decodes: bool | None,
    ) -> tuple[Int[Array, "batch *decodes length"], dict[str, Array]]:
        """Returns all decodes, or the last of each row, which is the best."""
        if return_all_decodes is None:
            return_all_decodes = self._default_decoder_params.return_all_decodes
        if return_all_decodes:
            return decodes, {"scores": scores}
        return decodes[:, -1], {"scores": scores[:, -1]}
