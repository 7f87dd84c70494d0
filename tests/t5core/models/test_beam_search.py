from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.models import decoding
from tests.t5core.models import toy_language as toy
from tests.t5core.models.toy_language import EOS, A, B

CONTEXTS = (0, 1, 2, 3)
NO_PROMPTS = [[]] * 4


@functools.cache
def program(*, stacked, **settings):
    """Returns the compiled search in the toy language, whose logits are an argument."""

    def run(logits, inputs, cache):
        model = toy.model(logits, stacked=stacked)
        return decoding.beam_search(inputs, cache, model, EOS, cache_offset=int(stacked), **settings)

    return jax.jit(run, compiler_options=toy.QUICK_COMPILE)


def search(logits, contexts=CONTEXTS, *, length, prompts=None, stacked=False, **settings):
    """Runs the search on the toy language and returns numpy arrays."""
    inputs = toy.prompts(prompts or [[]] * len(contexts), length)
    run = program(stacked=stacked, **settings)
    sequences, scores = run(logits, inputs, toy.cache_of(contexts, stacked=stacked))
    return np.asarray(sequences), np.asarray(scores)


def penalty(alpha: float, length: int) -> float:
    return ((5 + length) / 6) ** alpha


def padded(tokens, length: int) -> list[int]:
    return [*tokens, *[0] * (length - len(tokens))]


def reference_search(logits, context, *, length, beams, alpha):
    """Beam search over Python lists that never stops early; returns (score, tokens) pairs, best last."""
    live, finished = [(0.0, [0])], []
    for position in range(1, length + 1):
        extensions = [
            (score + float(lp), [*sequence, token])
            for score, sequence in live
            for token, lp in enumerate(toy.log_probs(logits, context, sequence))
        ]
        extensions = sorted(extensions, key=lambda pair: -pair[0])[: 2 * beams]
        finished += [(s / penalty(alpha, position), q) for s, q in extensions if q[-1] == EOS]
        live = [(s, q) for s, q in extensions if q[-1] != EOS][:beams]
    best = sorted(finished or live, key=lambda pair: pair[0])[-beams:]
    return [(score, padded(sequence[1:], length)) for score, sequence in best]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_enough_beams_find_what_enumeration_finds(alpha):
    logits, length, beams = toy.table(1), 3, 27
    sequences, scores = search(logits, length=length, num_decodes=beams, alpha=alpha)
    for row, context in enumerate(CONTEXTS):
        expected = sorted(
            (toy.total(logits, context, tokens) / penalty(alpha, len(tokens)), padded(tokens, length))
            for tokens in toy.all_finished(length)
        )
        assert sequences[row, -len(expected) :].tolist() == [tokens for _, tokens in expected]
        np.testing.assert_allclose(scores[row, -len(expected) :], [score for score, _ in expected], rtol=1e-5)
        # The language has fewer sequences than there are beams: the rest is blank and says so.
        assert not sequences[row, : -len(expected)].any()
        assert (scores[row, : -len(expected)] == decoding.NO_HYPOTHESIS).all()


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("beams", "alpha", "eos_bonus"), [(2, 0.6, 0.0), (3, 0.0, 1.5), (3, 1.0, -1.0)])
def test_equals_a_search_over_lists(beams, alpha, eos_bonus, stacked):
    logits, length = toy.table(2, eos_bonus=eos_bonus), 8
    sequences, scores = search(logits, length=length, num_decodes=beams, alpha=alpha, stacked=stacked)
    for row, context in enumerate(CONTEXTS):
        expected = reference_search(logits, context, length=length, beams=beams, alpha=alpha)
        assert sequences[row].tolist() == [tokens for _, tokens in expected]
        np.testing.assert_allclose(scores[row], [score for score, _ in expected], rtol=1e-5)


def test_rows_without_eos_return_what_is_unfinished_with_bare_log_probabilities():
    logits = toy.table(3, eos_bonus=toy.NEVER)
    sequences, scores = search(logits, length=5, num_decodes=2, alpha=0.6)
    assert not (sequences == EOS).any()
    assert (sequences > 0).all()
    for row, context in enumerate(CONTEXTS):
        for tokens, score in zip(sequences[row], scores[row], strict=True):
            np.testing.assert_allclose(score, toy.total(logits, context, tuple(tokens)), rtol=1e-5)
    assert (np.diff(scores) >= 0).all()


def test_unfinished_beams_that_hold_nothing_are_blank():
    sequences, scores = search(toy.table(3, eos_bonus=toy.NEVER), length=1, num_decodes=3)
    assert (sequences[:, 1:] > 0).all()
    assert not sequences[:, 0].any()
    assert (scores[:, 0] == decoding.NO_HYPOTHESIS).all()


def test_one_beam_is_greedy_decoding_and_two_candidates_are_what_t5x_does():
    logits, contexts, length = toy.table(0, contexts=24), tuple(range(24)), 8
    sequences, _ = search(logits, contexts, length=length, num_decodes=1)
    as_t5x, _ = search(logits, contexts, length=length, num_decodes=1, num_candidates=2)
    for row, context in enumerate(contexts):
        assert sequences[row, 0].tolist() == greedy(logits, context, length=length)
        (_, expected) = reference_search(logits, context, length=length, beams=1, alpha=0.6)[-1]
        assert as_t5x[row, 0].tolist() == expected
    assert (as_t5x != sequences).any()  # otherwise the two settings were not told apart


def greedy(logits, context, *, length):
    sequence = [0]
    while len(sequence) <= length and sequence[-1] != EOS:
        sequence.append(int(np.argmax(toy.log_probs(logits, context, sequence))))
    return padded(sequence[1:], length)


def test_prompts_are_forced_and_cost_nothing():
    logits, length = toy.table(4), 6
    sequences, scores = search(logits, (0, 1), length=length, prompts=[[A, B], [B]], num_decodes=3, alpha=0.6)
    assert (sequences[0, :, :2] == [A, B]).all()
    assert (sequences[1, :, :1] == [B]).all()
    for row, prompt in enumerate([[A, B], [B]]):
        best, text = scores[row, -1], decoding.cut_at_eos(sequences[row, -1], eos_id=EOS)
        tokens = (*text.ids, EOS)
        cost = toy.total(logits, row, tokens) - toy.total(logits, row, tuple(prompt))
        np.testing.assert_allclose(best, cost / penalty(0.6, len(tokens)), rtol=1e-5)


def test_eos_in_a_prompt_ends_nothing():
    sequences, _ = search(toy.table(4), (0,), length=6, prompts=[[A, EOS]], num_decodes=2)
    assert (sequences[0, :, :2] == [A, EOS]).all()
    assert (sequences[0, :, 2] != 0).all()


def test_a_prompt_that_fills_the_inputs_leaves_one_token_to_decode():
    logits = toy.table(4)
    sequences, _ = search(logits, length=3, prompts=[[A, B]] * 4, num_decodes=1)
    best = [int(np.argmax(toy.log_probs(logits, context, [0, A, B]))) for context in CONTEXTS]
    assert set(best) > {B}  # forced twice, B would follow everywhere
    assert sequences[:, 0].tolist() == [[A, B, token] for token in best]


@pytest.mark.parametrize("settings", [{}, {"min_log_prob": -1.5}, {"num_decodes": 1}])
def test_a_row_does_not_depend_on_the_others(settings):
    logits, length = toy.table(5, eos_bonus=0.5), 10
    settings = {"num_decodes": 3, **settings}
    prompts = [[], [A], [], [B, B]]
    together, scores = search(logits, length=length, prompts=prompts, **settings)
    others, other_scores = search(logits, (3, 2, 1, 0), length=length, prompts=prompts[::-1], **settings)
    np.testing.assert_array_equal(together, others[::-1])
    np.testing.assert_array_equal(scores, other_scores[::-1])
    for row, prompt in enumerate(prompts):
        alone, alone_scores = search(logits, (row,), length=length, prompts=[prompt], **settings)
        np.testing.assert_array_equal(together[row], alone[0])
        np.testing.assert_allclose(scores[row], alone_scores[0], rtol=1e-6)  # XLA's code for one row rounds differently


@functools.cache
def counting_program(**settings):
    """Returns a compiled search that tells its calls of the model, and the list that it tells them to."""
    calls = []

    def run(logits, inputs, cache):
        def counted(state):
            jax.debug.callback(lambda: calls.append(1))
            return toy.model(logits)(state)

        return decoding.beam_search(inputs, cache, counted, EOS, **settings)

    return jax.jit(run, compiler_options=toy.QUICK_COMPILE), calls


def count_steps(logits, contexts=(0,), *, length=12, **settings):
    """Returns how often the model is asked."""
    run, calls = counting_program(**settings)
    calls.clear()
    jax.block_until_ready(run(logits, toy.prompts([[]] * len(contexts), length), toy.cache_of(contexts)))
    jax.effects_barrier()
    return len(calls)


def test_the_search_stops_where_nothing_better_can_come():
    short = toy.table(6, eos_bonus=4.0)
    assert count_steps(short, num_decodes=2) < 12
    assert count_steps(toy.table(6, eos_bonus=toy.NEVER), num_decodes=2) == 12
    # Two rows stop when the slower one does.
    alone = [count_steps(short, (row,), num_decodes=2) for row in (0, 1)]
    assert count_steps(short, (0, 1), num_decodes=2) == max(alone)


def test_a_hopeless_row_is_given_up():
    logits = toy.table(6, eos_bonus=toy.NEVER)
    limit = toy.total(logits, 0, tuple(greedy(logits, 0, length=3))) - 1e-3
    steps = count_steps(logits, num_decodes=1, min_log_prob=limit)
    assert steps == 4  # after three tokens the log-probability is above the limit, after four it is below


def test_max_decode_step_bounds_the_work_and_max_decode_len_the_result():
    logits = toy.table(3, eos_bonus=toy.NEVER)
    full, _ = search(logits, length=6, num_decodes=1)
    stepped, _ = search(logits, length=6, num_decodes=1, max_decode_step=4)
    narrow, _ = search(logits, length=6, num_decodes=1, max_decode_len=4)
    assert stepped.shape == full.shape
    assert narrow.shape == (4, 1, 4)
    np.testing.assert_array_equal(stepped[..., :4], full[..., :4])
    assert not stepped[..., 4:].any()
    np.testing.assert_array_equal(narrow, full[..., :4])


def test_a_step_limit_may_be_traced_or_a_known_array():
    logits, inputs, cache = toy.table(3), toy.prompts(NO_PROMPTS, 6), toy.cache_of(CONTEXTS)

    def run(limit):
        return decoding.beam_search(inputs, cache, toy.model(logits), EOS, num_decodes=2, max_decode_step=limit)

    traced = jax.jit(run, compiler_options=toy.QUICK_COMPILE)
    for limit in (0, 3):
        expected, _ = search(logits, length=6, num_decodes=2, max_decode_step=limit)
        np.testing.assert_array_equal(traced(limit)[0], expected)
    np.testing.assert_array_equal(jax.jit(functools.partial(run, jnp.int32(3)))()[0], expected)


def test_penalty_follows_the_published_formula():
    np.testing.assert_allclose(decoding.brevity_penalty(0.6, 7), math.pow(12 / 6, 0.6), rtol=1e-6)
    assert decoding.brevity_penalty(0.0, 7) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_decodes": 0}, "num_decodes=0 leaves nothing to return; give 1 or more"),
        ({"num_candidates": 2}, "num_candidates=2 cannot fill num_decodes=4 beams; give at least as many"),
        ({"alpha": -0.5}, "alpha=-0.5 would reward short sequences without bound; give 0 or more"),
        ({"max_decode_len": 9}, "max_decode_len=9 is not within 1 to 6, the length of inputs; change either"),
        ({"max_decode_step": -1}, "max_decode_step=-1 is negative; give 0 for no limit"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(errors.ConfigError) as refused:
        search(toy.table(0), length=6, **settings)
    assert str(refused.value) == message
