"""Which dimensions of a parameter Adafactor's second moment is factored over."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

import numpy as np

from t5core import errors
from t5core.axis_rules import Axes


class FactorDim(enum.Enum):
    """The part that a dimension plays: ROW and COLUMN are averaged over in turn, BATCH stacks separate parameters."""

    NONE = "none"
    BATCH = "batch"
    ROW = "row"
    COLUMN = "column"


FactorRules = Mapping[str, FactorDim]

# Source: t5x/adafactor.py@cc342d4 `standard_logical_factor_rules`.
STANDARD_FACTOR_RULES: FactorRules = {
    "vocab": FactorDim.COLUMN,
    "embed": FactorDim.ROW,
    "mlp": FactorDim.COLUMN,
    "heads": FactorDim.COLUMN,
    "kv": FactorDim.COLUMN,
    "joined_kv": FactorDim.COLUMN,
    "mlp_activations": FactorDim.COLUMN,
    "relpos_buckets": FactorDim.NONE,
    "abspos_buckets": FactorDim.NONE,
    "layers": FactorDim.BATCH,
    "stack": FactorDim.BATCH,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Factoring:
    """How one parameter is treated.

    Attributes:
      averaging: dimensions that root mean squares are taken over (all but the batched ones).
      rows, columns: dimensions of the factors; both empty when the second moment is kept whole.
    """

    averaging: tuple[int, ...]
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    @property
    def is_factored(self) -> bool:
        """Whether row and column statistics stand for the whole second moment."""
        return bool(self.rows)

    def row_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the row statistics: `shape` without the columns."""
        return tuple(size for dim, size in enumerate(shape) if dim not in self.columns)

    def column_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the column statistics: `shape` without the rows."""
        return tuple(size for dim, size in enumerate(shape) if dim not in self.rows)

    @property
    def rows_in_row_shape(self) -> tuple[int, ...]:
        """Where the row dimensions are once the columns are gone."""
        return tuple(row - sum(column < row for column in self.columns) for row in self.rows)


def factoring(
    path: str, shape: tuple[int, ...], axes: Axes | None, rules: FactorRules, *, min_dim_size_to_factor: int
) -> Factoring:
    """Returns how the parameter at `path` is factored.

    Parameters of rank 2 at most without batched dimensions go by size: they are factored over both dimensions when
    both have `min_dim_size_to_factor`, whatever the rules say. All others go by the rules of their logical axes.

    Args:
      path: names the parameter in errors.
      shape: of the parameter.
      axes: its logical axes, or None where they are not known.
      rules: the part that each logical axis plays.
      min_dim_size_to_factor: see above.

    Raises:
      ConfigError: rank above 2 without axes, an axis without a rule, or rows and columns mixed with neither.

    Source: t5x/adafactor.py@cc342d4 `_parse_rule`, `_factored_dims`, `set_param_axes`.
    """
    everything = tuple(range(len(shape)))
    parts = None if axes is None else _parts(path, axes, rules)
    batched = parts is not None and FactorDim.BATCH in parts
    if len(shape) <= 2 and not batched:
        if len(shape) < 2 or min(shape) < min_dim_size_to_factor:
            return Factoring(averaging=everything)
        smaller, larger = np.argsort(shape, kind="stable").tolist()
        return Factoring(averaging=everything, rows=(smaller,), columns=(larger,))
    if parts is None:
        raise errors.ConfigError(
            f"parameter {path} of shape {shape} has no logical axes, which Adafactor needs above rank 2; "
            f"give param_axes, or set factored to false"
        )
    if len(parts) != len(shape):
        raise errors.ConfigError(f"parameter {path} of shape {shape} has {len(parts)} axis names; give {len(shape)}")
    averaging = tuple(dim for dim in everything if parts[dim] is not FactorDim.BATCH)
    rows = tuple(dim for dim in everything if parts[dim] is FactorDim.ROW)
    columns = tuple(dim for dim in everything if parts[dim] is FactorDim.COLUMN)
    if not rows or not columns:
        return Factoring(averaging=averaging)
    if FactorDim.NONE in parts:
        raise errors.ConfigError(
            f"parameter {path}: axes {axes} mix rows and columns with an axis that is neither; "
            f"make that axis a row, a column or a batch"
        )
    return Factoring(averaging=averaging, rows=rows, columns=columns)


def _parts(path: str, axes: Axes, rules: FactorRules) -> tuple[FactorDim, ...]:
    for name in axes:
        if name is not None and name not in rules:
            raise errors.ConfigError(f"parameter {path}: {errors.unknown_name('axis for a factor rule', name, rules)}")
    return tuple(FactorDim.NONE if name is None else rules[name] for name in axes)
