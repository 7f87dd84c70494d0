"""Datasets as pandas frames, to be looked at in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t5core.data import inspection, spelling, unpacking, vocabulary_lookup

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(
    uri: str,
    *,
    task: str | None = None,
    split: str = "train",
    start: int = 0,
    stop: int | None = None,
    vocabulary: str | None = None,
) -> pd.DataFrame:
    """Returns one line for each example in rows [start, stop) of a dataset, or of what a run trains on.

    The columns are `row`, `segment` (its place in a packed row, from 1), `inputs` and `targets` as text with sentinels
    and `</s>`, and `inputs_ids` and `targets_ids`, lists of token ids without padding.

    Args:
      uri: of the dataset, or of a run directory.
      task: of a run: takes the dataset of this task, and not the mixture.
      split: of the dataset.
      start: the first row.
      stop: the row behind the last; None reads to the end.
      vocabulary: SentencePiece model to decode with; None finds it under the root of the dataset.

    Raises:
      DataError: no dataset and no run at `uri`, it lacks the split, or its vocabulary is not to be found.
      IntegrityError: it is damaged.
    """
    import pandas as pd

    uri = inspection.dataset_of(uri, task=task)
    spelt = vocabulary_lookup.vocabulary_of(uri, path=vocabulary)
    lines = [
        {
            "row": example.row,
            "segment": example.segment,
            "inputs": spelling.spell(example.inputs, spelt),
            "targets": spelling.spell(example.targets, spelt),
            "inputs_ids": example.inputs.tolist(),
            "targets_ids": example.targets.tolist(),
        }
        for example in unpacking.read_examples(uri, split=split, start=start, stop=stop)
    ]
    return pd.DataFrame(lines, columns=["row", "segment", "inputs", "targets", "inputs_ids", "targets_ids"])
