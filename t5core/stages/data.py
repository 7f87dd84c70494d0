"""The stages between a resolved run and something to train on; each records what became of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from t5core import progress, storage
from t5core.actions import configured
from t5core.config.edges import (
    DatasetRef,
    ResolvedRun,
    RunInputs,
    ShareRequest,
    Survey,
    TaskRequest,
    TokenisedShare,
    VocabularyRef,
)
from t5core.rundir import RunDirectory, StageRecord
from t5core.stages import failure, preflight

Record = Callable[..., None]


@contextlib.contextmanager
def _recorded(run: ResolvedRun, stage: str, name: str = "") -> Iterator[Record]:
    """Yields a function that says and records the outcome of a stage, with its seconds; `before` were spent on it."""
    began = time.monotonic()

    def record(*, reused: bool, reason: str, fingerprint: str, uri: str, before: float = 0.0) -> None:
        seconds = before + time.monotonic() - began
        label = f"{stage} {name}".strip()
        progress.say(f"{label}: {'reused' if reused else 'done'} in {seconds:.1f} s ({reason})")
        RunDirectory(run.uri).write_stage(
            StageRecord(
                stage=stage,
                name=name,
                reused=reused,
                reason=reason,
                seconds=seconds,
                fingerprint=fingerprint,
                uri=uri,
            )
        )

    with failure.recorded(run.uri, where=f"{stage} {name}".strip()):
        yield record


def build_vocabulary(run: ResolvedRun) -> VocabularyRef:
    """Returns the run's vocabulary, trained unless it is there already."""
    from t5core.data import vocabulary_training, worker

    root, needs_seqio = run.config.run.root, any(not task.has_documents for task in run.config.data.tasks)
    if needs_seqio and not storage.is_remote(root) and not storage.path(f"{root}/datasets").exists():
        worker.start()  # this process will tokenise next: TensorFlow's import runs beside what comes first
    with _recorded(run, "vocabulary") as record:
        vocabulary, reused, reason = vocabulary_training.build_vocabulary(run)
        record(reused=reused, reason=reason, fingerprint=vocabulary.fingerprint, uri=vocabulary.uri)
    return vocabulary


def survey(request: TaskRequest) -> Survey:
    """Returns whether the dataset of a task is there, and in how many shares it is to be tokenised otherwise."""
    from t5core.data import materialise

    with failure.recorded(request.run.uri, where=f"survey {request.task}"):
        return materialise.survey_task(request)


def share_out(surveys: Sequence[Survey]) -> list[ShareRequest]:
    """Returns the order to tokenise each share; there is always one, as a cluster cannot map over nothing.

    Where all datasets are there, that one has nothing to do.
    """
    wanted = [ShareRequest(survey=each, index=index) for each in surveys for index in range(each.shares)]
    return wanted or [ShareRequest(survey=surveys[0], index=0)]


def tokenise(request: ShareRequest) -> TokenisedShare:
    """Returns what became of one share of a task, tokenised as far as it is not there already."""
    from t5core.data import materialise

    ordered = request.survey.request
    with failure.recorded(ordered.run.uri, where=f"tokenise {ordered.task}"):
        return materialise.tokenise_share(request)


def materialise(survey: Survey) -> DatasetRef:
    """Returns the dataset of one task, put together from its shares unless it is there already."""
    from t5core.data import manifest, materialise
    from t5core.data.tokenising import Tokenising

    task = survey.request.task
    with _recorded(survey.request.run, "materialise", task) as record:
        before = survey.seconds + Tokenising(survey).seconds()
        dataset = materialise.materialise_survey(survey)
        described = manifest.load(dataset.uri)
        for split, content in described.splits.items() if described is not None else ():
            for remark in content.remarks:
                progress.say(f"  {task} {split}: {remark}")
        record(
            reused=dataset.reused,
            reason=dataset.reason,
            fingerprint=dataset.fingerprint,
            uri=dataset.uri,
            before=before,
        )
    return dataset


def assemble_mixture(run: ResolvedRun, vocabulary: VocabularyRef, tasks: Sequence[DatasetRef]) -> DatasetRef:
    """Returns the rows that the run trains on, in their order, made unless they are there already."""
    from t5core.data import mixture

    with _recorded(run, "assemble") as record:
        dataset = mixture.assemble_mixture(run, vocabulary=vocabulary, tasks=tasks)
        record(reused=dataset.reused, reason=dataset.reason, fingerprint=dataset.fingerprint, uri=dataset.uri)
    return dataset


def verify_vocabulary(
    run: ResolvedRun, vocabulary: VocabularyRef, tasks: Sequence[DatasetRef], mixture: DatasetRef
) -> RunInputs:
    """Returns the run with its inputs once vocabulary, data and model are known to belong together.

    Raises:
      DataError, ConfigError: they do not.
    """
    from t5core.data import manifest, vocabulary_verification, worker

    with _recorded(run, "verify") as record:
        report = vocabulary_verification.verify_vocabulary(run, vocabulary, tasks)
        splits = {task.name: manifest.load(task.uri) for task in tasks}
        configured.check_evaluated(run.config, {name: found.splits if found else () for name, found in splits.items()})
        if run.config.run.init_from is not None:
            from t5core.starting import init_from

            init_from.check_vocabulary(run.config, run.uri, vocabulary)
        worst = max(report.unknown_rates.values(), default=0.0)
        reason = (
            f"{report.pieces} pieces + {report.extra_ids} sentinels fit {report.embedding_rows} embedding rows; "
            f"{worst:.2%} of tokens unknown at most"
        )
        record(reused=False, reason=reason, fingerprint=vocabulary.fingerprint, uri=vocabulary.uri)
    worker.stop()  # its gigabyte of memory is the trainer's now
    inputs = RunInputs(run=run, vocabulary=vocabulary, tasks=list(tasks), mixture=mixture)
    preflight.look_again(inputs)
    return inputs
