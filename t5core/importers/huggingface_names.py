"""The tensors of Hugging Face's T5 and the parameters that they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from t5core.config.presets import Architecture

EMBEDDING = "token_embedder/embedding"
HEAD = "decoder/logits_dense/kernel"
EMBEDDING_TENSOR = "shared.weight"
HEAD_TENSOR = "lm_head.weight"
# Other names of the embedding, which old files store beside it.
EMBEDDING_ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# Part of the first T5s' files though no model uses it.
LEFTOVERS = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}


class Rule(NamedTuple):
    """A tensor and the parameter that it is, transposed or not."""

    tensor: str
    name: str
    transposed: bool


def rules(architecture: Architecture) -> list[Rule]:
    """Returns one rule for each parameter of such an encoder-decoder, in the order in which files have them.

    PyTorch's kernels are [outputs, inputs], ours [inputs, outputs].
    """
    found = [Rule(EMBEDDING_TENSOR, EMBEDDING, transposed=False)]
    found += _stack("encoder", architecture.num_encoder_layers, architecture)
    found += _stack("decoder", architecture.num_decoder_layers, architecture)
    if not architecture.logits_via_embedding:
        found.append(Rule(HEAD_TENSOR, HEAD, transposed=True))
    return found


def _stack(stack: str, num_layers: int, architecture: Architecture) -> Iterator[Rule]:
    shares_bias = architecture.relative_position_bias == "shared"
    if shares_bias:
        yield _bias(f"{stack}.block.0.layer", stack)
    for index in range(num_layers):
        theirs, ours = f"{stack}.block.{index}.layer", f"{stack}/layers_{index}"
        if not shares_bias:
            yield _bias(theirs, ours)
        attention = "attention" if stack == "encoder" else "self_attention"
        yield from _block(f"{theirs}.0", "SelfAttention", ours, attention, f"pre_{attention}_layer_norm")
        if stack == "decoder":
            names = ("encoder_decoder_attention", "pre_cross_attention_layer_norm")
            yield from _block(f"{theirs}.1", "EncDecAttention", ours, *names)
        last = f"{theirs}.{1 if stack == 'encoder' else 2}"
        count = len(architecture.mlp_activations)
        for wi in ["wi"] if count == 1 else [f"wi_{branch}" for branch in range(count)]:
            yield Rule(f"{last}.DenseReluDense.{wi}.weight", f"{ours}/mlp/{wi}/kernel", transposed=True)
        yield Rule(f"{last}.DenseReluDense.wo.weight", f"{ours}/mlp/wo/kernel", transposed=True)
        yield Rule(f"{last}.layer_norm.weight", f"{ours}/pre_mlp_layer_norm/scale", transposed=False)
    yield Rule(f"{stack}.final_layer_norm.weight", f"{stack}/{stack}_norm/scale", transposed=False)


def _bias(theirs: str, ours: str) -> Rule:
    tensor = f"{theirs}.0.SelfAttention.relative_attention_bias.weight"
    return Rule(tensor, f"{ours}/relpos_bias/rel_embedding", transposed=True)


def _block(theirs: str, attention_class: str, ours: str, attention: str, norm: str) -> Iterator[Rule]:
    for name, letter in _ATTENTION.items():
        tensor = f"{theirs}.{attention_class}.{letter}.weight"
        yield Rule(tensor, f"{ours}/{attention}/{name}/kernel", transposed=True)
    yield Rule(f"{theirs}.layer_norm.weight", f"{ours}/{norm}/scale", transposed=False)
