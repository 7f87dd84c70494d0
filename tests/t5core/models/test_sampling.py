from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.models import decoding, sampling
from tests.t5core.models import toy_language as toy
from tests.t5core.models.toy_language import EOS, A, B

CONTEXTS = (0, 1, 2, 3)
LENGTH = 8
MANY = 4000


@functools.cache
def program(*, stacked, **settings):
    """Returns the compiled sampler of the toy language, whose logits are an argument."""

    def run(logits, inputs, cache, traced):
        model = toy.model(logits, stacked=stacked)
        return decoding.temperature_sample(inputs, cache, model, EOS, cache_offset=int(stacked), **settings, **traced)

    return jax.jit(run, compiler_options=toy.QUICK_COMPILE)


def sample(logits, contexts=CONTEXTS, *, length=LENGTH, prompts=None, stacked=False, cache=None, **settings):
    """Samples from the toy language and returns numpy arrays; settings that are JAX arrays are traced."""
    inputs = toy.prompts(prompts or [[]] * len(contexts), length)
    traced = {name: settings.pop(name) for name, value in list(settings.items()) if isinstance(value, jax.Array)}
    run = program(stacked=stacked, **settings)
    sequences, log_probs = run(logits, inputs, cache or toy.cache_of(contexts, stacked=stacked), traced)
    return np.asarray(sequences), np.asarray(log_probs)


def greedy(logits, context, *, length=LENGTH, prompt=()):
    """Returns the most probable next token, again and again, and the log-probability of what follows the prompt."""
    sequence, log_prob = [0, *prompt], 0.0
    while len(sequence) <= length and (len(sequence) <= 1 + len(prompt) or sequence[-1] != EOS):
        log_probs = toy.log_probs(logits, context, sequence)
        sequence.append(int(np.argmax(log_probs)))
        log_prob += log_probs[sequence[-1]]
    return [*sequence[1:], *[0] * (length + 1 - len(sequence))], float(log_prob)


# Greedy


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"temperature": 0.0, "topk": 0, "topp": 0.5}])
def test_greedy_takes_the_most_probable_token(settings):
    logits = toy.table(0)
    sequences, log_probs = sample(logits, **settings)
    assert sequences[:, 0].tolist() == [greedy(logits, context)[0] for context in CONTEXTS]
    assert (log_probs == 0).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_greedy_with_the_models_own_log_probabilities(temperature):
    logits = toy.table(0)
    _, log_probs = sample(logits, temperature=temperature, rescale_log_probs=False)
    np.testing.assert_allclose(log_probs[:, 0], [greedy(logits, context)[1] for context in CONTEXTS], rtol=1e-5)


def test_greedy_is_repeatable_whatever_the_key():
    runs = [sample(toy.table(1), temperature=0.0, decode_rng=jax.random.key(seed))[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_greedy_takes_the_first_of_equals_at_a_traced_temperature_too():
    flat = np.where(np.arange(toy.VOCAB_SIZE) < A, toy.NEVER, 0.0).astype(np.float32)
    sequences, _ = sample(np.broadcast_to(flat, (4, 4, 4, 4)), temperature=jnp.zeros(4), topk=0)
    assert (sequences == A).all()


# What is drawn


def kept_by_topk(probabilities, k):
    return probabilities >= np.sort(probabilities)[-k]


def kept_by_topp(probabilities, p):
    order = np.argsort(-probabilities)
    needed = 1 + int(np.searchsorted(np.cumsum(probabilities[order]), p))
    return np.isin(np.arange(len(probabilities)), order[:needed])


@pytest.mark.parametrize(
    ("settings", "keep"),
    [
        ({"topk": 0}, lambda p: p > 0),
        ({"topk": 3}, lambda p: kept_by_topk(p, 3)),
        ({"topk": 0, "topp": 0.7}, lambda p: kept_by_topp(p, 0.7)),
        ({"topk": 4, "temperature": 2.0}, lambda p: kept_by_topk(p, 4)),
    ],
)
def test_tokens_are_drawn_with_the_probabilities_that_are_left(settings, keep):
    vocab_size = 8
    logits = toy.table(7, contexts=1, vocab_size=vocab_size)
    sequences, log_probs = sample(logits, (0,), length=1, num_decodes=MANY, **settings)
    tempered = logits[0, 0, 0].astype(np.float64) / settings.get("temperature", 1.0)
    probabilities = np.exp(tempered - tempered.max())
    probabilities /= probabilities.sum()
    expected = np.where(keep(probabilities), probabilities, 0)
    expected /= expected.sum()

    tokens = sequences[0, :, 0]
    frequencies = np.bincount(tokens, minlength=vocab_size) / MANY
    assert (frequencies[expected == 0] == 0).all()
    deviation = np.sqrt(expected * (1 - expected) / MANY)
    assert (np.abs(frequencies - expected) <= 4 * deviation).all()
    np.testing.assert_allclose(log_probs[0], np.log(expected[tokens]), rtol=1e-4)


def test_cuts_equal_those_of_sorted_probabilities():
    logits = np.random.default_rng(0).normal(size=(16, 300), scale=3).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    topk_mask, topp_mask = jax.jit(sampling.topk_mask), jax.jit(sampling.topp_mask)
    for k in (1, 2, 40, 299, 300, 500):
        np.testing.assert_array_equal(
            np.isfinite(topk_mask(logits, k)), [kept_by_topk(row, min(k, 300)) for row in probabilities]
        )
    for p in (1e-6, 0.3, 0.9, 0.999):
        np.testing.assert_array_equal(
            np.isfinite(topp_mask(logits, p)), [kept_by_topp(row, p) for row in probabilities]
        )
    for everything in (topk_mask(logits, 0), topp_mask(logits, 0.0), topp_mask(logits, 1.0)):
        np.testing.assert_array_equal(everything, logits)


def test_logits_as_large_as_the_last_that_is_kept_are_kept_and_signs_do_not_matter():
    logits = jnp.asarray([[2.0, -1.0, -1.0, -3.0], [-5.0, -5.0, -5.0, -7.0], [0.5, -0.5, 0.25, -9.0]])
    kept = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 1, 0]]
    np.testing.assert_array_equal(np.isfinite(jax.jit(sampling.topk_mask)(logits, 2)), kept)
    np.testing.assert_array_equal(np.isfinite(jax.jit(sampling.topp_mask)(logits, 0.4))[1], kept[1])


def run_with_settings(temperature, topk, topp, max_decode_steps):
    return decoding.temperature_sample(
        toy.prompts([[]] * 4, 6),
        toy.cache_of(CONTEXTS),
        toy.model(toy.table(7)),
        EOS,
        num_decodes=3,
        temperature=temperature,
        topk=topk,
        topp=topp,
        max_decode_steps=max_decode_steps,
    )


def test_settings_may_be_traced():
    quickly = functools.partial(jax.jit, compiler_options=toy.QUICK_COMPILE)
    traced = quickly(run_with_settings)
    for settings in [(0.7, 2, 0.0, 6), (1.0, 0, 0.6, 4), (0.0, 0, 0.0, 6)]:
        static = quickly(functools.partial(run_with_settings, *settings))
        np.testing.assert_array_equal(traced(*settings)[0], static()[0])


def test_settings_may_be_known_arrays():
    settings = (jnp.float32(0.7), jnp.int32(2), jnp.float32(0.0), jnp.int32(4))
    sequences, _ = jax.jit(functools.partial(run_with_settings, *settings))()
    assert not sequences[..., 4:].any()
    with pytest.raises(errors.ConfigError, match="both set"):
        jax.jit(functools.partial(run_with_settings, 1.0, jnp.int32(2), jnp.float32(0.5), 4))()


def test_each_row_may_have_its_own_temperature():
    temperatures = [0.0, 1.0, 0.0, 3.0]
    run = functools.partial(run_with_settings, topk=0, topp=0.0, max_decode_steps=None)
    run = jax.jit(run, compiler_options=toy.QUICK_COMPILE)
    mixed, scores = run(jnp.asarray(temperatures))
    for row, temperature in enumerate(temperatures):
        alike, alike_scores = run(jnp.full(4, temperature))
        np.testing.assert_array_equal(mixed[row], alike[row])
        np.testing.assert_array_equal(scores[row], alike_scores[row])
    assert (mixed[3] != mixed[1]).any()


def test_decodes_are_sorted_and_scored_by_the_model():
    logits = toy.table(8)
    sequences, log_probs = sample(logits, num_decodes=5, topk=0, rescale_log_probs=False)
    assert (np.diff(log_probs) >= 0).all()
    assert len({tuple(tokens) for tokens in sequences[0]}) > 1
    for row, context in enumerate(CONTEXTS):
        for tokens, log_prob in zip(sequences[row], log_probs[row], strict=True):
            np.testing.assert_allclose(log_prob, toy.total(logits, context, tuple(tokens[tokens > 0])), rtol=1e-5)


# Prompts, ends and limits


@pytest.mark.parametrize("stacked", [False, True])
def test_prompts_are_forced_and_not_scored(stacked):
    logits, prompts = toy.table(2), [[A, B], [B], [], [B, EOS, A]]
    sequences, log_probs = sample(logits, prompts=prompts, stacked=stacked, temperature=0.0, rescale_log_probs=False)
    for row, prompt in enumerate(prompts):
        tokens, log_prob = greedy(logits, row, prompt=prompt)
        assert sequences[row, 0].tolist() == tokens
        np.testing.assert_allclose(log_probs[row, 0], log_prob, rtol=1e-5)


def test_a_prompt_that_fills_the_inputs_leaves_one_token_to_sample():
    logits = toy.table(2)
    sequences, _ = sample(logits, (0,), length=3, prompts=[[A, B]], temperature=0.0)
    assert sequences[0, 0].tolist() == greedy(logits, 0, length=3, prompt=[A, B])[0]


def test_nothing_follows_eos():
    sequences, _ = sample(toy.table(2, eos_bonus=1.0), num_decodes=3, topk=0)
    behind_eos = (np.cumsum(sequences == EOS, axis=-1) - (sequences == EOS)) > 0
    assert behind_eos.any()
    assert not sequences[behind_eos].any()


def test_tokens_behind_a_gap_are_forced_unless_the_row_ends_before():
    gapped = [[A, 0, B]] * 4
    going_on, _ = sample(toy.table(2, eos_bonus=toy.NEVER), prompts=gapped, temperature=0.0)
    assert (going_on[:, 0, 2] == B).all()
    ending, _ = sample(toy.table(2, eos_bonus=-toy.NEVER), prompts=gapped, temperature=0.0)
    assert ending[:, 0].tolist() == [[A, EOS] + [0] * (LENGTH - 2)] * 4


@pytest.mark.parametrize(("stacked", "max_decode_steps"), [(False, None), (True, 3)])
def test_a_prefilled_cache_gives_what_a_forced_prompt_gives(stacked, max_decode_steps):
    logits, prompts = toy.table(9), [[A, B, EOS], [B, EOS], [A], [B, B, A, A]]
    settings = {"num_decodes": 3, "topk": 0, "max_decode_steps": max_decode_steps, "stacked": stacked}
    forced, forced_scores = sample(logits, prompts=prompts, **settings)
    cache = toy.cache_of(CONTEXTS, stacked=stacked)
    before = jnp.asarray([prompt[-2] if len(prompt) > 1 else 0 for prompt in prompts])
    cache["rows"]["before"] = jnp.stack([before, before]) if stacked else before
    prefilled, scores = sample(
        logits,
        prompts=prompts,
        cache=cache,
        initial_index=jnp.asarray([len(prompt) for prompt in prompts]),
        **settings,
    )
    np.testing.assert_array_equal(prefilled, forced)
    np.testing.assert_allclose(scores, forced_scores, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"max_decode_steps": 2}, 2),
        ({"max_decode_steps": 6, "max_decode_steps_hard_limit": 3}, 3),
        ({"max_decode_steps": 2, "max_decode_steps_hard_limit": 3}, 2),
        ({"max_decode_steps_hard_limit": 3}, 3),
        ({"max_decode_steps": 2, "max_decode_steps_hard_limit": 0}, 2),
        ({"max_decode_steps_hard_limit": 30}, LENGTH),
    ],
)
def test_steps_are_counted_behind_the_prompt(settings, steps):
    prompts = [[A, B], [B], [], [B, A, A]]
    sequences, _ = sample(toy.table(3, eos_bonus=toy.NEVER), prompts=prompts, temperature=0.0, **settings)
    lengths = (sequences[:, 0] > 0).sum(axis=1)
    assert lengths.tolist() == [min(LENGTH, len(prompt) + steps) for prompt in prompts]


def test_a_bos_token_of_its_own_is_no_prompt():
    inputs = toy.prompts([[A], [], [A, B], []], LENGTH).at[:, 0].set(B)
    run = program(stacked=False, temperature=0.0, max_decode_steps=2)
    sequences, _ = run(toy.table(3, eos_bonus=toy.NEVER), inputs, toy.cache_of(CONTEXTS), {})
    assert (np.asarray(sequences[:, 0]) > 0).sum(axis=1).tolist() == [3, 2, 4, 2]


# Keys


@pytest.mark.parametrize("impl", ["threefry2x32", "unsafe_rbg"])
def test_a_row_is_drawn_alike_wherever_it_stands(impl):
    logits, prompts, order = toy.table(5), [[], [A], [], [B, B]], np.asarray([2, 0, 3, 1])
    settings = {"num_decodes": 3, "topk": 0, "decode_rng": jax.random.key(3, impl=impl)}
    together, _ = sample(logits, prompts=prompts, row_ids=jnp.arange(4), **settings)
    moved, _ = sample(logits, order, prompts=[prompts[row] for row in order], row_ids=jnp.asarray(order), **settings)
    np.testing.assert_array_equal(moved, together[order])
    alone, _ = sample(logits, (3,), prompts=prompts[3:], row_ids=jnp.asarray([3]), **settings)
    np.testing.assert_array_equal(alone[0], together[3])


def test_rows_and_decodes_and_keys_draw_differently():
    logits = np.zeros((1, 16, 16, 16), np.float32)
    logits[..., :2] = toy.NEVER
    draws = [
        sample(logits, (0, 0), length=6, num_decodes=2, topk=0, decode_rng=jax.random.key(seed))[0] for seed in (0, 1)
    ]
    tokens = {tuple(tokens) for sequences in draws for tokens in sequences.reshape(-1, 6)}
    assert len(tokens) == 8
    assert all(len(set(sequence)) > 1 for sequence in tokens)  # each position draws anew


def test_more_decodes_keep_those_there_were():
    one, _ = sample(toy.table(5), topk=0)
    three, _ = sample(toy.table(5), topk=0, num_decodes=3)
    for row in range(4):
        assert one[row, 0].tolist() in three[row].tolist()


def test_rows_are_numbered_and_no_key_is_key_zero():
    default, _ = sample(toy.table(5), topk=0)
    told, _ = sample(toy.table(5), topk=0, decode_rng=jax.random.PRNGKey(0), row_ids=jnp.arange(4))
    np.testing.assert_array_equal(default, told)


# Callbacks


def test_the_logit_callback_decides_what_can_be_drawn():
    def never_a(logits, state):
        assert logits.shape[0] == state.cur_index.shape[0]
        return logits.at[:, A].set(toy.NEVER)

    plain, _ = sample(toy.table(2), num_decodes=3, topk=0)
    sequences, _ = sample(toy.table(2), num_decodes=3, topk=0, logit_callback_fn=never_a)
    assert (plain == A).any()
    assert not (sequences == A).any()


def test_the_state_callback_sees_each_step_and_the_end():
    seen = []

    def watch(state):
        jax.debug.callback(lambda step, index: seen.append((int(step), index.tolist())), state.step, state.cur_index)
        return state

    sequences, _ = sample(
        toy.table(3, eos_bonus=toy.NEVER),
        (0, 1),
        length=3,
        initial_index=jnp.asarray([0, 1]),
        prompts=[[], [A]],
        temperature=0.0,
        state_callback_fn=watch,
    )
    jax.block_until_ready(sequences)
    jax.effects_barrier()
    assert sorted(seen) == [(0, [0, 1]), (1, [1, 2]), (2, [2, 3]), (3, [3, 3])]


def test_the_state_callback_can_force_tokens_and_end_rows():
    def write_eos_at_three(state):
        at_three = jnp.where(state.cur_index == 2, EOS, state.sequences[:, 3])
        return state.replace(sequences=state.sequences.at[:, 3].set(at_three))

    logits = toy.table(3, eos_bonus=toy.NEVER)
    sequences, _ = sample(logits, temperature=0.0, state_callback_fn=write_eos_at_three)
    plain, _ = sample(logits, temperature=0.0)
    np.testing.assert_array_equal(sequences[..., :2], plain[..., :2])
    assert (sequences[..., 2] == EOS).all()
    assert not sequences[..., 3:].any()


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": 2, "topp": 0.5}, "topk=2 and topp=0.5 are both set; set one of them to 0"),
        ({"topp": 0.5}, "topk=1 and topp=0.5 are both set; set one of them to 0"),
        ({"topk": -1}, "topk=-1 is negative; give 0 to draw from the whole vocabulary"),
        ({"topk": 0, "topp": 1.5}, "topp=1.5 is not a probability; give 0 to draw from the whole vocabulary"),
        ({"temperature": -1.0}, "temperature=-1.0 is negative; give 0 for greedy decoding"),
        (
            {"temperature": jnp.ones(3)},
            "temperature of shape (3,) does not fit 4 rows; give a number or one a row",
        ),
        ({"num_decodes": 0}, "num_decodes=0 leaves nothing to return; give 1 or more"),
        ({"max_decode_steps": 7}, "max_decode_steps=7 is above the length of inputs, 6; lengthen inputs"),
        ({"max_decode_steps": 0}, "max_decode_steps=0 decodes nothing; give 1 or more, or None for no limit"),
        (
            {"max_decode_steps_hard_limit": -1},
            "max_decode_steps_hard_limit=-1 is negative; give None for no limit",
        ),
        ({"row_ids": jnp.arange(3)}, "row_ids of shape (3,) do not name 4 rows; give one id a row"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(errors.ConfigError) as refused:
        sample(toy.table(0), length=6, **settings)
    assert str(refused.value) == message
