"""Hugging Face's `config.json` of a T5, and the architecture that it describes.

Source: configuration and model in transformers/models/t5 and transformers/models/umt5, releases 4 and 5. A key that is
left out has the default of those classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5core import errors
from t5core.config.presets import Architecture, PositionBias

# ByT5 and Flan-T5 are 't5' as well. A umT5 has a position bias in each layer, the others one for each stack.
_POSITION_BIAS: dict[str, PositionBias] = {"t5": "shared", "mt5": "shared", "umt5": "per_layer"}
_EXPORTED_AS = {"shared": ("t5", "T5ForConditionalGeneration"), "per_layer": ("umt5", "UMT5ForConditionalGeneration")}
_EPSILON = 1e-6
# What `feed_forward_proj` may name, and which activation that is here. 'gated-gelu' is an old name for the tanh form.
_ACTIVATIONS = {
    "relu": ("relu",),
    "gelu_new": ("gelu",),
    "silu": ("silu",),
    "gated-gelu": ("gelu", "linear"),
    "gated-gelu_new": ("gelu", "linear"),
    "gated-silu": ("silu", "linear"),
    "gated-relu": ("relu", "linear"),
}
_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "emb_dim",
    "num_heads": "num_heads",
    "num_layers": "num_encoder_layers",
    "num_decoder_layers": "num_decoder_layers",
    "d_kv": "head_dim",
    "d_ff": "mlp_dim",
    "relative_attention_num_buckets": "relative_attention_num_buckets",
    "relative_attention_max_distance": "relative_attention_max_distance",
}
_DEFAULTS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """What a `config.json` says.

    Attributes:
      architecture: with `logits_via_embedding` where the logits are scaled, as T5 1.0 has them.
      may_tie: whether the file may leave out `lm_head.weight`, which is the embedding then.
    """

    architecture: Architecture
    may_tie: bool


def parse(config: Any, *, source: str) -> Described:
    """Returns the architecture that `config`, the JSON at `source`, describes.

    Raises:
      CheckpointError: another kind of model, or a setting that models here do not have.
    """
    if not isinstance(config, dict):
        raise errors.CheckpointError(f"{source} holds a {type(config).__name__}, not settings; check the folder")
    _require_supported(config, source=source)
    config = _DEFAULTS | config
    config.setdefault("num_decoder_layers", config.get("num_layers"))
    if config["num_decoder_layers"] is None:
        config["num_decoder_layers"] = config.get("num_layers")
    for name in _SIZES:
        value = config.get(name)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise errors.CheckpointError(f"{source} has {name}={value!r}, not a size; check the folder")
    tied = config.get("tie_word_embeddings", True)
    # Release 4 scales exactly when tied; release 5 always says tied, and scaling apart.
    scaled = config.get("scale_decoder_outputs", tied)
    if not isinstance(tied, bool) or not isinstance(scaled, bool):
        raise errors.CheckpointError(f"{source} has tie_word_embeddings={tied!r}, scale_decoder_outputs={scaled!r}")
    architecture = Architecture(
        mlp_activations=_activations(config.get("feed_forward_proj", "relu"), source=source),
        logits_via_embedding=scaled,
        relative_position_bias=_POSITION_BIAS[config["model_type"]],
        **{ours: config[theirs] for theirs, ours in _SIZES.items()},
    )
    return Described(architecture=architecture, may_tie=tied)


def _require_supported(config: Mapping[str, Any], *, source: str) -> None:
    kind = config.get("model_type")
    if kind not in _POSITION_BIAS:
        raise errors.CheckpointError(f"{source}: {errors.unknown_name('model_type', str(kind), _POSITION_BIAS)}")
    if not config.get("is_encoder_decoder", True):
        raise errors.CheckpointError(f"{source} is of one stack alone; give a T5 with encoder and decoder")
    if config.get("quantization_config") is not None:
        raise errors.CheckpointError(f"{source} is of a quantised model; give the original one")
    epsilon = config.get("layer_norm_epsilon", _EPSILON)
    if epsilon != _EPSILON:
        raise errors.CheckpointError(f"{source} has layer_norm_epsilon={epsilon!r}, and models here have {_EPSILON}")


def _activations(projection: Any, *, source: str) -> tuple[str, ...]:
    found = _ACTIVATIONS.get(projection) if isinstance(projection, str) else None
    if found is None:
        raise errors.CheckpointError(
            f"{source} has feed_forward_proj={projection!r}, and models here know {', '.join(_ACTIVATIONS)}; "
            f"it cannot be imported"
        )
    return found


def render(architecture: Architecture) -> dict[str, Any]:
    """Returns the `config.json` of a T5 or umT5 with these dimensions, for releases 4 and 5 of transformers.

    Raises:
      CheckpointError: there is no such model there.
    """
    if architecture.family != "encoder_decoder":
        raise errors.CheckpointError(
            f"transformers has no T5 of the family {architecture.family!r}; export it in T5X's layout"
        )
    projections = [name for name, found in _ACTIVATIONS.items() if found == architecture.mlp_activations]
    if not projections:
        raise errors.CheckpointError(
            f"transformers has no T5 with mlp_activations={list(architecture.mlp_activations)}; export in T5X's layout"
        )
    model_type, model_class = _EXPORTED_AS[architecture.relative_position_bias]
    return {
        "architectures": [model_class],
        "model_type": model_type,
        **{theirs: getattr(architecture, ours) for theirs, ours in _SIZES.items()},
        "feed_forward_proj": projections[0],
        "tie_word_embeddings": architecture.logits_via_embedding,
        "scale_decoder_outputs": architecture.logits_via_embedding,
        "layer_norm_epsilon": _EPSILON,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "torch_dtype": "float32",
    }
