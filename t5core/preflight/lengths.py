"""How many tokens the examples of a task will have, from the tokens of its documents: arithmetic, no TensorFlow.

It follows `t5core.data.seqio_tasks`, objective by objective; tests compare the two.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

import numpy as np

from t5core.config.data_schema import TaskConfig
from t5core.data import noise as text_noise
from t5core.data import templates
from t5core.data.noise import SpanCorruption

Lengths = Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleLengths:
    """The tokens of each example, with EOS and cut to fit, by feature; and how many were cut, by feature."""

    tokens: dict[str, np.ndarray]
    truncated: dict[str, int]

    def __len__(self) -> int:
        return len(self.tokens["targets"])


def texts_of(task: TaskConfig, document: Mapping[str, str]) -> dict[str, str]:
    """Returns the texts that are tokenised for a document, by feature."""
    if task.objective != "supervised":
        return {"targets": document[task.text]}
    return {
        side: "".join(
            literal + (document[column] if column is not None else "")
            for literal, column in templates.parse(template, setting=side)
        )
        for side, template in (("inputs", task.inputs), ("targets", task.targets))
    }


def example_lengths(
    task: TaskConfig, counts: Sequence[Mapping[str, int]], *, lengths: Lengths, sentinels: int
) -> ExampleLengths:
    """Returns the lengths of the examples that documents with `counts` tokens (no EOS) give.

    Args:
      task: its objective and noise count.
      counts: tokens of the texts of each document, by feature.
      lengths: tokens of a row, by feature.
      sentinels: how many the vocabulary has.

    Raises:
      ConfigError: corrupted text does not fit the lengths.
    """
    if task.objective == "supervised":
        return _supervised(counts, lengths)
    sizes = [count["targets"] for count in counts]
    if task.objective == "span_corruption":
        noise = noise_of(task, sentinels=sentinels)
        most = noise.chunk_length(inputs_length=lengths["inputs"], targets_length=lengths["targets"], task=task.name)
        pairs = [noise.lengths(size) for size in _chunks(sizes, most)]
    elif task.objective == "ul2":
        pairs = _denoised(task, sizes, lengths, sentinels=sentinels)
    elif task.objective == "prefix_lm":
        room = {side: length - 1 for side, length in lengths.items()}
        pairs = _cut_in_two(_chunks(sizes, room["inputs"] + room["targets"]), room)
    else:
        pairs = [(0, size) for size in _chunks([size + 1 for size in sizes], lengths["targets"])]
    tokens = np.array(pairs, np.int64).reshape(-1, 2)
    inputs = {} if task.objective == "lm" else {"inputs": tokens[:, 0]}
    return ExampleLengths(tokens={**inputs, "targets": tokens[:, 1]}, truncated={})


def noise_of(task: TaskConfig, *, sentinels: int) -> SpanCorruption:
    """Returns the noise of a task that corrupts spans."""
    return SpanCorruption(
        noise_density=task.noise_density, mean_span_length=task.mean_noise_span_length, sentinels=sentinels
    )


def _denoised(task: TaskConfig, sizes: Sequence[int], room: Lengths, *, sentinels: int) -> list[tuple[int, int]]:
    """Draws denoisers by their rates, the same on every call; a mode token counts as a token for each character."""
    denoisers, draw = task.ul2_denoisers, random.Random(0)
    noises = [text_noise.noise_of(denoiser, sentinels=sentinels, task=task.name) for denoiser in denoisers]
    modes = [len(denoiser.mode_token) for denoiser in denoisers]
    most = [
        max(1, text_noise.fitting_length(kind, inputs_length=room["inputs"] - mode, targets_length=room["targets"]))
        for kind, mode in zip(noises, modes, strict=True)
    ]
    pairs = []
    for size in sizes:
        left = size
        while left > 0:
            (chosen,) = draw.choices(range(len(denoisers)), [denoiser.rate for denoiser in denoisers])
            inputs, targets = noises[chosen].lengths(min(left, most[chosen]))
            pairs.append((inputs + modes[chosen], targets))
            left -= most[chosen]
    return pairs


def _supervised(counts: Sequence[Mapping[str, int]], lengths: Lengths) -> ExampleLengths:
    full = {side: np.array([count[side] + 1 for count in counts], np.int64) for side in ("inputs", "targets")}
    return ExampleLengths(
        tokens={side: np.minimum(sizes, lengths[side]) for side, sizes in full.items()},
        truncated={side: int(np.count_nonzero(sizes > lengths[side])) for side, sizes in full.items()},
    )


def _chunks(sizes: Sequence[int], most: int) -> list[int]:
    return [min(most, size - begin) for size in sizes for begin in range(0, size, most)]


def _cut_in_two(sizes: Sequence[int], room: Lengths) -> list[tuple[int, int]]:
    """Cuts where `prefix_lm` may, uniformly; the same on every call. Each part has an EOS."""
    random, pairs = np.random.default_rng(0), []
    for size in sizes:
        lowest = max(min(1, size - 1), size - room["targets"])
        cut = int(random.integers(lowest, max(lowest, min(size - 1, room["inputs"])) + 1))
        pairs.append((cut + 1, size - cut + 1))
    return pairs
