"""The models' interface: predictions, scores, metrics, and what they refuse."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5core import errors
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.base import DecoderParams
from t5core.models.build import build_model
from t5core.models.decoding import beam_search, temperature_sample
from tests.t5core.models.small import KEY, TINY, batch_of, logits, prefix_batch, tiny_model, tiny_params

LENGTH = 8
PROMPTS = [([5, 6, 7], [1]), ([11], [1])]


def vocabulary(eos_id):
    return types.SimpleNamespace(eos_id=eos_id)


def called_with(family="encoder_decoder", *, model=None, batch=None, **arguments):
    """Returns what a decode function is called with, without computing anything."""
    calls = {}

    def decode_fn(**arguments):
        calls.update(arguments)
        rows, length = arguments["inputs"].shape
        decodes = arguments["num_decodes"]
        best_last = jnp.broadcast_to(jnp.arange(decodes)[:, None], (rows, decodes, length))
        return best_last, jnp.zeros((rows, decodes))

    model = build_model(ModelConfig(family=family, **TINY), LossConfig(), decode_fn=decode_fn, **(model or {}))
    batch = batch or batch_of([[3, 4, 1], [5, 1]], [[6, 1], [7, 1]])
    predict = functools.partial(model.predict_batch_with_aux, **arguments)
    result = jax.eval_shape(predict, tiny_params(family), batch)
    return calls, jax.tree.map(lambda leaf: leaf.shape, result)


def test_the_decode_function_is_called_as_t5x_calls_it():
    calls, shapes = called_with(rng=KEY, decoder_params={"alpha": 0.3})
    assert set(calls) == {
        "inputs", "cache", "tokens_to_logits", "eos_id", "num_decodes", "decode_rng", "cache_offset", "alpha"
    }  # fmt: skip
    assert (calls["eos_id"], calls["num_decodes"], calls["cache_offset"], calls["alpha"]) == (1, 1, 0, 0.3)
    assert calls["decode_rng"] is KEY
    assert {leaf.shape for leaf in jax.tree.leaves(calls["cache"])} == {(2, 2, 3, 4)}
    assert shapes == ((2, 3), {"scores": (2,)})


def test_rows_are_named_to_a_decode_function_that_wants_to_know():
    batch = {**batch_of([[3, 4, 1], [5, 1]], [[6, 1], [7, 1]]), "row_ids": jnp.int32([7, 3])}
    assert "row_ids" not in called_with(batch=batch)[0]
    model, told = build_model(ModelConfig(**TINY), LossConfig(), decode_fn=temperature_sample), {}
    assert model.draws_by_row

    def predict(batch):
        def decode_fn(*, inputs, num_decodes, row_ids, **_):
            told["row_ids"] = row_ids
            return inputs[:, None], jnp.zeros((len(inputs), num_decodes))

        return build_model(ModelConfig(**TINY), LossConfig(), decode_fn=decode_fn).predict_batch(tiny_params(), batch)

    jax.eval_shape(predict, batch)
    assert told["row_ids"].shape == (2,)


def test_the_output_vocabulary_tells_eos():
    assert called_with(model={"output_vocabulary": vocabulary(9)})[0]["eos_id"] == 9


def test_defaults_of_decoding_hold_where_the_call_says_nothing():
    model = {"default_decoder_params": DecoderParams(num_decodes=3, return_all_decodes=True)}
    assert called_with(model=model)[1] == ((2, 3, 3), {"scores": (2, 3)})
    assert called_with(model=model, num_decodes=2, return_all_decodes=False)[1] == ((2, 3), {"scores": (2,)})


def test_the_best_decode_is_the_last():
    model = build_model(
        ModelConfig(**TINY),
        LossConfig(),
        decode_fn=lambda inputs, num_decodes, **_: (
            jnp.arange(num_decodes)[None, :, None] + 0 * inputs[:, None],
            jnp.arange(num_decodes)[None] + 0.0 * inputs[:, :1],
        ),
    )
    batch = batch_of([[3, 4, 1]], [[6, 1]])
    tokens, aux = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=3))(tiny_params(), batch)
    np.testing.assert_array_equal(tokens, [[2, 2, 2]])
    np.testing.assert_array_equal(aux["scores"], [2.0])


def test_targets_as_prompt_come_without_their_eos():
    def decode_fn(*, inputs, **_):
        return inputs[:, None], jnp.zeros((1, 1))

    model = build_model(ModelConfig(**TINY), LossConfig(), decode_fn=decode_fn)
    batch = batch_of([[3, 4, 1]], [[6, 1]], length=5)
    for prompt_with_targets, expected in ((True, [[0, 3, 4, 0, 0]]), (False, [[0, 0, 0, 0, 0]])):
        predict = functools.partial(model.predict_batch_with_aux, prompt_with_targets=prompt_with_targets)
        np.testing.assert_array_equal(jax.jit(predict)(tiny_params(), batch)[0], expected)


def decode_by_whole_rows(model, params, batch):
    """Returns greedy tokens behind the prompts, by passes over whole rows."""
    forward = jax.jit(lambda batch: logits(model, params, batch).argmax(axis=-1))
    prompt_lengths = np.asarray(batch["decoder_causal_attention"]).sum(axis=1) - 1
    inputs = np.array(batch["decoder_input_tokens"] * batch["decoder_causal_attention"])
    targets = np.full_like(inputs, 2)
    results = np.zeros_like(inputs)
    for position in range(prompt_lengths.min(), LENGTH):
        best = np.asarray(forward({**batch, "decoder_input_tokens": inputs, "decoder_target_tokens": targets}))
        for row in np.flatnonzero(prompt_lengths <= position):
            results[row, position - prompt_lengths[row]] = best[row, position]
            if position + 1 < LENGTH:
                inputs[row, position + 1] = best[row, position]
    return results


@functools.cache
def expected_continuation():
    model, params = tiny_model("decoder_only", prefix_lm=True), tiny_params("decoder_only")
    return decode_by_whole_rows(model, params, prefix_batch(PROMPTS, length=LENGTH))


# Sampling starts behind the prompt; beam search, which takes no initial index, is led through it.
@pytest.mark.parametrize(
    ("decode_fn", "decoder_params"),
    [(temperature_sample, {"temperature": 0.0}), (beam_search, {})],
    ids=["sampling", "beam_search"],
)
def test_a_prefix_lm_continues_prompts_of_unequal_length(decode_fn, decoder_params):
    # An EOS that is never produced, so that all positions are compared.
    model = build_model(
        ModelConfig(family="decoder_only", **TINY),
        LossConfig(),
        decode_fn=decode_fn,
        output_vocabulary=vocabulary(99),
        inputs_bidirectional_attention=True,
    )
    predict = functools.partial(model.predict_batch_with_aux, decoder_params=decoder_params)
    tokens, _ = jax.jit(predict)(tiny_params("decoder_only"), prefix_batch(PROMPTS, length=LENGTH))
    np.testing.assert_array_equal(tokens, expected_continuation())


def test_predictions_do_not_depend_on_the_neighbours():
    model = build_model(ModelConfig(**TINY), LossConfig())
    predict = jax.jit(functools.partial(model.predict_batch_with_aux, num_decodes=2, return_all_decodes=True))
    batches = [batch_of([[0] * 6] * 2, [[4, 5, 6, 1], other]) for other in ([7, 8, 9, 1], [10, 1, 0, 0])]
    (tokens, aux), (other_tokens, other_aux) = (predict(tiny_params(), batch) for batch in batches)
    np.testing.assert_array_equal(tokens[0], other_tokens[0])
    np.testing.assert_array_equal(aux["scores"][0], other_aux["scores"][0])


def test_scores_come_with_their_parts(monkeypatch):
    model = tiny_model("decoder_only")
    batch = prefix_batch([([5, 6], [7, 1])], length=5)
    monkeypatch.setattr(model, "_logits", lambda *_: jnp.zeros((1, 5, 32)))
    scores, parts = model.score_batch({}, batch, return_intermediates=True)
    np.testing.assert_allclose(scores, [-2 * np.log(32)], rtol=1e-6)
    np.testing.assert_array_equal(model.score_batch({}, batch), scores)
    assert set(parts["decoder"]) == {"target_tokens", "loss_weights", "token_scores"}
    np.testing.assert_array_equal(parts["decoder"]["target_tokens"][0], batch["decoder_target_tokens"])
    np.testing.assert_array_equal(parts["decoder"]["loss_weights"][0], batch["decoder_loss_weights"])
    np.testing.assert_allclose(parts["decoder"]["token_scores"][0].sum(axis=1), scores)


def test_metric_sums_count_tokens_rows_and_packed_examples():
    model = tiny_model()
    batch = {
        "decoder_target_tokens": jnp.asarray([[5, 1, 6, 1, 0], [1, 8, 1, 0, 0], [0, 0, 0, 0, 0]]),
        "decoder_segment_ids": jnp.asarray([[1, 1, 2, 2, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]),
        "encoder_segment_ids": jnp.asarray([[1, 2, 2], [1, 0, 0], [0, 0, 0]]),
        "decoder_loss_weights": jnp.asarray([[1.0, 1.0, 0.5, 0.5, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0], [0.0] * 5]),
    }
    # Predicts token 1 everywhere, which is right at a token without weight too.
    of_one = jax.nn.one_hot(jnp.ones((3, 5), int), 32)
    loss, sums = jax.jit(model.loss_of_logits)(of_one, batch)
    expected = {
        "weight_sum": 5.0,
        "correct": 3.0,
        "nonpadding_tokens": 6.0,
        "target_tokens": 15.0,
        "num_examples": 2.0,
        "non_padding_tokens/encoder": 4.0,
        "tokens/encoder": 9.0,
        "effective_batch_size/encoder": 3.0,
        "non_padding_tokens/decoder": 7.0,
        "tokens/decoder": 15.0,
        "effective_batch_size/decoder": 3.0,
    }
    assert {name: float(sums[name]) for name in expected} == expected
    assert all(value.dtype == jnp.float32 for value in sums.values())
    assert sums["objective"] == loss
    np.testing.assert_allclose(sums["loss"], loss * 5.0, rtol=1e-6)
    np.testing.assert_allclose(sums["loss"], sums["cross_ent_loss"] + sums["z_loss"], rtol=1e-6)


def test_feature_converters_are_seqio_s(monkeypatch):
    converters = types.SimpleNamespace(EncDecFeatureConverter=int, DecoderFeatureConverter=float)
    monkeypatch.setitem(sys.modules, "seqio", converters)
    assert tiny_model().FEATURE_CONVERTER_CLS is int
    assert tiny_model("decoder_only").FEATURE_CONVERTER_CLS is float


PACKED = {"encoder_segment_ids": 1, "decoder_segment_ids": 1}
REFUSED = {
    "one segment ids": (
        lambda: tiny_model().loss_fn({}, {"encoder_segment_ids": 1}, None),
        "the batch has encoder_segment_ids alone; give both segment ids, or neither",
    ),
    "decoding packed rows": (
        lambda: tiny_model().predict_batch({}, PACKED),
        r"the batch is packed \(encoder_segment_ids\); decode unpacked examples",
    ),
    "decoding packed rows alone": (
        lambda: tiny_model("decoder_only").predict_batch({}, PACKED),
        r"the batch is packed \(decoder_segment_ids\); decode unpacked examples",
    ),
    "prompts unknown": (
        lambda: tiny_model("decoder_only").predict_batch({}, batch_of([[3, 1]])),
        "the batch has no decoder_causal_attention, which decoding needs to tell the inputs; "
        "give the task the features 'inputs' and 'targets'",
    ),
    "prefix unknown": (
        lambda: tiny_model("decoder_only", prefix_lm=True).loss_fn({}, batch_of([[3, 1]]), None),
        "the batch has no decoder_causal_attention, which inputs_bidirectional_attention needs",
    ),
    "prefix without effect": (
        lambda: tiny_model(prefix_lm=True),
        "inputs_bidirectional_attention=True has no effect on an encoder-decoder; set model.family: decoder_only",
    ),
    "two keys": (
        lambda: called_with(rng=KEY, decoder_params={"decode_rng": KEY}),
        r"rng and decoder_params\['decode_rng'\] are both given; give one of them",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case):
    attempt, message = REFUSED[case]
    with pytest.raises(errors.ConfigError, match=message):
        attempt()
