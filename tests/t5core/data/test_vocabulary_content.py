"""Vocabularies are the same when the same text becomes the same ids."""

import pytest
from sentencepiece import sentencepiece_model_pb2

from t5core import errors
from t5core.data import vocabulary_content
from tests.t5core.data.test_vocabulary import train


@pytest.fixture(scope="module")
def model():
    return train()


def content(model, extra_ids=0):
    return vocabulary_content.of_sentencepiece(model, extra_ids=extra_ids)


def with_sentinels(model, count):
    """Returns the model with its sentinels among its pieces, the first one last."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for index in reversed(range(count)):
        proto.pieces.add(piece=f"<extra_id_{index}>", score=0.0, type=proto.SentencePiece.USER_DEFINED)
    return proto.SerializeToString()


def test_sentinels_count_alike_wherever_they_come_from(model):
    assert content(model, 10) == content(with_sentinels(model, 10))
    assert content(model, 10) != content(model, 9)
    assert content(model, 10) != content(with_sentinels(model, 9))


def test_a_piece_or_a_score_makes_another_vocabulary(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.pieces[50].score -= 1
    assert content(proto.SerializeToString()) != content(model)
    assert content(train(vocab_size=121)) != content(model)


def test_what_does_not_change_the_ids_does_not_count(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.trainer_spec.model_prefix = "elsewhere"
    assert content(proto.SerializeToString()) == content(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(
        errors.DataError, match=r"the SentencePiece model is not a SentencePiece model; name a .model file"
    ):
        content(b"no model at all")


def test_bytes_differ_by_their_sentinels_alone():
    assert vocabulary_content.of_bytes(extra_ids=1) != vocabulary_content.of_bytes(extra_ids=2)
