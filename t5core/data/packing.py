"""Several examples in one row: first-fit over a bounded window of open rows, without changing what an example holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from t5core.data.converters import FeatureConverter, lengths_of, segment_ids
from t5core.data.manifest import Packing, SplitRecord

OPEN_ROWS = 64

Rows = dict[str, Int[np.ndarray, "rows length"]]
Example = Mapping[str, Int[np.ndarray, " length"]]


_NEVER = np.iinfo(np.int64).max
_EMPTY = -1  # room of a slot without a row: less than any example needs


class Packer:
    """Fills rows with examples in the order in which they come, holding at most `open_rows` unfinished rows.

    An example goes into the oldest open row that has room for it in every group. A row leaves when one of its groups is
    full, or when it is the oldest and a new one has to be opened. The result is a function of the examples and
    `open_rows` alone, and an example moves from its place by no more than the window holds.

    Attributes:
      converter: says which features share a row length (a group) and what they are called.
    """

    def __init__(self, converter: FeatureConverter, *, open_rows: int = OPEN_ROWS) -> None:
        self._converter = converter
        self._room = np.full((open_rows, len(converter.groups)), _EMPTY)
        self._opened = np.zeros(open_rows, np.int64)  # when the row of each slot was opened, counted in examples
        self._slots: list[list[Example]] = [[] for _ in range(open_rows)]
        self.examples = 0

    def add(self, stored: Mapping[str, Int[np.ndarray, "rows length"]]) -> Rows:
        """Takes unpacked rows of stored features, an example each, and returns the rows that are finished by now."""
        groups = self._converter.members
        lengths = np.stack([lengths_of(stored[tokens]) for tokens, *_ in groups.values()], axis=1)
        finished: list[list[Example]] = []
        for index, needs in enumerate(lengths):
            example = {
                name: stored[name][index, :length].copy()  # a view would keep the whole block alive
                for names, length in zip(groups.values(), needs, strict=True)
                for name in names
            }
            finished.extend(self._place(example, needs))
        return self._laid_out(finished)

    def finish(self) -> Rows:
        """Returns the rows that are still open."""
        slots = sorted((slot for slot, row in enumerate(self._slots) if row), key=lambda slot: self._opened[slot])
        return self._laid_out([self._take(slot) for slot in slots])

    def report(self, written: SplitRecord) -> Packing:
        """Returns how well the rows were filled, given what was written of them."""
        entries = {
            tokens: written.rows * self._converter.groups[g] for g, (tokens, *_) in self._converter.members.items()
        }
        return Packing(
            examples=self.examples,
            rows=written.rows,
            open_rows=len(self._slots),
            efficiency={name: written.tokens[name] / max(1, count) for name, count in entries.items()},
        )

    def _place(self, example: Example, needs: Int[np.ndarray, " groups"]) -> list[list[Example]]:
        """Puts one example into a row and returns the rows that this finishes."""
        finished = []
        fits = np.all(self._room >= needs, axis=1)
        slot = int(np.where(fits, self._opened, _NEVER).argmin())
        if not fits[slot]:
            empty = self._room[:, 0] == _EMPTY
            slot = int(empty.argmax()) if empty.any() else int(self._opened.argmin())
            if self._slots[slot]:
                finished.append(self._take(slot))
            self._room[slot] = list(self._converter.groups.values())
            self._opened[slot] = self.examples
        self._slots[slot].append(example)
        self._room[slot] -= needs
        self.examples += 1
        if self._room[slot].min() == 0:
            finished.append(self._take(slot))
        return finished

    def _take(self, slot: int) -> list[Example]:
        row, self._slots[slot] = self._slots[slot], []
        self._room[slot] = _EMPTY
        return row

    def _laid_out(self, rows: Sequence[Sequence[Example]]) -> Rows:
        """Returns the arrays of finished rows: examples side by side, segment ids counting from 1."""
        examples = [example for row in rows for example in row]
        row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        nothing = np.zeros(0, np.int32)
        segment_of = np.array([segment for row in rows for segment in range(1, len(row) + 1)], np.int32)
        result = {}
        for group, names in self._converter.members.items():
            shape = (len(rows), self._converter.groups[group])
            lengths = np.array([len(example[names[0]]) for example in examples], np.int64)
            at = (np.repeat(row_of, lengths), _columns(row_of, lengths))
            flat = {name: np.concatenate([nothing, *(example[name] for example in examples)]) for name in names}
            for name, values in {**flat, segment_ids(group): np.repeat(segment_of, lengths)}.items():
                result[name] = np.zeros(shape, np.int32)
                result[name][at] = values
        return result


def _columns(row_of: Int[np.ndarray, " examples"], lengths: Int[np.ndarray, " examples"]) -> Int[np.ndarray, " tokens"]:
    """Returns the column of each token when examples lie side by side in their rows."""
    ends = np.cumsum(lengths)
    before = ends - lengths
    first_of_row = np.searchsorted(row_of, row_of, side="left")
    starts = before - before[first_of_row] if len(lengths) else before
    return np.arange(lengths.sum()) - np.repeat(before - starts, lengths)
