"""A language of four tokens whose next token depends on the row's context and on the two tokens before it.

The token before the current one lives in the cache, as keys and values of attention do: a decoder that forgets to carry
the cache along with a hypothesis draws from the wrong distribution.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from t5core.models import decoding

PAD, EOS, A, B = range(4)
VOCAB_SIZE = 4
QUICK_COMPILE = {"xla_backend_optimization_level": 0}  # compiling is nearly all of these tests' time
NEVER = -1e9  # a logit that no decoder counts as possible


@functools.cache
def table(seed: int = 0, *, contexts: int = 4, eos_bonus: float = 0.0, vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """Returns logits of [context, token before, current token, next token]; pads are never next."""
    shape = (contexts, vocab_size, vocab_size, vocab_size)
    logits = np.random.default_rng(seed).normal(size=shape, scale=1.5).astype(np.float32)
    logits[..., PAD] = NEVER
    logits[..., EOS] += eos_bonus
    return logits


def cache_of(contexts, *, stacked: bool = False) -> dict:
    """Returns the cache at the start: rows at axis 1 when `stacked`, as scanned layers have it."""
    rows = {"context": jnp.asarray(contexts), "before": jnp.zeros(len(contexts), jnp.int32)}
    if stacked:
        rows = {name: jnp.stack([leaf, leaf]) for name, leaf in rows.items()}
    return {"rows": rows, "index": jnp.zeros((), jnp.int32), "shared": jnp.arange(3)}


def model(logits: np.ndarray, *, stacked: bool = False) -> decoding.TokensToLogits:
    """Returns the language as a decoder wants it."""
    on_device = jnp.asarray(logits)

    def tokens_to_logits(state: decoding.DecodingState):
        rows = state.cache["rows"]
        layer = {name: leaf[1] for name, leaf in rows.items()} if stacked else rows
        current = state.cur_token[:, 0]
        before = jnp.stack([current, current]) if stacked else current
        cache = {**state.cache, "rows": {**rows, "before": before}, "index": state.cache["index"] + 1}
        return on_device[layer["context"], layer["before"], current], cache

    return tokens_to_logits


def log_probs(logits: np.ndarray, context: int, sequence: list[int]) -> np.ndarray:
    """Returns the log-probability of each possible next token behind `sequence`, which begins with BOS."""
    before = sequence[-2] if len(sequence) > 1 else 0
    row = logits[context, before, sequence[-1]].astype(np.float64)
    return row - np.log(np.sum(np.exp(row)))


def total(logits: np.ndarray, context: int, tokens: tuple[int, ...]) -> float:
    """Returns the log-probability of `tokens` behind BOS."""
    sequence = [0, *tokens]
    return sum(log_probs(logits, context, sequence[:i])[sequence[i]] for i in range(1, len(sequence)))


def all_finished(length: int) -> list[tuple[int, ...]]:
    """Returns each sequence that ends with EOS within `length` tokens."""
    return [(*body, EOS) for n in range(length) for body in itertools.product((A, B), repeat=n)]


def prompts(rows: list[list[int]], length: int) -> jax.Array:
    """Returns decoder inputs that hold `rows` behind a BOS slot."""
    return jnp.asarray([[0, *row] + [0] * (length - 1 - len(row)) for row in rows], jnp.int32)
