"""Beam search with a brevity penalty.

A slot that holds no hypothesis has the log-probability or score `NO_HYPOTHESIS`, and tokens that are all 0 when it is
handed out. Dims: see `decode_state`; `width` = BOS slot + length, `candidates` = extensions looked at in a step.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from t5core import errors
from t5core.models.decode_state import Cache, CacheLayout, DecodingState, TokensToLogits, is_known, settled

NO_HYPOTHESIS = -1.0e7


def brevity_penalty(alpha: float, length: int | Int[Array, ""]) -> Float[Array, ""]:
    """Returns what a hypothesis of `length` tokens has its log-probability divided by.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14.
    """
    return jnp.power((5.0 + length) / 6.0, alpha)


def beam_search(  # noqa: PLR0913 - T5X's signature
    inputs: Int[Array, "batch length"],
    cache: Cache,
    tokens_to_logits: TokensToLogits,
    eos_id: int,
    *,
    num_decodes: int = 4,
    alpha: float = 0.6,
    max_decode_len: int | None = None,
    max_decode_step: int | Int[Array, ""] = 0,
    min_log_prob: float = -1.0e7,
    num_candidates: int | None = None,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
) -> tuple[Int[Array, "batch {num_decodes} max_decode_len"], Float[Array, "batch {num_decodes}"]]:
    """Returns the `num_decodes` best sequences of each row with their scores, ascending: the best comes last.

    A score is the log-probability over the brevity penalty; the length in the penalty counts the prompt, the
    log-probability does not. A row without any finished sequence returns its unfinished ones, scored by the bare
    log-probability. Sequences lack the BOS slot and are 0 behind EOS.

    Args:
      inputs: prompts behind a BOS slot, which is read as 0; non-zero tokens are forced, 0 is decoded.
      cache: any pytree; leaves with `batch` entries at axis `cache_offset` follow the beams, the others are shared.
      tokens_to_logits: gives the logits that follow `cur_token`, and the new cache.
      eos_id: ends a sequence, unless it was forced.
      num_decodes: beams, each of which is returned.
      alpha: 0 scores by log-probability alone; more favours longer sequences.
      max_decode_len: tokens of a returned sequence, prompt included; None: as long as `inputs`.
      max_decode_step: positions to decode at most, prompt included, without narrowing the result; 0: no such limit.
      min_log_prob: a row is given up once its best unfinished sequence is less probable than this.
      num_candidates: extensions looked at in each step; None: twice the beams, and 1 for a single beam.
      decode_rng: nothing is drawn; taken so that all decoders are called alike.
      cache_offset: 1 when the cache stacks layers in front of the rows.

    Raises:
      ConfigError: a setting that cannot work.

    Source: t5x/decoding.py@cc342d4. Differences: a single beam is greedy decoding (T5X also looks at the second best
    extension there, so that an early EOS may win; `num_candidates=2` does that); EOS in a prompt ends nothing; the last
    token of a prompt that fills `inputs` is not forced twice; a row that is done changes no more, so that results do
    not depend on the other rows; slots without a hypothesis never count as finished.
    """
    del decode_rng
    batch_size, length = inputs.shape
    max_decode_step = settled(max_decode_step)
    max_decode_len = length if max_decode_len is None else max_decode_len
    if num_candidates is None:
        num_candidates = 2 * num_decodes if num_decodes > 1 else 1
    _check_counts(num_decodes=num_decodes, num_candidates=num_candidates)
    _check_limits(alpha=alpha, length=length, max_decode_len=max_decode_len, max_decode_step=max_decode_step)

    layout = CacheLayout.of(cache, batch_size=batch_size, axis=cache_offset)
    search = _Search(
        tokens_to_logits=tokens_to_logits,
        layout=layout,
        prompts=jnp.pad(inputs.astype(jnp.int32), ((0, 0), (0, 1)))[:, : max_decode_len + 1],
        end=jnp.where(max_decode_step > 0, jnp.minimum(max_decode_step, max_decode_len), max_decode_len),
        eos_id=eos_id,
        num_decodes=num_decodes,
        num_candidates=num_candidates,
        alpha=alpha,
        min_log_prob=min_log_prob,
    )
    start = search.start(layout.repeat(cache, decodes=num_decodes))
    return _results(lax.while_loop(search.goes_on, search.advance, start))


def _check_counts(*, num_decodes: int, num_candidates: int) -> None:
    if num_decodes < 1:
        raise errors.ConfigError(f"num_decodes={num_decodes} leaves nothing to return; give 1 or more")
    if num_candidates < num_decodes:
        raise errors.ConfigError(
            f"num_candidates={num_candidates} cannot fill num_decodes={num_decodes} beams; give at least as many"
        )


def _check_limits(*, alpha: float, length: int, max_decode_len: int, max_decode_step: int | Int[Array, ""]) -> None:
    if is_known(alpha) and alpha < 0:
        raise errors.ConfigError(f"alpha={alpha} would reward short sequences without bound; give 0 or more")
    if not 1 <= max_decode_len <= length:
        raise errors.ConfigError(
            f"max_decode_len={max_decode_len} is not within 1 to {length}, the length of inputs; change either"
        )
    if is_known(max_decode_step) and max_decode_step < 0:
        raise errors.ConfigError(f"max_decode_step={max_decode_step} is negative; give 0 for no limit")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _BeamState:
    """The beams between two steps; log-probabilities and scores ascend, the best comes last."""

    cur_index: Int[Array, ""]
    live_log_probs: Float[Array, "batch decodes"]
    live_sequences: Int[Array, "batch decodes width"]
    finished_scores: Float[Array, "batch decodes"]
    finished_sequences: Int[Array, "batch decodes width"]
    done: Bool[Array, " batch"]  # the row cannot get better, and is frozen
    cache: Cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Candidates:
    """The most probable extensions of a row's beams by one token."""

    log_probs: Float[Array, "batch candidates"]
    sequences: Int[Array, "batch candidates width"]
    parents: Int[Array, "batch candidates"]  # the beam that each extends
    ended: Bool[Array, "batch candidates"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Search:
    """One search: what stays the same from step to step."""

    tokens_to_logits: TokensToLogits
    layout: CacheLayout
    prompts: Int[Array, "batch width"]
    end: Int[Array, ""]  # the last position to decode
    eos_id: int
    num_decodes: int
    num_candidates: int
    alpha: float
    min_log_prob: float

    def start(self, cache: Cache) -> _BeamState:
        """Returns beams of which only the last holds a hypothesis: the empty one."""
        batch_size, width = self.prompts.shape
        nothing = jnp.full((batch_size, self.num_decodes), NO_HYPOTHESIS, jnp.float32)
        blank = jnp.zeros((batch_size, self.num_decodes, width), jnp.int32)
        return _BeamState(
            cur_index=jnp.zeros((), jnp.int32),
            live_log_probs=nothing.at[:, -1].set(0.0),
            live_sequences=blank,
            finished_scores=nothing,
            finished_sequences=blank,
            done=jnp.zeros((batch_size,), jnp.bool_),
            cache=cache,
        )

    def goes_on(self, state: _BeamState) -> Bool[Array, ""]:
        """Tells whether there is a position left to decode and a row that may get better."""
        return (state.cur_index < self.end) & ~jnp.all(state.done)

    def advance(self, state: _BeamState) -> _BeamState:
        """Returns the beams one token further."""
        log_probs, cache = self._next_log_probs(state)
        candidates = self._candidates(state, log_probs)
        live_log_probs, live_sequences, parents = self._keep_live(candidates)
        finished_scores, finished_sequences = self._keep_finished(state, candidates)
        new = _BeamState(
            cur_index=state.cur_index + 1,
            live_log_probs=_frozen(state.done, state.live_log_probs, live_log_probs),
            live_sequences=_frozen(state.done, state.live_sequences, live_sequences),
            finished_scores=_frozen(state.done, state.finished_scores, finished_scores),
            finished_sequences=_frozen(state.done, state.finished_sequences, finished_sequences),
            done=state.done,
            cache=self.layout.gather(cache, parents=parents),
        )
        return dataclasses.replace(new, done=self._is_done(new))

    def _next_log_probs(self, state: _BeamState) -> tuple[Float[Array, "batch decodes vocab"], Cache]:
        """Returns the log-probability of each beam's next token, and the new cache."""
        batch_size, width = self.prompts.shape
        sequences = state.live_sequences.reshape(batch_size * self.num_decodes, width)
        logits, cache = self.tokens_to_logits(
            DecodingState(
                cur_index=state.cur_index,
                sequences=sequences,
                cur_token=lax.dynamic_slice_in_dim(sequences, state.cur_index, 1, axis=1),
                cache=state.cache,
            )
        )
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return log_probs.reshape(batch_size, self.num_decodes, -1), cache

    def _candidates(self, state: _BeamState, log_probs: Float[Array, "batch decodes vocab"]) -> _Candidates:
        """Returns the most probable extensions, best first; inside a prompt just the one that it asks for."""
        batch_size, decodes, vocab_size = log_probs.shape
        totals = (state.live_log_probs[:, :, None] + log_probs).reshape(batch_size, decodes * vocab_size)
        best, flat_index = lax.top_k(totals, self.num_candidates)
        parents, tokens = flat_index // vocab_size, flat_index % vocab_size

        # A forced token costs nothing, and all beams but the best would only repeat it.
        forced = lax.dynamic_slice_in_dim(self.prompts, state.cur_index + 1, 1, axis=1)
        in_prompt = forced != 0
        certain = jnp.full_like(best, NO_HYPOTHESIS).at[:, 0].set(0.0)
        best = jnp.where(in_prompt, certain, jnp.where(_is_hypothesis(best), best, NO_HYPOTHESIS))
        tokens = jnp.where(in_prompt, forced, tokens)

        sequences = jnp.take_along_axis(state.live_sequences, parents[:, :, None], axis=1)
        return _Candidates(
            log_probs=best,
            sequences=lax.dynamic_update_slice_in_dim(sequences, tokens[:, :, None], state.cur_index + 1, axis=2),
            parents=parents,
            ended=(tokens == self.eos_id) & ~in_prompt,
        )

    def _keep_live(
        self, candidates: _Candidates
    ) -> tuple[Float[Array, "batch decodes"], Int[Array, "batch decodes width"], Int[Array, "batch decodes"]]:
        """Returns log-probabilities, sequences and parents of the best candidates that did not end."""
        log_probs = jnp.where(candidates.ended, NO_HYPOTHESIS, candidates.log_probs)
        log_probs, sequences, chosen = _best_last(log_probs, candidates.sequences, self.num_decodes)
        return log_probs, sequences, jnp.take_along_axis(candidates.parents, chosen, axis=1)

    def _keep_finished(
        self, state: _BeamState, candidates: _Candidates
    ) -> tuple[Float[Array, "batch decodes"], Int[Array, "batch decodes width"]]:
        """Returns scores and sequences of the best that ended by now."""
        scores = candidates.log_probs / brevity_penalty(self.alpha, state.cur_index + 1)
        scores = jnp.where(candidates.ended & _is_hypothesis(candidates.log_probs), scores, NO_HYPOTHESIS)
        # The old ones stand in front: among equals the first is taken, so that empty slots stay blank.
        scores = jnp.concatenate([state.finished_scores, scores], axis=1)
        sequences = jnp.concatenate([state.finished_sequences, candidates.sequences], axis=1)
        scores, sequences, _ = _best_last(scores, sequences, self.num_decodes)
        return scores, sequences

    def _is_done(self, state: _BeamState) -> Bool[Array, " batch"]:
        """Tells for each row whether no unfinished sequence can enter, or ever will be good enough to enter."""
        best_live = state.live_log_probs[:, -1]
        # Log-probabilities only fall and the penalty only grows, so this is more than any descendant can reach.
        bound = best_live / brevity_penalty(self.alpha, self.end)
        hopeless = ~_is_hypothesis(best_live) | (best_live < self.min_log_prob)
        return (state.finished_scores[:, 0] > bound) | hopeless


def _is_hypothesis(scores: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    # Whatever is added to an empty slot leaves it far below the middle, and a real sequence stays far above.
    return scores > NO_HYPOTHESIS / 2


def _frozen(done: Bool[Array, " batch"], old: Array, new: Array) -> Array:
    """Returns `old` for the rows that are done and `new` for the others."""
    return jnp.where(done.reshape(-1, *(1,) * (new.ndim - 1)), old, new)


def _best_last(
    scores: Float[Array, "batch candidates"], sequences: Int[Array, "batch candidates width"], count: int
) -> tuple[Float[Array, "batch count"], Int[Array, "batch count width"], Int[Array, "batch count"]]:
    """Returns the `count` best scores, ascending, with their sequences and where they stood."""
    scores, chosen = lax.top_k(scores, count)
    chosen = jnp.flip(chosen, axis=1)
    return jnp.flip(scores, axis=1), jnp.take_along_axis(sequences, chosen[:, :, None], axis=1), chosen


def _results(
    state: _BeamState,
) -> tuple[Int[Array, "batch decodes length"], Float[Array, "batch decodes"]]:
    """Returns the finished sequences of each row without their BOS slot, or the unfinished ones if there are none."""
    any_finished = _is_hypothesis(state.finished_scores[:, -1])
    live_sequences = jnp.where(_is_hypothesis(state.live_log_probs)[:, :, None], state.live_sequences, 0)
    sequences = jnp.where(any_finished[:, None, None], state.finished_sequences, live_sequences)
    scores = jnp.where(any_finished[:, None], state.finished_scores, state.live_log_probs)
    return sequences[:, :, 1:], scores
