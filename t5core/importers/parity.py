"""The parity report: what became of each tensor, and how far the logits of a sample batch moved on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from t5core import trees
from t5core.config.base import StrictModel
from t5core.config.presets import Architecture
from t5core.importers import contents
from t5core.importers.contents import Contents, TensorMapping


class Comparison(StrictModel):
    """Two checkpoints of one model.

    `differing` names what is not the same to the bit, `optimizer_state` is 'equal', 'differs' or 'not stored', and
    `logits_difference` the largest absolute difference on the sample batch.
    """

    name: str
    tensors: int
    differing: list[str]
    optimizer_state: str
    logits_difference: float

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, in parameters, state or logits."""
        return not self.differing and self.optimizer_state != "differs" and self.logits_difference == 0.0


class Parity(StrictModel):
    """The report of a conversion. `missing` is empty in every conversion that was made: a gap ends it."""

    source: str
    destination: str
    step: int
    architecture: Architecture
    tensors: list[TensorMapping]
    unused: list[str]
    missing: list[str] = []
    left_out: list[str]
    notes: list[str]
    sample: str = "random tokens (seed 0): 2 rows of 16 inputs and 12 targets, one of them padded"
    comparisons: list[Comparison]

    @property
    def is_equal(self) -> bool:
        """Whether every comparison found the same bits."""
        return all(comparison.is_equal for comparison in self.comparisons)

    @property
    def largest_difference(self) -> float:
        """The largest difference of logits in any comparison."""
        return max(comparison.logits_difference for comparison in self.comparisons)


def compare(name: str, before: Contents, after: Contents) -> Comparison:
    """Returns how two states of one model differ; logits are computed with both."""
    differing = _differing(before.params, after.params)
    left, right = trees.flatten(before.opt_state), trees.flatten(after.opt_state)
    state = "equal" if not _differing(left, right) else "differs"
    if not left or not right:
        state = "not stored"
    return Comparison(
        name=name,
        tensors=len(before.params),
        differing=differing,
        optimizer_state=state,
        logits_difference=_largest_difference(
            contents.logits(before.architecture, before.params), contents.logits(after.architecture, after.params)
        ),
    )


def _largest_difference(left: np.ndarray, right: np.ndarray) -> float:
    """Returns 0 for the same logits, NaN among them or not, and infinity where only one side is a number."""
    if np.array_equal(left, right, equal_nan=True):
        return 0.0
    moved = np.abs(left - right)
    return float(np.max(moved)) if np.all(np.isfinite(moved)) else float("inf")


def _differing(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> list[str]:
    both = left.keys() & right.keys()
    changed = [path for path in both if not contents.same_bits(np.asarray(left[path]), np.asarray(right[path]))]
    return sorted([*changed, *(left.keys() ^ right.keys())])


def render(parity: Parity) -> str:
    """Returns the report as text for people."""
    lines = [f"{parity.source}", f"-> {parity.destination}", ""]
    lines += [f"step {parity.step}"]
    lines += [f"{name} {value}" for name, value in parity.architecture.model_dump().items()]
    lines += ["", f"compared on {parity.sample}"]
    for comparison in parity.comparisons:
        same = comparison.tensors - len(comparison.differing)
        lines += [
            f"  {comparison.name}: {same} of {comparison.tensors} tensors the same to the bit, optimiser's state "
            f"{comparison.optimizer_state}, largest difference of logits {comparison.logits_difference:.3g}"
        ]
        lines += [f"    differs: {path}" for path in comparison.differing]
    for title, entries in (
        ("unused", parity.unused),
        ("missing", parity.missing),
        ("left out", parity.left_out),
        ("notes", parity.notes),
    ):
        lines += ["", f"{title}: {'none' if not entries else ''}".rstrip(), *(f"  {entry}" for entry in entries)]
    lines += ["", "tensors"]
    width = max(len(tensor.source) for tensor in parity.tensors)
    for tensor in parity.tensors:
        how = "" if tensor.how == "as it is" else f"  ({tensor.how})"
        lines.append(f"  {tensor.source:<{width}}  {tensor.name}  {tensor.dtype}{tensor.shape}{how}")
    return "\n".join(lines) + "\n"
