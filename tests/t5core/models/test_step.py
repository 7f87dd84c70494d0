"""Decoding position by position from the cache, against the pass over whole rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core.models.networks import initial_cache
from tests.t5core.models.small import batch_of, logits, prefix_batch, tiny_model, tiny_params

LENGTH = 6


def run_steps(step, cache, tokens, positions):
    """Returns the logits [row, step, vocab] of feeding `tokens` [row, step] at `positions` [step] or [row, step]."""
    results = []
    for index in range(tokens.shape[1]):
        result, cache = step(cache, tokens[:, index : index + 1], positions[..., index])
        results.append(result)
    return np.concatenate(results, axis=1)


@pytest.mark.parametrize("bias", ["shared", "per_layer"])
def test_encoder_decoder_steps_give_the_logits_of_the_whole_row_without_compiling_again(bias):
    model, params = tiny_model(relative_position_bias=bias), tiny_params(relative_position_bias=bias)
    batch = batch_of(np.arange(3, 3 + 2 * LENGTH).reshape(2, LENGTH), [[4, 5, 6, 7], [8, 9]])
    expected = jax.jit(lambda params: logits(model, params, batch))(params)
    encoder_tokens = batch["encoder_input_tokens"]

    @jax.jit
    def sources(params):
        encoded = model.module.apply({"params": params}, encoder_tokens, method="encode")
        return model.module.apply({"params": params}, encoded, method="cross_sources")

    @jax.jit
    def step(cache, token, position, sources):
        variables = {"params": params, "cache": cache}
        arguments = (token, position, sources, encoder_tokens)
        result, updated = model.module.apply(variables, *arguments, length=LENGTH, method="step", mutable=["cache"])
        return result, updated["cache"]

    # Two decodes of each example, which share its keys and values of the encoder's output.
    tokens = np.repeat(batch["decoder_input_tokens"], 2, axis=0)
    cache = initial_cache(model.module.config, batch=4, length=LENGTH)
    of_examples = sources(params)
    assert of_examples[0].key.shape == (2, 2, 4, 4)
    actual = run_steps(lambda *state: step(*state, of_examples), cache, tokens, np.arange(LENGTH))
    np.testing.assert_allclose(actual, np.repeat(expected, 2, axis=0), rtol=1e-5, atol=1e-5)
    assert step._cache_size() == 1


@pytest.mark.parametrize("bias", ["shared", "per_layer"])
def test_decoder_only_steps_continue_from_prefilled_prompts_of_unequal_length(bias):
    model = tiny_model("decoder_only", prefix_lm=True, relative_position_bias=bias)
    params = tiny_params("decoder_only", relative_position_bias=bias)
    length = LENGTH + 2
    batch = prefix_batch([([5, 6, 7], [8, 9, 10, 1]), ([11], [12, 13, 14, 15, 16, 1])], length=length)
    expected = jax.jit(lambda params: logits(model, params, batch))(params)
    in_prompt = batch["decoder_causal_attention"]
    prompt = batch["decoder_input_tokens"] * in_prompt
    prompt_lengths = in_prompt.sum(axis=1) - 1

    @jax.jit
    def prefill(params):
        arguments = {"bidirectional": True, "method": "prefill", "mutable": ["cache"]}
        return model.module.apply({"params": params}, prompt, in_prompt, **arguments)[1]["cache"]

    @jax.jit
    def step(cache, token, position):
        arguments = {"length": length, "method": "step", "mutable": ["cache"]}
        variables = {"params": params, "cache": cache}
        result, updated = model.module.apply(variables, token, position, prompt_lengths, **arguments)
        return result, updated["cache"]

    cache = prefill(params)
    positions = np.asarray(prompt_lengths)[:, None] + np.arange(4)
    tokens = np.take_along_axis(np.asarray(batch["decoder_input_tokens"]), positions, axis=1)
    actual = run_steps(step, cache, tokens, jnp.asarray(positions))
    wanted = np.take_along_axis(np.asarray(expected), positions[:, :, None], axis=1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)

    # Led through the prompt from its start, the steps leave what the prompt's positions have seen of one another.
    from_start = np.broadcast_to(np.arange(7), (2, 7))
    led = run_steps(step, cache, np.asarray(batch["decoder_input_tokens"])[:, :7], jnp.asarray(from_start))
    for row, first in enumerate(np.asarray(prompt_lengths)):
        np.testing.assert_allclose(led[row, first:7], expected[row, first:7], rtol=1e-5, atol=1e-5)
