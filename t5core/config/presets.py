"""The published T5 sizes by name.

Source: the papers' tables and the configurations shipped with the public checkpoints (T5 1.0: arXiv:1910.10683;
1.1; mT5: arXiv:2010.11934; ByT5: arXiv:2105.13626; umT5: arXiv:2304.09151).
"""

from __future__ import annotations

from typing import Literal

from t5core import errors
from t5core.config.base import StrictModel

Family = Literal["encoder_decoder", "decoder_only"]
PositionBias = Literal["shared", "per_layer"]


class Architecture(StrictModel):
    """Every dimension of a T5 model.

    `head_dim` is per head, `mlp_dim` the width inside a feed-forward block; `relative_position_bias` tells whether the
    layers of a stack share theirs, as in T5, or have one each, as in umT5.
    """

    family: Family = "encoder_decoder"
    vocab_size: int
    emb_dim: int
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    head_dim: int
    mlp_dim: int
    mlp_activations: tuple[str, ...]
    logits_via_embedding: bool
    relative_position_bias: PositionBias = "shared"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128


def _sizes(
    prefix: str,
    table: dict[str, tuple[int, int, int, int, int]],
    vocab_size: int,
    *,
    gated: bool,
    position_bias: PositionBias = "shared",
) -> dict[str, Architecture]:
    """Builds presets from rows of (emb_dim, num_heads, encoder layers, decoder layers, mlp_dim)."""
    return {
        f"{prefix}_{size}": Architecture(
            vocab_size=vocab_size,
            emb_dim=emb,
            num_heads=heads,
            num_encoder_layers=encoder,
            num_decoder_layers=decoder,
            head_dim=128 if (size, prefix) in (("3b", "t5_1_0"), ("11b", "t5_1_0")) else 64,
            mlp_dim=mlp,
            mlp_activations=("gelu", "linear") if gated else ("relu",),
            logits_via_embedding=not gated,
            relative_position_bias=position_bias,
        )
        for size, (emb, heads, encoder, decoder, mlp) in table.items()
    }


_V1_1 = {
    "small": (512, 6, 8, 8, 1024),
    "base": (768, 12, 12, 12, 2048),
    "large": (1024, 16, 24, 24, 2816),
    "xl": (2048, 32, 24, 24, 5120),
    "xxl": (4096, 64, 24, 24, 10240),
}
_V1_0 = {
    "small": (512, 8, 6, 6, 2048),
    "base": (768, 12, 12, 12, 3072),
    "large": (1024, 16, 24, 24, 4096),
    "3b": (1024, 32, 24, 24, 16384),
    "11b": (1024, 128, 24, 24, 65536),
}
_BYT5 = {
    "small": (1472, 6, 12, 4, 3584),
    "base": (1536, 12, 18, 6, 3968),
    "large": (1536, 16, 36, 12, 3840),
    "xl": (2560, 32, 36, 12, 6720),
    "xxl": (4672, 64, 36, 12, 12352),
}

PRESETS: dict[str, Architecture] = {
    **_sizes("t5_1_1", _V1_1, 32128, gated=True),
    **_sizes("t5_1_0", _V1_0, 32128, gated=False),
    **_sizes("mt5", _V1_1, 250112, gated=True),
    **_sizes("umt5", _V1_1, 256384, gated=True, position_bias="per_layer"),
    **_sizes("byt5", _BYT5, 384, gated=True),
    "t5_1_1_tiny": Architecture(
        vocab_size=2176,
        emb_dim=128,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        head_dim=32,
        mlp_dim=256,
        mlp_activations=("gelu", "linear"),
        logits_via_embedding=False,
    ),
}


def preset(name: str) -> Architecture:
    """Returns the published architecture called `name`.

    Raises:
      ConfigError: there is no such preset; the message names the nearest one.
    """
    if name not in PRESETS:
        raise errors.ConfigError(errors.unknown_name("model.preset", name, PRESETS))
    return PRESETS[name]
