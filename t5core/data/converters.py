"""From stored tokens to the features that T5X's models read.

Two steps, so that everything cheap to derive is derived when a batch is read. `from_task` turns a task's rows
(`inputs`, `targets`) into the features that a mixture stores; `to_model` derives the rest from those: decoder inputs by
shifting right, positions, loss weights. Segment ids are there when rows are packed, and only then.

Source: seqio/feature_converters.py@0.0.20; section and examples of its docstrings are the tests.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from t5core import errors
from t5core.config.presets import Family
from t5core.data.manifest import FeatureSpec, token_dtype

Rows = Int[np.ndarray, "rows length"]
ENCODER, DECODER = "encoder", "decoder"


class FeatureConverter(abc.ABC):
    """Knows which features a model reads and how they come from those of a task.

    Attributes:
      groups: the row length of each sequence the model reads, 'encoder' and 'decoder'. The features of a group are
        aligned with one another, and each group has segment ids of its own.
      members: the stored features of each group, tokens first.
    """

    groups: dict[str, int]
    members: dict[str, tuple[str, ...]]

    @abc.abstractmethod
    def from_task(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """Returns the stored features of a task's rows, unpacked.

        Raises:
          DataError: the task lacks a feature, or has longer rows than this model reads.
        """

    @abc.abstractmethod
    def to_model(self, stored: Mapping[str, Rows]) -> dict[str, Int[np.ndarray, "rows length"]]:
        """Returns T5X's model features, int32, for rows of stored features, packed or not."""

    def stored_features(self, *, packed: bool, vocab_size: int) -> dict[str, FeatureSpec]:
        """Returns the features that a mixture stores for this model."""
        features = {}
        for group, (tokens, *masks) in self.members.items():
            length = self.groups[group]
            features[tokens] = FeatureSpec(dtype=token_dtype(vocab_size), length=length)
            features |= {mask: FeatureSpec(dtype="uint8", length=length) for mask in masks}
            if packed:
                features[segment_ids(group)] = FeatureSpec(dtype=token_dtype(length), length=length)
        return features


def segment_ids(group: str) -> str:
    """Returns the name of the segment ids of a group: 1, 2, ... for the examples of a row and 0 for padding."""
    return f"{group}_segment_ids"


def converter_for(family: Family, feature_lengths: Mapping[str, int]) -> FeatureConverter:
    """Returns the converter for a model family.

    A decoder-only model reads inputs before its targets when `feature_lengths` has inputs, else targets alone.

    Source: `DecoderFeatureConverter`, seqio/feature_converters.py@0.0.20 (without suffixes).
    """
    targets = feature_lengths["targets"]
    if family == "encoder_decoder":
        return EncoderDecoderConverter(inputs=feature_lengths["inputs"], targets=targets)
    if "inputs" in feature_lengths:
        return PrefixLMConverter(inputs=feature_lengths["inputs"], targets=targets)
    return LMConverter(targets=targets)


class EncoderDecoderConverter(FeatureConverter):
    """Inputs go to the encoder, targets to the decoder."""

    members = {ENCODER: ("encoder_input_tokens",), DECODER: ("decoder_target_tokens",)}

    def __init__(self, *, inputs: int, targets: int) -> None:
        self.groups = {ENCODER: inputs, DECODER: targets}

    def from_task(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """See the base class."""
        return {
            "encoder_input_tokens": _padded(rows, "inputs", self.groups[ENCODER]),
            "decoder_target_tokens": _padded(rows, "targets", self.groups[DECODER]),
        }

    def to_model(self, stored: Mapping[str, Rows]) -> dict[str, Int[np.ndarray, "rows length"]]:
        """See the base class; the loss covers every target that is not padding."""
        features = {"encoder_input_tokens": stored["encoder_input_tokens"].astype(np.int32)}
        features |= _segments(stored, ENCODER) | _decoder(stored)
        features["decoder_loss_weights"] = (features["decoder_target_tokens"] != 0).astype(np.int32)
        return features


class LMConverter(FeatureConverter):
    """Targets alone go to the decoder."""

    members = {DECODER: ("decoder_target_tokens",)}

    def __init__(self, *, targets: int) -> None:
        self.groups = {DECODER: targets}

    def from_task(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """See the base class."""
        return {"decoder_target_tokens": _padded(rows, "targets", self.groups[DECODER])}

    def to_model(self, stored: Mapping[str, Rows]) -> dict[str, Int[np.ndarray, "rows length"]]:
        """See the base class; the loss covers every target that is not padding."""
        features = _decoder(stored)
        return {**features, "decoder_loss_weights": (features["decoder_target_tokens"] != 0).astype(np.int32)}


class PrefixLMConverter(FeatureConverter):
    """Inputs and targets go to the decoder one after the other; the loss covers the targets only.

    `decoder_causal_attention` is 1 where attention may look both ways: at the inputs and at the position after them,
    where the last input is read and the first target predicted. A task without inputs gives prefixes of length 0.

    Deliberate difference from SeqIO: a token 0 inside the inputs has no loss weight (there it gets one).
    """

    members = {DECODER: ("decoder_target_tokens", "decoder_loss_weights", "decoder_causal_attention")}

    def __init__(self, *, inputs: int, targets: int) -> None:
        self._lengths = {"inputs": inputs, "targets": targets}
        self.groups = {DECODER: inputs + targets}

    def from_task(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """See the base class."""
        targets = _padded(rows, "targets", self._lengths["targets"])
        count, length = len(targets), self.groups[DECODER]
        missing = np.zeros((count, self._lengths["inputs"]), targets.dtype)
        inputs = _padded(rows, "inputs", self._lengths["inputs"]) if "inputs" in rows else missing
        widths, target_lengths = lengths_of(inputs), np.maximum(1, lengths_of(targets))
        positions = np.arange(length)[None, :]
        in_prefix = positions < widths[:, None]
        in_targets = ~in_prefix & (positions < (widths + target_lengths)[:, None])
        tokens = np.zeros((count, length), np.int32)
        tokens[in_prefix] = inputs[_mask(widths, inputs.shape[1])]
        tokens[in_targets] = targets[_mask(target_lengths, targets.shape[1])]
        return {
            "decoder_target_tokens": tokens,
            "decoder_loss_weights": (in_targets & (tokens != 0)).astype(np.uint8),
            "decoder_causal_attention": (positions < widths[:, None] + 1).astype(np.uint8),
        }

    def to_model(self, stored: Mapping[str, Rows]) -> dict[str, Int[np.ndarray, "rows length"]]:
        """See the base class."""
        masks = ("decoder_loss_weights", "decoder_causal_attention")
        return {**_decoder(stored), **{name: stored[name].astype(np.int32) for name in masks}}


def lengths_of(tokens: Rows) -> Int[np.ndarray, " rows"]:
    """Returns the length of each row without the padding at its end."""
    filled = tokens != 0
    return np.where(filled.any(axis=1), tokens.shape[1] - filled[:, ::-1].argmax(axis=1), 0)


def _mask(lengths: Int[np.ndarray, " rows"], width: int) -> Bool[np.ndarray, "rows length"]:
    return np.arange(width)[None, :] < lengths[:, None]


def _padded(rows: Mapping[str, Rows], name: str, length: int) -> Rows:
    """Returns a task's feature, padded with zeros up to `length`."""
    if name not in rows:
        raise errors.DataError(f"the task has no feature {name!r}, only {sorted(rows)}; the model reads it, so add it")
    tokens = np.asarray(rows[name])
    if tokens.shape[1] > length:
        raise errors.DataError(f"{name!r} is {tokens.shape[1]} tokens long and the model reads {length}; trim it")
    return np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])))


def _segments(stored: Mapping[str, Rows], group: str) -> dict[str, Rows]:
    """Returns segment ids and positions of a packed group; nothing for an unpacked one."""
    if segment_ids(group) not in stored:
        return {}
    segments = stored[segment_ids(group)].astype(np.int32)
    index = np.arange(segments.shape[1], dtype=np.int32)[None, :]
    starts = np.maximum.accumulate(np.where(_begins(segments), index, 0), axis=1)
    return {
        segment_ids(group): segments,
        f"{group}_positions": np.where(segments > 0, index - starts, 0).astype(np.int32),
    }


def _begins(segments: Rows) -> Bool[np.ndarray, "rows length"]:
    return np.diff(segments, axis=1, prepend=0) != 0


def _decoder(stored: Mapping[str, Rows]) -> dict[str, Rows]:
    """Returns the decoder's targets, its inputs (0 where a segment begins), segment ids and positions."""
    targets = stored["decoder_target_tokens"].astype(np.int32)
    inputs = np.roll(targets, 1, axis=1)
    inputs[:, 0] = 0
    segments = _segments(stored, DECODER)
    if segments:
        inputs[_begins(segments[segment_ids(DECODER)])] = 0
    return {"decoder_target_tokens": targets, "decoder_input_tokens": inputs, **segments}
