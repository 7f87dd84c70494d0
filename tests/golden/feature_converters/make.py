"""Makes features.json: what SeqIO's own converters give for a few random examples. Run: python make.py."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import seqio
import tensorflow as tf

LENGTHS = {"inputs": 12, "targets": 8}
CONVERTERS = {
    "encoder_decoder": (seqio.EncDecFeatureConverter, ("inputs", "targets")),
    "prefix_lm": (seqio.PrefixLMFeatureConverter, ("inputs", "targets")),
    "lm": (seqio.LMFeatureConverter, ("targets",)),
}


def examples() -> list[dict[str, list[int]]]:
    """Returns pairs of examples; each pair fills a row exactly, so that any greedy packing finds it."""
    rng = np.random.default_rng(0)
    sizes = [{"inputs": 7, "targets": 3}, {"inputs": 5, "targets": 5}] * 3
    return [{name: rng.integers(2, 900, size).tolist() for name, size in example.items()} for example in sizes]


def converted(kind: str, *, pack: bool) -> dict[str, list[list[int]]]:
    """Returns the model features of all examples."""
    make, names = CONVERTERS[kind]
    rows = ({name: np.array(example[name], np.int32) for name in names} for example in examples())
    data = tf.data.Dataset.from_generator(
        lambda: rows, output_signature={name: tf.TensorSpec([None], tf.int32) for name in names}
    )
    found = list(make(pack=pack)(data, {name: LENGTHS[name] for name in names}).as_numpy_iterator())
    return {name: [row[name].tolist() for row in found] for name in sorted(found[0])}


if __name__ == "__main__":
    content = {
        "made_by": "seqio 0.0.20, tensorflow 2.21.0, make.py beside this file",
        "feature_lengths": LENGTHS,
        "examples": examples(),
        "features": {
            kind: {name: converted(kind, pack=name == "packed") for name in ("packed", "unpacked")}
            for kind in CONVERTERS
        },
    }
    pathlib.Path(__file__).with_name("features.json").write_text(json.dumps(content) + "\n")
