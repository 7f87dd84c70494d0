"""The examples of a SeqIO task for inference, in the order of the task; runs in the worker."""

from __future__ import annotations

import itertools
from typing import Any

import seqio

from t5core import errors, storage
from t5core.config.edges import VocabularyRef
from t5core.data import seqio_registered, worker
from t5core.data.seqio_materialise import plain_value

# What is random in a task is drawn alike in every job.
_SEED = 0
# The name of the task, the module that registers it, the split, and the lengths of its features.
TaskSplit = tuple[str, str, str, dict[str, int]]


def describe(split: TaskSplit, vocabulary: VocabularyRef) -> dict[str, Any]:
    """Returns the number of `rows` and what names their `content`.

    Raises:
      ConfigError: there is no such task or split, or it has another vocabulary.
    """
    name, module, _, lengths = split
    task = _task(split)
    seqio_registered.check_vocabulary(task, vocabulary)
    rows = 0
    for _ in _examples(task, split).as_numpy_iterator():
        rows += 1
        worker.report(1)
    content = {**seqio_registered.describe_task(name, module), "lengths": lengths, "split": split[2]}
    return {"rows": rows, "content": storage.fingerprint(content)}


def read(split: TaskSplit, start: int, stop: int) -> list[dict[str, Any]]:
    """Returns the examples [start, stop) of a split: their `tokens` by feature, and all other `fields`."""
    task = _task(split)
    features = set(task.output_features)
    examples = _examples(task, split).skip(start).take(stop - start)
    return [
        {
            "tokens": {side: example[side].tolist() for side in features if side in example},
            "fields": {name: plain_value(value) for name, value in example.items() if name not in features},
        }
        for example in itertools.islice(examples.as_numpy_iterator(), stop - start)
    ]


def _task(split: TaskSplit) -> seqio.Task:
    name, module, wanted, lengths = split
    task = seqio_registered.registered_task(name, module=module)
    if wanted not in task.splits:
        raise errors.ConfigError(f"source.split: {errors.unknown_name(f'split of {name}', wanted, task.splits)}")
    for side in task.output_features:
        if side not in lengths:
            raise errors.ConfigError(
                f"task {name!r} has the feature {side!r}, but feature_lengths has none of that name; it has "
                f"{', '.join(sorted(lengths))}"
            )
    return task


def _examples(task: seqio.Task, split: TaskSplit) -> Any:
    return task.get_dataset(
        sequence_length=split[3],
        split=split[2],
        shuffle=False,
        seed=_SEED,
        num_epochs=1,
        trim_output_features=False,  # what is too long is cut, or refused, where it can be told
        try_in_mem_cache=False,
    )
