"""A tiny T5 1.1 with random parameters, as T5X would have saved it: something to convert where nothing else is."""

from __future__ import annotations

import jax
import numpy as np
from flax import linen as nn

from t5core import trees
from t5core.checkpoints import t5x_native
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.importers import t5x
from t5core.importers.contents import Contents
from t5core.models.build import build_model
from t5core.optim.adafactor import Adafactor

MODEL = ModelConfig(vocab_size=384, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0)


def checkpoint(folder: str) -> str:
    """Returns the checkpoint of step 0 in `folder`, which is written unless it is there."""
    if 0 in t5x_native.t5x_checkpoint_steps(folder):
        return f"{folder}/checkpoint_0"
    model = build_model(MODEL, LossConfig())
    shapes = {"encoder_input_tokens": (1, 2), "decoder_input_tokens": (1, 2)}
    draw = jax.jit(lambda key: nn.meta.unbox(model.get_initial_variables(key, shapes)))
    params = jax.device_get(draw(jax.random.PRNGKey(0)))
    found = Contents(
        architecture=MODEL.architecture(),
        step=0,
        params={path: np.asarray(leaf) for path, leaf in trees.flatten(params).items()},
        opt_state=jax.device_get(Adafactor().init(params)),
        mapping=(),
    )
    return t5x.write(folder, found)
