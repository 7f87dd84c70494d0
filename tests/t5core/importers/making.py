"""Small models for tests of importers: every parameter differs from every other, and so does every statistic."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np

from t5core import trees
from t5core.config.presets import Architecture
from t5core.importers import contents, huggingface
from t5core.importers.contents import Contents
from t5core.optim.adafactor import Adafactor

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
HUGGINGFACE = GOLDEN / "hf_t5_v1_1"
T5X = GOLDEN / "t5x_checkpoint" / "checkpoint_30"


def architecture(**changes) -> Architecture:
    """Returns a T5 1.1 of two encoder layers and three decoder layers, in which no two dimensions are alike."""
    dims = {
        "vocab_size": 40,
        "emb_dim": 6,
        "num_heads": 2,
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "head_dim": 5,
        "mlp_dim": 7,
        "mlp_activations": ("gelu", "linear"),
        "logits_via_embedding": False,
    }
    return Architecture(**{**dims, **changes})


def made(*, step: int = 0, with_state: bool = False, **changes) -> Contents:
    """Returns a model of `architecture(**changes)` with random parameters, and random statistics if asked for."""
    found = architecture(**changes)
    random = np.random.default_rng(0)
    shapes = contents.expected_shapes(found)
    params = {path: random.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
    state = Adafactor().init(trees.unflatten(params)) if with_state else {}
    state = jax.tree.map(
        lambda slot: random.random(slot.shape, np.float32) if slot.shape != (1,) else np.zeros(1, np.float32), state
    )
    return Contents(architecture=found, step=step, params=params, opt_state=state, mapping=())


def rewrite(folder: pathlib.Path, name: str, change) -> None:
    """Changes a JSON file in place."""
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def saved(folder: pathlib.Path, found: Contents | None = None, **settings) -> pathlib.Path:
    """Returns `folder` with a Hugging Face model in it."""
    huggingface.write(str(folder), found or made(), **settings)
    return folder
