"""Model features: the worked examples of SeqIO's converters, their properties, and SeqIO itself."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from t5core import errors
from t5core.data.converters import (
    EncoderDecoderConverter,
    LMConverter,
    PrefixLMConverter,
    converter_for,
    lengths_of,
)
from t5core.data.packing import Packer
from tests.t5core.data.making import examples, padded

INPUTS = [[7, 8, 5, 1], [8, 4, 9, 3, 1]]
TARGETS = [[3, 9, 1], [4, 1]]


def _packed(converter, inputs, targets):
    packer = Packer(converter)
    rows = {"targets": padded(targets, 8)[:, : converter.groups["decoder"]]}
    if inputs:
        rows["inputs"] = padded(inputs, 7)
    parts = [packer.add(converter.from_task(rows)), packer.finish()]
    return converter.to_model({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _lists(features):
    assert {values.dtype.name for values in features.values()} == {"int32"}
    return {name: values.tolist() for name, values in features.items()}


def test_encoder_decoder_packed():
    converter = EncoderDecoderConverter(inputs=10, targets=7)
    packer = Packer(converter)
    parts = [
        packer.add(converter.from_task({"inputs": padded(INPUTS, 5), "targets": padded(TARGETS, 3)})),
        packer.finish(),
    ]
    stored = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert _lists(converter.to_model(stored)) == {
        "encoder_input_tokens": [[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]],
        "encoder_positions": [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]],
        "decoder_target_tokens": [[3, 9, 1, 4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0, 4, 0, 0]],
        "decoder_loss_weights": [[1, 1, 1, 1, 1, 0, 0]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 0, 0]],
        "decoder_positions": [[0, 1, 2, 0, 1, 0, 0]],
    }


def test_encoder_decoder_unpacked():
    converter = EncoderDecoderConverter(inputs=5, targets=4)
    stored = converter.from_task({"inputs": padded(INPUTS, 5), "targets": padded(TARGETS, 3)})
    assert _lists(converter.to_model(stored)) == {
        "encoder_input_tokens": [[7, 8, 5, 1, 0], [8, 4, 9, 3, 1]],
        "decoder_target_tokens": [[3, 9, 1, 0], [4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 1], [0, 4, 1, 0]],
        "decoder_loss_weights": [[1, 1, 1, 0], [1, 1, 0, 0]],
    }


def test_prefix_lm_packed():
    assert _lists(_packed(PrefixLMConverter(inputs=7, targets=8), INPUTS, TARGETS)) == {
        "decoder_target_tokens": [[7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0]],
        "decoder_input_tokens": [[0, 7, 8, 5, 1, 3, 9, 0, 8, 4, 9, 3, 1, 4, 0]],
        "decoder_loss_weights": [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]],
        "decoder_positions": [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0]],
        "decoder_segment_ids": [[1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 0]],
        "decoder_causal_attention": [[1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]],
    }


def test_prefix_lm_unpacked_with_long_input_length():
    converter = PrefixLMConverter(inputs=10, targets=4)
    stored = converter.from_task({"inputs": padded([[9, 4, 6, 1]], 10), "targets": padded([[3, 9, 1]], 4)})
    assert _lists(converter.to_model(stored)) == {
        "decoder_target_tokens": [[9, 4, 6, 1, 3, 9, 1, 0, 0, 0, 0, 0, 0, 0]],
        "decoder_input_tokens": [[0, 9, 4, 6, 1, 3, 9, 1, 0, 0, 0, 0, 0, 0]],
        "decoder_loss_weights": [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]],
        "decoder_causal_attention": [[1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
    }


def test_prefix_lm_without_inputs_is_a_prefix_of_nothing():
    converter = PrefixLMConverter(inputs=2, targets=3)
    features = _lists(converter.to_model(converter.from_task({"targets": padded([[5, 1]], 3)})))
    assert features["decoder_target_tokens"] == [[5, 1, 0, 0, 0]]
    assert features["decoder_loss_weights"] == [[1, 1, 0, 0, 0]]
    assert features["decoder_causal_attention"] == [[1, 0, 0, 0, 0]]


def test_lm_packed():
    assert _lists(_packed(LMConverter(targets=6), None, TARGETS)) == {
        "decoder_target_tokens": [[3, 9, 1, 4, 1, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0, 4, 0]],
        "decoder_loss_weights": [[1, 1, 1, 1, 1, 0]],
        "decoder_positions": [[0, 1, 2, 0, 1, 0]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 0]],
    }


def test_the_family_and_the_features_choose_the_converter():
    assert isinstance(converter_for("encoder_decoder", {"inputs": 4, "targets": 3}), EncoderDecoderConverter)
    assert isinstance(converter_for("decoder_only", {"inputs": 4, "targets": 3}), PrefixLMConverter)
    assert isinstance(converter_for("decoder_only", {"targets": 3}), LMConverter)


@pytest.mark.parametrize("family", ["encoder_decoder", "decoder_only"])
def test_packed_and_unpacked_rows_have_the_same_loss_tokens(family):
    converter = converter_for(family, {"inputs": 12, "targets": 8})
    cases = examples(50)
    stored = converter.from_task(
        {"inputs": padded([e["inputs"] for e in cases], 12), "targets": padded([e["targets"] for e in cases], 8)}
    )
    packer = Packer(converter)
    parts = [packer.add(stored), packer.finish()]
    packed = converter.to_model({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    unpacked = converter.to_model(stored)
    for features in (packed, unpacked):
        weights = features["decoder_loss_weights"]
        assert weights.sum() == sum(len(e["targets"]) for e in cases)
        scored = features["decoder_target_tokens"][weights == 1]
        assert sorted(scored.tolist()) == sorted(token for e in cases for token in e["targets"])


def test_stored_features_are_narrow_and_complete():
    converter = PrefixLMConverter(inputs=4, targets=3)
    packed = converter.stored_features(packed=True, vocab_size=100_000)
    assert {name: (spec.dtype, spec.length) for name, spec in packed.items()} == {
        "decoder_target_tokens": ("int32", 7),
        "decoder_loss_weights": ("uint8", 7),
        "decoder_causal_attention": ("uint8", 7),
        "decoder_segment_ids": ("uint16", 7),
    }
    assert "decoder_segment_ids" not in converter.stored_features(packed=False, vocab_size=100)


def test_a_zero_inside_a_row_is_not_its_end():
    assert lengths_of(np.array([[5, 0, 6, 0], [0, 0, 0, 0], [1, 2, 3, 4]])).tolist() == [3, 0, 4]


def test_features_that_do_not_fit_are_refused():
    converter = EncoderDecoderConverter(inputs=4, targets=3)
    with pytest.raises(errors.DataError, match=r"the task has no feature 'inputs', only \['targets'\]"):
        converter.from_task({"targets": np.ones((1, 3), int)})
    with pytest.raises(errors.DataError, match="'targets' is 5 tokens long and the model reads 3; trim it"):
        converter.from_task({"inputs": np.ones((1, 4), int), "targets": np.ones((1, 5), int)})


GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden/feature_converters/features.json").read_text())


@pytest.mark.parametrize("kind", ["encoder_decoder", "prefix_lm", "lm"])
def test_the_same_features_as_seqio(kind):
    """If it fails: tests/golden/feature_converters/make.py tells what SeqIO gives today."""
    lengths = dict(GOLDEN["feature_lengths"])
    if kind == "lm":
        del lengths["inputs"]
    converter = converter_for("encoder_decoder" if kind == "encoder_decoder" else "decoder_only", lengths)
    rows = {name: padded([e[name] for e in GOLDEN["examples"]], length) for name, length in lengths.items()}
    stored, packer = converter.from_task(rows), Packer(converter)
    parts = [packer.add(stored), packer.finish()]
    packed = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert _lists(converter.to_model(stored)) == GOLDEN["features"][kind]["unpacked"]
    assert _lists(converter.to_model(packed)) == GOLDEN["features"][kind]["packed"]
