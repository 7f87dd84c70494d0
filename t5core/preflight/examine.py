"""The preflight of a run: everything that can be known of it without training."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from t5core import errors
from t5core.config.edges import ResolvedRun
from t5core.data import mixture, vocabulary_training
from t5core.data.vocabulary import SentencePieceVocabulary, load_vocabulary
from t5core.optim.schedule import learning_rate_warnings
from t5core.preflight import data, model, reuse, rules, sample, space
from t5core.preflight.data import AnyVocabulary
from t5core.preflight.record import CheckpointFigures, DataFigures, Devices, ModelFigures, Preflight, Probe
from t5core.preflight.sample import Sample
from t5core.rundir import RunDirectory

# A vocabulary trained on so much takes a second, and needs 2 % more tokens or so than the one it stands for.
_TRAINED_CHARACTERS = 600_000


@dataclasses.dataclass
class _Refusals:
    """What cannot work, each in one line."""

    lines: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Takes a user's mistake down and goes on behind the block, to find the others as well."""
        try:
            yield
        except errors.UserError as error:
            self.add(str(error))

    def add(self, line: str | None) -> None:
        if line is not None and line not in self.lines:
            self.lines.append(line)


def examine(run: ResolvedRun, *, devices: Devices, takes_steps: bool = False) -> Preflight:
    """Returns the preflight of `run`: figures as far as they can be had, and every reason why it cannot work.

    Args:
      run: the run; `stages.resolve.settle` has checked its settings one by one.
      devices: that train.
      takes_steps: trains a few steps on this machine's devices, and asks SeqIO about its tasks.

    Raises:
      IntegrityError: something that is there already is damaged.
    """
    config, refusals = run.config, _Refusals()
    modelled, found, measured, taken = None, None, None, None
    with refusals.collecting():
        rules.check_devices(config, devices)
        modelled = model.model_figures(config, rows=config.train.batch_size // devices.count)
    with refusals.collecting():
        rules.check_module(config)
        found = reuse.look(run, asks_seqio=takes_steps)
    if found is not None and found.mixture is not None:
        measured = data.counted(list(found.tasks.values()), found.mixture)
    expected = None
    if found is not None and measured is None:
        with refusals.collecting():
            expected = _expected(run, found)
    with refusals.collecting():
        rules.check_rows(config, measured or expected)
    checkpoints = space.checkpoint_figures(RunDirectory(run.uri).checkpoints_uri, config.train, config.publish)
    if modelled is not None:
        refusals.add(_no_room(run, checkpoints, modelled))
        with refusals.collecting():
            rules.check_memory(modelled, devices, step_bytes=None)
    first_step = found.step if found is not None and found.step is not None else run.first_step
    if takes_steps and not refusals.lines and first_step < config.train.total_steps:
        taken = _probe(run)
    reserved = taken.step_bytes if taken is not None else None
    if modelled is not None and reserved is not None:
        with refusals.collecting():
            rules.check_memory(modelled, devices, step_bytes=reserved)
    return Preflight(
        devices=devices,
        total_steps=config.train.total_steps,
        batch_size=config.train.batch_size,
        first_step=first_step,
        model=modelled,
        checkpoints=checkpoints,
        estimated=expected,
        exact=measured,
        reuse=found.told if found is not None else [],
        probe=taken,
        warnings=[
            *_warnings(run, modelled, devices, step_bytes=reserved),
            *rules.repetition_warnings(config, measured or expected, first_step=run.first_step),
        ],
        refusals=refusals.lines,
    )


def _no_room(run: ResolvedRun, checkpoints: CheckpointFigures, modelled: ModelFigures) -> str | None:
    uri = RunDirectory(run.uri).checkpoints_uri
    return space.refusal(checkpoints, checkpoint_bytes=modelled.checkpoint_bytes, uri=uri)


def _probe(run: ResolvedRun) -> Probe:
    from t5core.preflight import probe

    return probe.probe(run)


def _warnings(
    run: ResolvedRun, modelled: ModelFigures | None, devices: Devices, *, step_bytes: int | None
) -> Iterator[str]:
    train = run.config.train
    yield from learning_rate_warnings(train.learning_rate, train.total_steps)
    yield from rules.setting_warnings(run.config, sentinels=run.config.data.vocabulary.extra_ids)
    if modelled is not None:
        yield from rules.memory_warnings(modelled, devices, step_bytes=step_bytes)


def _expected(run: ResolvedRun, found: reuse.Found) -> DataFigures | None:
    """Returns what the text lets expect; None when SeqIO brings a part of it."""
    samples = {task.name: sample.sample(task) for task in run.config.data.tasks if task.has_documents}
    tasks = mixture.active_tasks(run)
    if any(task.name not in samples for task in tasks):
        return None
    used = {task.name: samples[task.name] for task in tasks}
    vocabulary, basis = _vocabulary(run, found, samples)
    return data.estimated(run, used, vocabulary, basis=basis)


def _vocabulary(run: ResolvedRun, found: reuse.Found, samples: dict[str, Sample]) -> tuple[AnyVocabulary, str]:
    """Returns the run's vocabulary, or one like it that is trained on a part of the samples; and which, in words."""
    config = run.config.data.vocabulary
    if found.vocabulary is not None:
        return load_vocabulary(found.vocabulary), "tokenised"
    if config.path is not None:
        return vocabulary_training.loaded_from(run, config.path), "tokenised"
    return _like(run, samples), "tokenised by a vocabulary trained on a sample"


def _like(run: ResolvedRun, samples: dict[str, Sample]) -> SentencePieceVocabulary:
    """Returns a vocabulary trained on a part of the samples, or on all of the text where it may not give the size.

    Raises:
      ConfigError: all of the text was read and does not give the size that is wanted.
    """
    config, tasks = run.config.data.vocabulary, run.config.data.tasks
    texts = [text for taken in samples.values() for document in taken.documents for text in document.values()]
    stride = 1 + sum(map(len, texts)) // _TRAINED_CHARACTERS
    sentences = [sentence for text in texts[::stride] for sentence in vocabulary_training.cut(text)]
    trained = vocabulary_training.train_sample(sentences, config)
    found = SentencePieceVocabulary(trained, extra_ids=config.extra_ids)
    if found.pieces != config.size and all(sample.is_whole for sample in samples.values()):
        trained = vocabulary_training.trained_on(tasks, config)
        found = SentencePieceVocabulary(trained, extra_ids=config.extra_ids)
    return found
