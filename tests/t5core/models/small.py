"""Models and batches small enough for unit tests; the model of the golden numbers; and what tests do with them."""

from __future__ import annotations

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LossConfig
from t5core.models.build import build_model

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
FAMILIES = {"t5x_encdec_v1_1": "encoder_decoder", "t5x_decoder_only": "decoder_only"}
VOCAB = 32
KEY = jax.random.PRNGKey(0)
TINY = {
    "vocab_size": VOCAB,
    "emb_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "mlp_dim": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dropout_rate": 0.0,
}


def tiny_model(family: str = "encoder_decoder", *, loss: LossConfig | None = None, prefix_lm: bool = False, **model):
    """Returns a model of two layers; keywords replace its settings."""
    config = ModelConfig(family=family, **{**TINY, **model})
    return build_model(config, loss or LossConfig(), inputs_bidirectional_attention=prefix_lm)


SHAPES = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens"), (1, 2))


@functools.cache
def tiny_params(family: str = "encoder_decoder", **model):
    """Returns random parameters in which every one matters: the norms' scales are not all 1."""
    random = np.random.default_rng(0)
    boxed = jax.eval_shape(lambda key: tiny_model(family, **model).get_initial_variables(key, SHAPES), KEY)
    # Drawn with NumPy: nothing to compile.
    return jax.tree.map(
        lambda leaf: (random.normal(size=leaf.shape) / np.sqrt(leaf.shape[0]) + (leaf.ndim == 1)).astype(np.float32),
        nn.meta.unbox(boxed),
    )


def initial_params(model, *, seed: int):
    return nn.meta.unbox(jax.jit(lambda key: model.get_initial_variables(key, SHAPES))(jax.random.PRNGKey(seed)))


@functools.cache
def golden(folder: str):
    """Returns the numbers, the arrays and T5X's initial parameters."""
    numbers = json.loads((GOLDEN / folder / "model.json").read_text())
    arrays = np.load(GOLDEN / folder / "model.npz")
    arrays = {name: arrays[name] for name in arrays.files}
    return numbers, arrays, initial_params(golden_model(folder), seed=numbers["config"]["seed"])


def golden_model(folder: str, **loss):
    """Returns the golden numbers' model with a plain sum as its loss; keywords replace settings of the loss."""
    config = ModelConfig(preset="t5_1_1_tiny", family=FAMILIES[folder], vocab_size=384, dropout_rate=0.0)
    loss = LossConfig(**{"z_loss": 0.0, "loss_normalizing_factor": None, **loss})
    return build_model(config, loss, inputs_bidirectional_attention=folder == "t5x_decoder_only")


def golden_batch(folder: str, name: str, *, rows: int | None = None):
    """Returns a batch of the golden arrays: "batch0", "packed" or "unpacked"."""
    _, arrays, _ = golden(folder)
    prefix = f"{name}/"
    return {k.removeprefix(prefix): jnp.asarray(v[:rows], jnp.int32) for k, v in arrays.items() if k.startswith(prefix)}


def logits(model, params, batch, dropout_rng=None):
    return model._logits(params, batch, dropout_rng)


def shift_right(targets):
    return np.pad(targets[:, :-1], ((0, 0), (1, 0)))


def batch_of(targets, inputs=None, *, length: int | None = None, input_length: int | None = None):
    """Returns an unpacked batch of examples, lists of ids: encoder-decoder with `inputs`, else decoder-only."""
    targets = _padded(targets, length)
    batch = {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": shift_right(targets),
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }
    if inputs is not None:
        batch["encoder_input_tokens"] = _padded(inputs, input_length)
    return {name: jnp.asarray(value) for name, value in batch.items()}


def prefix_batch(examples, *, length: int):
    """Returns a decoder-only batch of (inputs, targets), as SeqIO's PrefixLM converter makes it."""
    batch = batch_of([[*inputs, *targets] for inputs, targets in examples], length=length)
    sizes = np.array([len(inputs) for inputs, _ in examples])[:, None]
    weights = (np.arange(length) >= sizes) * np.asarray(batch["decoder_loss_weights"])
    causal = (np.arange(length) <= sizes).astype(np.int32)
    return {**batch, "decoder_loss_weights": jnp.asarray(weights), "decoder_causal_attention": jnp.asarray(causal)}


def _padded(examples, length):
    length = length or max(map(len, examples))
    return np.stack([np.pad(np.asarray(example, np.int32), (0, length - len(example))) for example in examples])


def assert_trees_close(actual, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)
