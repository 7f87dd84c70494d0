"""Decoded evaluation: a prediction belongs to its example, however the examples are batched."""

import functools

import pytest

from t5core.config.schema import DecodeConfig
from t5core.data.converters import converter_for
from t5core.data.stored import StoredSplit
from t5core.data.vocabulary import ByteVocabulary
from t5core.evaluation import decoded
from tests.t5core import tiny
from tests.t5core.data import making

LENGTHS = {"inputs": 6, "targets": 5}
EXAMPLES = making.examples(7, longest=LENGTHS)


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    rows = [{name: [token % 256 + 3 for token in ids] for name, ids in example.items()} for example in EXAMPLES]
    root = str(tmp_path_factory.mktemp("decoded"))
    return making.task_dataset(root, "t", rows, validation=rows, lengths=LENGTHS).uri


@functools.cache
def trainer_of(decode):
    return tiny.trainer(
        vocab_size=384, decode_fn=decoded.decode_fn(decode), decoder_params=decoded.decoder_params(decode)
    )


def texts_of(uri, decode, batch_size):
    split = StoredSplit(
        uri=uri,
        split="validation",
        batch_size=batch_size,
        converter=converter_for("encoder_decoder", LENGTHS),
        rows=slice(0, batch_size),
        max_rows=decode.max_examples,
    )
    trainer = trainer_of(decode)
    params = trainer.initial_state().params
    return decoded.predict(trainer, params, name="t", split=split, vocabulary=ByteVocabulary(extra_ids=0))


GREEDY = DecodeConfig(max_examples=6)


@pytest.fixture(scope="module", params=["greedy", "beam", "sample"])
def predict(request, uri):
    settings = {"beam": {"beam_size": 2}, "sample": {"temperature": 1.0}}.get(request.param, {})
    decode = DecodeConfig(strategy=request.param, max_examples=6, **settings)
    return functools.partial(texts_of, uri, decode)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "beam", "beam_size": 1},
        {"strategy": "sample", "temperature": 0.0},
        {"strategy": "sample", "topk": 1},
    ],
    ids=str,
)
def test_settings_that_leave_no_choice_are_greedy_decoding(uri, settings):
    decode = DecodeConfig(max_examples=6, **settings)
    assert texts_of(uri, decode, 6) == texts_of(uri, GREEDY, 6)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "beam", "beam_size": 1},  # else 4
        {"strategy": "beam", "beam_size": 4, "alpha": 8.0},
        {"strategy": "sample", "temperature": 2.0},
        {"strategy": "sample", "temperature": 2.0, "topk": 3},
        {"strategy": "sample", "temperature": 2.0, "topp": 0.1},
    ],
    ids=str,
)
def test_every_setting_has_its_effect(uri, settings):
    less = {name: value for name, value in settings.items() if name != list(settings)[-1]}
    with_it, without = (texts_of(uri, DecodeConfig(max_examples=6, **given), 6) for given in (settings, less))
    assert with_it.texts != without.texts


def test_predictions_do_not_depend_on_the_batches(predict):
    first = predict(4)
    assert len(first.texts) == 6, "as many as the limit says"
    assert len(set(first.texts)) > 1, "rows differ"
    assert predict(4) == first
    assert predict(6) == first


def test_the_share_that_met_the_length_limit_is_a_share(predict):
    found = predict(6)
    ended = sum(len(text.encode()) < LENGTHS["targets"] for text in found.texts)
    assert 0.0 <= found.length_limit_fraction <= 1.0
    assert found.length_limit_fraction >= (len(found.texts) - ended) / len(found.texts) - 1e-9
