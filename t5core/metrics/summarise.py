"""From the metric sums of steps to the figures that T5X writes, under T5X's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Metrics that every teacher-forced evaluation gives; an action may name any of them.
EVALUATION_METRICS = (
    "loss",
    "accuracy",
    "loss_per_nonpadding_target_token",
    "loss_per_all_target_tokens",
    "cross_ent_loss",
    "cross_ent_loss_per_all_target_tokens",
    "z_loss",
    "z_loss_per_all_target_tokens",
)

# What such an evaluation gives for each feature of the batches, whose names follow.
BY_FEATURE = ("non_padding_fraction/", "effective_batch_size/")

Sums = Mapping[str, Any]


def added(parts: Sequence[Sums]) -> dict[str, float]:
    """Returns the sums over all parts (steps, batches), in double precision."""
    return {name: float(sum(float(part[name]) for part in parts)) for name in parts[0]}


def summarise(steps: Sequence[Sums]) -> dict[str, float]:
    """Returns loss, accuracy and padding figures of some steps.

    `loss` is what the optimiser minimised, averaged over steps; the per-token figures divide the summed token losses by
    the number of tokens with weight (`nonpadding`) or of all positions (`all`). Difference from T5X: a loss normalising
    factor does not enter the per-token figures, so they compare across settings.

    Args:
      steps: metric sums as `loss_fn` gives them, one entry for each step or batch.
    """
    total = added(steps)
    tokens, positions = max(total["nonpadding_tokens"], 1.0), max(total["target_tokens"], 1.0)
    figures = {
        "loss": total["objective"] / len(steps),
        "accuracy": total["correct"] / tokens,
        "loss_per_nonpadding_target_token": total["loss"] / tokens,
        "loss_per_all_target_tokens": total["loss"] / positions,
        "cross_ent_loss": total["cross_ent_loss"] / len(steps),
        "cross_ent_loss_per_all_target_tokens": total["cross_ent_loss"] / positions,
        "z_loss": total["z_loss"] / len(steps),
        "z_loss_per_all_target_tokens": total["z_loss"] / positions,
        "non_padding_fraction/loss_weights": total["nonpadding_tokens"] / positions,
    }
    return figures | _feature_figures(total, steps=len(steps))


def _feature_figures(total: Mapping[str, float], *, steps: int) -> dict[str, float]:
    features = [name.removeprefix("tokens/") for name in total if name.startswith("tokens/")]
    figures = {f"non_padding_fraction/{f}": total[f"non_padding_tokens/{f}"] / total[f"tokens/{f}"] for f in features}
    filled = sum(total[f"non_padding_tokens/{f}"] for f in features)
    figures["non_padding_fraction/overall"] = filled / max(sum(total[f"tokens/{f}"] for f in features), 1.0)
    batch_sizes = {f"effective_batch_size/{f}": total[f"effective_batch_size/{f}"] / steps for f in features}
    return figures | batch_sizes


def evaluation_figures(batches: Sequence[Sums]) -> dict[str, float]:
    """Returns the figures of an evaluation; `loss` is per target token, so it does not depend on how rows were batched.

    Difference from T5X, which averages the batches' losses and so weighs a short last batch like a full one.
    """
    figures = summarise(batches)
    return figures | {"loss": figures["loss_per_nonpadding_target_token"]}


def timing(steps: Sequence[Sums], *, seconds: float, num_devices: int) -> dict[str, float]:
    """Returns throughput over `seconds` of wall clock; a core is a JAX device."""
    total = added(steps)
    rate = 1.0 / max(seconds, 1e-9)
    sequences = max((value for name, value in total.items() if name.startswith("effective_batch_size/")), default=0.0)
    return {
        "timing/seconds": seconds,
        "timing/steps_per_second": len(steps) * rate,
        "timing/seconds_per_step": seconds / len(steps),
        "timing/seqs": sequences,
        "timing/seqs_per_second": sequences * rate,
        "timing/seqs_per_second_per_core": sequences * rate / num_devices,
        "timing/target_tokens_per_second": total["nonpadding_tokens"] * rate,
        "timing/target_tokens_per_second_per_core": total["nonpadding_tokens"] * rate / num_devices,
    }
