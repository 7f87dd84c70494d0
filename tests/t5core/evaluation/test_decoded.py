"""Decoded evaluation: a prediction belongs to its example, however the examples are batched."""

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


@pytest.fixture(scope="module", params=["greedy", "beam", "sample"])
def predict(request, uri):
    settings = {"beam": {"beam_size": 2}, "sample": {"temperature": 1.0}}.get(request.param, {})
    decode = DecodeConfig(strategy=request.param, max_examples=6, **settings)
    trainer = tiny.trainer(
        vocab_size=384, decode_fn=decoded.decode_fn(decode), decoder_params=decoded.decoder_params(decode)
    )
    params = trainer.initial_state().params

    def run(batch_size):
        split = StoredSplit(
            uri=uri,
            split="validation",
            batch_size=batch_size,
            converter=converter_for("encoder_decoder", LENGTHS),
            rows=slice(0, batch_size),
            max_rows=decode.max_examples,
        )
        return decoded.predict(trainer, params, name="t", split=split, vocabulary=ByteVocabulary(extra_ids=0))

    return run


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
