"""SeqIO mixtures in a configuration: each gives way to its tasks, with the rates that it has for them."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from t5core import errors
from t5core.config.data_schema import DataConfig, TaskConfig
from t5core.config.schema import PretrainConfig
from t5core.data import worker


def expanded(config: PretrainConfig) -> PretrainConfig:
    """Returns `config` with the tasks of every SeqIO mixture in its place; they keep its other settings.

    The rates of a mixture that has a rate itself are scaled to it. Without SeqIO tasks nothing is started.

    Raises:
      ConfigError: the module cannot be imported, a name is neither task nor mixture, a task would come twice, or a
        mixture without a rate stands beside other tasks.
    """
    names = [task.name for task in config.data.tasks if task.is_seqio]
    if not names:
        return config
    found = worker.call(
        "t5core.data.seqio_registered:rates_of_mixtures", names, config.data.module, config.data.seqio_cache_dirs
    )
    if not found:
        return config
    tasks = [part for task in config.data.tasks for part in _parts(task, found.get(task.name), config.data)]
    counts = collections.Counter(task.name for task in tasks)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise errors.ConfigError(f"data.tasks: task {twice!r} comes twice, as a part of a SeqIO mixture; name it once")
    data = config.data.model_copy(update={"tasks": tasks})
    return config.model_copy(update={"data": data})


def _parts(task: TaskConfig, rates: Mapping[str, float] | None, data: DataConfig) -> list[TaskConfig]:
    if rates is None:
        return [task]
    if task.rate is None and len(data.tasks) > 1:
        raise errors.ConfigError(
            f"data.tasks: the SeqIO mixture {task.name!r} has no rate beside other tasks; give each of them one"
        )
    scale = 1.0 if task.rate is None else task.rate / sum(rates.values())
    return [task.model_copy(update={"name": name, "rate": rate * scale}) for name, rate in rates.items()]
