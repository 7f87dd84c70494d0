"""What the stages of a run will find there already, known by content; nothing is made."""

from __future__ import annotations

import dataclasses

from t5core.checkpoints import index
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import DatasetRef, ResolvedRun, VocabularyRef
from t5core.data import manifest, materialise, mixture, vocabulary_training
from t5core.preflight import sample
from t5core.preflight.record import Reuse
from t5core.rundir import RunDirectory

# Text beyond this is not read only to see whether it is the same as before.
MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What is there: None for what is not; `tasks` by name; `step` is the one at which the run stands."""

    vocabulary: VocabularyRef | None
    tasks: dict[str, DatasetRef]
    mixture: DatasetRef | None
    step: int | None
    told: list[Reuse]


def look(run: ResolvedRun, *, asks_seqio: bool) -> Found:
    """Returns what is there of `run`.

    Args:
      run: the run.
      asks_seqio: whether SeqIO tasks are looked up in the worker, which imports TensorFlow for it.

    Raises:
      ConfigError, DataError: the vocabulary, the text or a task cannot be used.
      IntegrityError: what is there is damaged.
    """
    told: list[Reuse] = []
    vocabulary = _vocabulary(run, told)
    tasks = _tasks(run, vocabulary, told, asks_seqio=asks_seqio) if vocabulary is not None else {}
    mixed = None
    if vocabulary is not None and len(tasks) == len(run.config.data.tasks):
        parts = mixture.mixture_parts(run, vocabulary=vocabulary, tasks=list(tasks.values()))
        _, mixed, reason = manifest.reuse_or_reason(run.config.run.root, mixture.mixture_name(run), parts)
        told.append(Reuse(what="mixture", found=mixed is not None, reason=reason))
    step = index.latest(RunDirectory(run.uri).checkpoints_uri)
    if step is not None:
        told.append(Reuse(what="training", found=True, reason=f"the run stands at step {step:,}"))
    return Found(vocabulary=vocabulary, tasks=tasks, mixture=mixed, step=step, told=told)


def _vocabulary(run: ResolvedRun, told: list[Reuse]) -> VocabularyRef | None:
    config = run.config.data.vocabulary
    if config.kind == "sentencepiece" and config.path is None and (size := _text_bytes(run)) > MOST_BYTES:
        reason = f"not looked for: {size / 1e9:,.1f} GB of text would have to be read first"
        told.append(Reuse(what="vocabulary", found=False, reason=reason))
        return None
    found = vocabulary_training.find_vocabulary(run)
    if isinstance(found, str):
        told.append(Reuse(what="vocabulary", found=False, reason=found))
        return None
    told.append(Reuse(what="vocabulary", found=True, reason=found.reason))
    return found.reference


def _tasks(
    run: ResolvedRun, vocabulary: VocabularyRef, told: list[Reuse], *, asks_seqio: bool
) -> dict[str, DatasetRef]:
    found = {}
    for task in run.config.data.tasks:
        reason = _not_looked_for(task, asks_seqio=asks_seqio)
        reference = None
        if reason is None:
            parts = materialise.task_parts(run, task, vocabulary)
            _, reference, reason = manifest.reuse_or_reason(run.config.run.root, task.name, parts)
        if reference is not None:
            found[task.name] = reference
        told.append(Reuse(what=f"task {task.name}", found=reference is not None, reason=reason))
    return found


def _not_looked_for(task: TaskConfig, *, asks_seqio: bool) -> str | None:
    if task.is_seqio:
        return None if asks_seqio else "not looked for: SeqIO describes the task, and is not started for that"
    if task.cache is not None:
        return None
    size = sample.text_bytes(task)
    return f"not looked for: {size / 1e9:,.1f} GB of text would have to be read first" if size > MOST_BYTES else None


def _text_bytes(run: ResolvedRun) -> int:
    return sum(sample.text_bytes(task) for task in run.config.data.tasks if task.has_documents)
