"""Sampling one token after another: greedy, by temperature, from the top k or the top p.

Dims: see `decode_state`; `width` = BOS slot + length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from t5core import errors
from t5core.models.decode_state import Cache, CacheLayout, DecodingState, TokensToLogits, is_known, settled

# At or below this temperature the most probable token is taken, since logits / temperature would overflow.
MIN_TEMPERATURE = 1e-4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingLoopState:
    """Where sampling stands before a step, as callbacks see it.

    Attributes:
      step: steps made so far; differs from `cur_index` where prompts are prefilled.
      cur_index: position of `cur_token`, at most `length`.
      sequences: tokens behind a BOS slot; a non-zero token ahead of `cur_index` is forced when its turn comes.
      cache: what the model returned last.
      cur_token: the token that the next one follows.
      ended: EOS or the length limit has been met.
      rng: one key per decode; the token at a position is drawn with the position folded in.
      log_prob: of the tokens sampled so far, up to and including EOS.
    """

    step: Int[Array, ""]
    cur_index: Int[Array, " flat"]
    sequences: Int[Array, "flat width"]
    cache: Cache
    cur_token: Int[Array, "flat 1"]
    ended: Bool[Array, "flat 1"]
    rng: Key[Array, " flat"]
    log_prob: Float[Array, " flat"]

    def replace(self, **changes: Any) -> SamplingLoopState:
        """Returns this state with some fields changed."""
        return dataclasses.replace(self, **changes)


StateCallback: TypeAlias = Callable[[SamplingLoopState], SamplingLoopState]
LogitCallback: TypeAlias = Callable[[Float[Array, "flat vocab"], SamplingLoopState], Float[Array, "flat vocab"]]


def temperature_sample(  # noqa: PLR0913 - T5X's signature
    inputs: Int[Array, "batch length"],
    cache: Cache,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    *,
    decode_rng: Array | None = None,
    num_decodes: int = 1,
    temperature: float | Float[Array, ""] | Float[Array, " batch"] = 1.0,
    topk: int | Int[Array, ""] = 1,
    topp: float | Float[Array, ""] = 0.0,
    cache_offset: int = 0,
    initial_index: Int[Array, " batch"] | None = None,
    max_decode_steps: int | Int[Array, ""] | None = None,
    max_decode_steps_hard_limit: int | None = None,
    rescale_log_probs: bool = True,
    state_callback_fn: StateCallback | None = None,
    logit_callback_fn: LogitCallback | None = None,
    row_ids: Int[Array, " batch"] | None = None,
) -> tuple[Int[Array, "batch {num_decodes} length"], Float[Array, "batch {num_decodes}"]]:
    """Returns `num_decodes` sampled sequences of each row with their log-probabilities, ascending: best last.

    Sequences lack the BOS slot and are 0 behind EOS. Log-probabilities leave the prompt out. What is drawn for a row
    depends on the key, its row id and the position alone: not on the other rows, their number, `num_decodes`, or
    whether the prompt was prefilled.

    Args:
      inputs: prompts behind a BOS slot; non-zero tokens are forced, 0 is sampled.
      cache: any pytree; leaves with `batch` entries at axis `cache_offset` belong to the rows, the others are shared.
      tokens_to_logits: gives the logits that follow `cur_token`, and the new cache.
      eos_id: ends a sequence, unless it stands in the prompt.
      decode_rng: None: key 0.
      num_decodes: samples of each row.
      temperature: divides the logits, for all rows or for each; at 1e-4 or below the most probable token is taken,
        whatever `topk` and `topp` say.
      topk: only the k most probable tokens, and those as probable as the k-th, are drawn; 0: all.
      topp: only the most probable tokens that make up this probability together are drawn; 0: all.
      cache_offset: 1 when the cache stacks layers in front of the rows.
      initial_index: position of the last prompt token, where the cache already holds the tokens before it; None: the
        prompt is fed from the start, behind BOS = 0.
      max_decode_steps: tokens to sample behind the prompt at most; None: up to the length of `inputs`.
      max_decode_steps_hard_limit: a ceiling for `max_decode_steps`, also when that is None; None or 0: none.
      rescale_log_probs: whether log-probabilities are those of the distribution drawn from (temperature, top k and
        top p applied; 0 for greedy) or those of the model.
      state_callback_fn: maps the state before each step, and once more at the end.
      logit_callback_fn: maps the logits before each draw.
      row_ids: what the rows are known by; None: 0, 1, ... Give an example the same id wherever it stands.

    Raises:
      ConfigError: a setting that cannot work, as far as it is known when tracing.

    Source: t5x/decoding.py@cc342d4. Differences: draws keyed by row (T5X draws for the whole batch from one key); the
    BOS slot never counts as a prompt token; the hard limit works by itself; cut tokens have probability 0 at every
    temperature (T5X gives them the logit -1e7).
    """
    batch_size, length = inputs.shape
    temperature, topk, topp, max_decode_steps = map(settled, (temperature, topk, topp, max_decode_steps))
    _check_distribution(temperature=temperature, topk=topk, topp=topp, batch_size=batch_size)
    max_decode_steps = _step_limit(max_decode_steps, max_decode_steps_hard_limit, length=length)

    layout = CacheLayout.of(cache, batch_size=batch_size, axis=cache_offset)
    keys = _keys(decode_rng, row_ids=row_ids, batch_size=batch_size, num_decodes=num_decodes)
    start = _start(
        jnp.repeat(inputs.astype(jnp.int32), num_decodes, axis=0),
        layout.repeat(cache, decodes=num_decodes),
        initial_index=None if initial_index is None else jnp.repeat(initial_index, num_decodes),
        keys=keys,
    )
    prompt_lengths = jnp.sum(start.sequences[:, 1:] != 0, axis=1)
    sampler = _Sampler(
        tokens_to_logits=tokens_to_logits,
        last_index=length if max_decode_steps is None else jnp.minimum(prompt_lengths + max_decode_steps, length),
        prompt_eos=_count(start.sequences, eos_id),
        eos_id=eos_id,
        temperature=jnp.repeat(jnp.broadcast_to(temperature, (batch_size,)), num_decodes)[:, None],
        always_greedy=is_known(temperature) and bool(np.all(temperature <= MIN_TEMPERATURE)),
        topk=topk,
        topp=topp,
        rescale_log_probs=rescale_log_probs,
        state_callback_fn=state_callback_fn,
        logit_callback_fn=logit_callback_fn,
    )
    final = lax.while_loop(lambda state: ~jnp.all(state.ended), sampler.advance, start)
    if state_callback_fn is not None:
        final = state_callback_fn(final)

    return _ascending(
        final.sequences[:, 1:].reshape(batch_size, num_decodes, length),
        final.log_prob.reshape(batch_size, num_decodes),
    )


def _check_distribution(*, temperature: Any, topk: Any, topp: Any, batch_size: int) -> None:
    if jnp.ndim(temperature) and jnp.shape(temperature) != (batch_size,):
        raise errors.ConfigError(
            f"temperature of shape {jnp.shape(temperature)} does not fit {batch_size} rows; give a number or one a row"
        )
    if is_known(temperature) and np.min(temperature) < 0:
        raise errors.ConfigError(f"temperature={temperature} is negative; give 0 for greedy decoding")
    if is_known(topk) and topk < 0:
        raise errors.ConfigError(f"topk={topk} is negative; give 0 to draw from the whole vocabulary")
    if is_known(topp) and not 0 <= topp <= 1:
        raise errors.ConfigError(f"topp={topp} is not a probability; give 0 to draw from the whole vocabulary")
    if is_known(topk) and is_known(topp) and topk and topp:
        raise errors.ConfigError(f"topk={topk} and topp={topp} are both set; set one of them to 0")


def _step_limit(
    steps: int | Int[Array, ""] | None, hard_limit: int | None, *, length: int
) -> int | Int[Array, ""] | None:
    """Returns how many tokens may be sampled behind a prompt; None: as many as fit."""
    if hard_limit is not None and hard_limit < 0:
        raise errors.ConfigError(f"max_decode_steps_hard_limit={hard_limit} is negative; give None for no limit")
    if steps is None:
        return min(hard_limit, length) if hard_limit else None
    if is_known(steps) and steps < 1:
        raise errors.ConfigError(f"max_decode_steps={steps} decodes nothing; give 1 or more, or None for no limit")
    if hard_limit:
        steps = min(int(steps), hard_limit) if is_known(steps) else jnp.minimum(steps, hard_limit)
    if is_known(steps) and steps > length:
        raise errors.ConfigError(f"max_decode_steps={steps} is above the length of inputs, {length}; lengthen inputs")
    return steps


def _keys(
    decode_rng: Array | None, *, row_ids: Int[Array, " batch"] | None, batch_size: int, num_decodes: int
) -> Key[Array, " flat"]:
    """Returns a key for each decode of each row, which depends on nothing else.

    Threefry whatever kind `decode_rng` is of: the hardware generators mix up keys that are used side by side.
    """
    if num_decodes < 1:
        raise errors.ConfigError(f"num_decodes={num_decodes} leaves nothing to return; give 1 or more")
    row_ids = jnp.arange(batch_size) if row_ids is None else jnp.asarray(row_ids)
    if row_ids.shape != (batch_size,):
        raise errors.ConfigError(f"row_ids of shape {row_ids.shape} do not name {batch_size} rows; give one id a row")
    decode_rng = jax.random.key(0) if decode_rng is None else decode_rng
    root = jax.random.wrap_key_data(jax.random.bits(decode_rng, (2,), jnp.uint32), impl="threefry2x32")
    of_rows = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, row_ids)
    of_decodes = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)), in_axes=(0, None))
    return of_decodes(of_rows, jnp.arange(num_decodes)).reshape(-1)


def _start(
    inputs: Int[Array, "flat length"],
    cache: Cache,
    *,
    initial_index: Int[Array, " flat"] | None,
    keys: Key[Array, " flat"],
) -> SamplingLoopState:
    """Returns the state before the first step."""
    rows = inputs.shape[0]
    sequences = jnp.pad(inputs, ((0, 0), (0, 1)))
    if initial_index is None:
        cur_index, cur_token = jnp.zeros((rows,), jnp.int32), jnp.zeros((rows, 1), jnp.int32)
    else:
        cur_index = initial_index.astype(jnp.int32)
        cur_token = jnp.take_along_axis(sequences, cur_index[:, None], axis=1)
    return SamplingLoopState(
        step=jnp.zeros((), jnp.int32),
        cur_index=cur_index,
        sequences=sequences,
        cache=cache,
        cur_token=cur_token,
        ended=jnp.zeros((rows, 1), jnp.bool_),
        rng=keys,
        log_prob=jnp.zeros((rows,), jnp.float32),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sampler:
    """One run of sampling: what stays the same from step to step."""

    tokens_to_logits: TokensToLogits
    last_index: int | Int[Array, " flat"]  # of the last position to fill
    prompt_eos: Int[Array, "flat 1"]
    eos_id: int
    temperature: Float[Array, "flat 1"]
    always_greedy: bool  # known beforehand, so that no random bits need be made
    topk: int | Int[Array, ""]
    topp: float | Float[Array, ""]
    rescale_log_probs: bool
    state_callback_fn: StateCallback | None
    logit_callback_fn: LogitCallback | None

    def advance(self, state: SamplingLoopState) -> SamplingLoopState:
        """Returns the state one token further. Rows that ended get 0 until the last row ends."""
        if self.state_callback_fn is not None:
            state = self.state_callback_fn(state)
        logits, cache = self.tokens_to_logits(
            DecodingState(
                cur_index=state.cur_index,
                sequences=state.sequences[:, :-1],
                cur_token=state.cur_token,
                cache=state.cache,
            )
        )
        if self.logit_callback_fn is not None:
            logits = self.logit_callback_fn(logits, state)
        drawn, drawn_log_prob = self._draw(logits.astype(jnp.float32), state)

        next_index = state.cur_index[:, None] + 1
        given = jnp.take_along_axis(state.sequences, next_index, axis=1, mode="fill", fill_value=0)
        is_sampled = (given == 0) & ~state.ended
        token = jnp.where(is_sampled, drawn, given)
        positions = jnp.arange(state.sequences.shape[1])
        sequences = jnp.where(positions == next_index, token, state.sequences)
        # EOS is counted rather than compared with `token`, so that a callback too can end a row by writing it.
        has_eos = _count(sequences, self.eos_id) > self.prompt_eos
        ended = state.ended | has_eos | (next_index >= jnp.reshape(self.last_index, (-1, 1)))
        # Tokens that `inputs` forces behind a gap are lost when the row ends in the gap.
        sequences = jnp.where(ended & (positions > next_index), 0, sequences)
        return SamplingLoopState(
            step=state.step + 1,
            cur_index=jnp.minimum(next_index[:, 0], positions[-1]),
            sequences=sequences,
            cache=cache,
            cur_token=token,
            ended=ended,
            rng=state.rng,
            log_prob=state.log_prob + jnp.where(is_sampled, drawn_log_prob, 0.0)[:, 0],
        )

    def _draw(
        self, logits: Float[Array, "flat vocab"], state: SamplingLoopState
    ) -> tuple[Int[Array, "flat 1"], Float[Array, "flat 1"]]:
        """Returns a token for each row and its log-probability."""
        token = jnp.argmax(logits, axis=-1, keepdims=True).astype(jnp.int32)
        is_greedy = self.temperature <= MIN_TEMPERATURE
        drawn_from = logits
        if not self.always_greedy:
            drawn_from = logits / jnp.maximum(self.temperature, MIN_TEMPERATURE)
            drawn_from = topp_mask(topk_mask(drawn_from, self.topk), self.topp)
            keys = jax.vmap(jax.random.fold_in)(state.rng, state.cur_index)
            drawn = jax.vmap(jax.random.categorical)(keys, drawn_from)[:, None]
            token = jnp.where(is_greedy, token, drawn.astype(jnp.int32))

        scored = drawn_from if self.rescale_log_probs else logits
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(scored), token, axis=1)
        if self.rescale_log_probs:
            log_prob = jnp.where(is_greedy, 0.0, log_prob)
        return token, log_prob


def _ascending(
    sequences: Int[Array, "batch decodes length"], log_probs: Float[Array, "batch decodes"]
) -> tuple[Int[Array, "batch decodes length"], Float[Array, "batch decodes"]]:
    """Returns both with the most probable decode of each row last; among equals the order stays."""
    order = jnp.argsort(log_probs, axis=1)
    return jnp.take_along_axis(sequences, order[:, :, None], axis=1), jnp.take_along_axis(log_probs, order, axis=1)


def topk_mask(logits: Float[Array, "flat vocab"], k: int | Int[Array, ""]) -> Float[Array, "flat vocab"]:
    """Returns `logits` with -inf for those below the k-th largest of their row; 0: as they are."""
    if is_known(k) and not k:
        return logits
    ranks = _ranks(logits)
    cut = _highest_cut(ranks, lambda kept: jnp.sum(kept, axis=-1, keepdims=True) >= k)
    return jnp.where((ranks >= cut) | (k <= 0), logits, -jnp.inf)


def topp_mask(logits: Float[Array, "flat vocab"], p: float | Float[Array, ""]) -> Float[Array, "flat vocab"]:
    """Returns `logits` with -inf for all but the fewest that make up probability `p` in their row; 0, 1: as they are.

    Logits as large as the smallest one that is kept are kept too.
    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """
    if is_known(p) and p in (0, 1):
        return logits
    probabilities = jax.nn.softmax(logits)
    ranks = _ranks(probabilities)
    cut = _highest_cut(ranks, lambda kept: jnp.sum(jnp.where(kept, probabilities, 0), axis=-1, keepdims=True) >= p)
    return jnp.where((ranks >= cut) | (p <= 0) | (p >= 1), logits, -jnp.inf)


def _ranks(values: Float[Array, "flat vocab"]) -> UInt32[Array, "flat vocab"]:
    """Returns unsigned integers in the same order as the floats `values`."""
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _highest_cut(
    ranks: UInt32[Array, "flat vocab"], suffices: Callable[[Bool[Array, "flat vocab"]], Bool[Array, "flat 1"]]
) -> UInt32[Array, "flat 1"]:
    """Returns the highest rank for which what is not below it `suffices`, found bit by bit.

    32 sums over the vocabulary cost less than a tenth of sorting it, on CPU with 32,000 tokens.
    """

    def settle_bit(index: Int[Array, ""], cut: UInt32[Array, "flat 1"]) -> UInt32[Array, "flat 1"]:
        raised = cut | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        return jnp.where(suffices(ranks >= raised), raised, cut)

    return lax.fori_loop(0, 32, settle_bit, jnp.zeros((ranks.shape[0], 1), jnp.uint32))


def _count(sequences: Int[Array, "flat width"], token: int) -> Int[Array, "flat 1"]:
    return jnp.sum(sequences == token, axis=1, keepdims=True)
