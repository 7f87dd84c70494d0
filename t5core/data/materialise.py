"""Stage one of the data: one task becomes a dataset of tokenised examples, made once and found again by content.

TensorFlow-free: what needs SeqIO runs in the worker, which is not even started for a dataset that is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5core import errors, fingerprints, progress, storage
from t5core.config.data_schema import DataConfig, TaskConfig
from t5core.config.edges import DatasetRef, ResolvedRun, TaskRequest, VocabularyRef
from t5core.config.schema import PretrainConfig
from t5core.data import filters, gathering, manifest, pool, seqio_cache, worker
from t5core.data.manifest import Manifest
from t5core.data.noise import SpanCorruption
from t5core.data.objectives import NOISY
from t5core.data.pool import Caller
from t5core.data.shards import Plan, ShardFolder
from t5core.data.sources import TRAIN, VALIDATION, Scan, TaskSource, columns_of
from t5core.data.work import Work, task_named
from t5core.evaluation import metric_functions

_DECIDING_MODULES = (
    "t5core.data.chunks",
    "t5core.data.corpus",
    "t5core.data.documents",
    "t5core.data.examples",
    "t5core.data.files",
    "t5core.data.filters",
    "t5core.data.gathering",
    "t5core.data.noise",
    "t5core.data.objectives",
    "t5core.data.philox",
    "t5core.data.pieces",
    "t5core.data.ragged",
    "t5core.data.shards",
    "t5core.data.sources",
    "t5core.data.spans",
    "t5core.data.store",
    "t5core.data.templates",
    "t5core.data.text_shards",
    "t5core.data.utf8",
    "t5core.data.vocabulary",
    "t5core.data.work",
    "t5core.data.zarr",
)
_DECIDING_LIBRARIES = ("numpy", "sentencepiece")
_DECIDING_MODULES_OF_SEQIO = (
    "t5core.data.examples",
    "t5core.data.gathering",
    "t5core.data.ragged",
    "t5core.data.seqio_materialise",
    "t5core.data.shards",
    "t5core.data.store",
    "t5core.data.work",
    "t5core.data.zarr",
)
_DECIDING_MODULES_OF_CACHES = (
    *_DECIDING_MODULES_OF_SEQIO,
    "t5core.data.chunks",
    "t5core.data.filters",
    "t5core.data.noise",
    "t5core.data.preprocessors",
    "t5core.data.seqio_cached",
    "t5core.data.seqio_counts",
    "t5core.data.seqio_spans",
    "t5core.data.seqio_tasks",
    "t5core.data.vocabulary",
)
_DECIDING_LIBRARIES_OF_SEQIO = ("seqio", "sentencepiece", "tensorflow", "tensorflow-text")
# Bytes that a process needs, about: one of ours, and one with TensorFlow in it.
_MEMORY, _MEMORY_WITH_SEQIO = 300 << 20, 2 << 30
# A process takes a second to start, and this many parts take longer.
_PARTS_FOR_A_PROCESS = 4


def materialise_task(request: TaskRequest) -> DatasetRef:
    """Returns the dataset of one task: the one that is there already, or a new one.

    A new one is made shard by shard, by `data.workers` processes; what an earlier attempt finished is kept.

    Raises:
      ConfigError: the task cannot work as configured.
      DataError: its text cannot be used, or gives no examples.
    """
    run, task = request.run, task_named(request.run.config.data, request.task)
    check_task(run.config, task)
    inputs = task_parts(run, task, request.vocabulary)

    def make(uri: str) -> Manifest:
        work = Work(request=request, scan=_scanned(run.config.data, task) if task.has_documents else None)
        folder = ShardFolder(uri)
        try:
            made = _made(work, folder, uri=uri, inputs=inputs)
        except errors.RecoverableError:
            raise  # what is finished serves the next attempt
        except Exception:
            folder.remove()
            raise
        folder.remove()
        return made

    return manifest.reuse_or_make(run.config.run.root, task.name, inputs, make)


def _made(work: Work, folder: ShardFolder, *, uri: str, inputs: Mapping[str, str]) -> Manifest:
    """Returns the manifest of the new dataset, committed at `uri`."""
    maker = "t5core.data.text_shards" if work.task.has_documents else "t5core.data.seqio_materialise"
    here = pool.Here() if work.task.has_documents else worker.start()
    plan: Plan = here.call(f"{maker}:plan", work)
    there = folder.names()
    missing = [part for part in plan.parts if not there.issuperset(part.files)]
    if len(missing) < len(plan.parts):
        kept = len(plan.parts) - len(missing)
        progress.say(
            f"  tokenise {work.task.name}: {kept} of {len(plan.parts)} parts are there from an earlier attempt"
        )
    with (
        progress.stage(f"tokenise {work.task.name}", total=None, unit="examples") as bar,
        _callers(work, here, most=len(missing)) as callers,
    ):
        calls = [(work, part, folder.uri) for part in missing]
        for _ in pool.results(f"{maker}:make", calls, callers=callers, on_progress=bar.advance):
            pass

    def examples_in_source() -> int:
        return work.scan.documents[TRAIN] if work.scan is not None else here.call(f"{maker}:examples_in_source", work)

    return gathering.gather(
        work, plan, folder=folder.uri, uri=uri, inputs=inputs, examples_in_source=examples_in_source
    )


@contextlib.contextmanager
def _callers(work: Work, here: Caller, *, most: int) -> Iterator[Sequence[Caller]]:
    """Gives who makes the parts: `here` where one is enough, processes otherwise, which end with the block."""
    memory = _MEMORY if work.task.has_documents else _MEMORY_WITH_SEQIO
    sensible = min(most // _PARTS_FOR_A_PROCESS, pool.sensible_processes(memory_each=memory))
    count = min(most, work.data.workers or sensible)
    if count <= 1:
        yield [here]
        return
    with contextlib.ExitStack() as started:
        processes = []
        for _ in range(count if work.task.has_documents else count - 1):
            processes.append(worker.Worker(preload="t5core.data.text_shards" if work.task.has_documents else "seqio"))
            started.callback(processes[-1].close)
        yield processes if work.task.has_documents else [here, *processes]


def check_task(config: PretrainConfig, task: TaskConfig) -> None:
    """Checks what can be known of a task before anything is read.

    Raises:
      ConfigError: a metric is unknown, a template malformed, a length too short, or there can be no validation split.
    """
    for metric in task.metrics:
        metric_functions.metric_function(metric)
    if task.is_seqio:
        return
    inputs, targets = columns_of(task)
    _check_lengths(config, task)
    if task.cache is not None:
        return
    filters.document_filters(task, columns=[*inputs, *targets])
    if not (task.validation_fraction or task.validation_files or config.data.allow_missing_split):
        raise errors.ConfigError(
            f"task {task.name!r} has no validation split: validation_fraction=0 and no validation_files; "
            "give one of them, or set data.allow_missing_split=true"
        )


def _check_lengths(config: PretrainConfig, task: TaskConfig) -> None:
    lengths, family = config.data.feature_lengths, config.model.architecture().family
    if task.objective == "lm":
        if family == "encoder_decoder":
            raise errors.ConfigError(
                f"task {task.name!r} has objective 'lm', which gives an encoder no inputs; use 'prefix_lm' or a "
                "decoder_only model"
            )
        return
    if "inputs" not in lengths:
        raise errors.ConfigError(
            f"task {task.name!r} has objective {task.objective!r}, but data.feature_lengths has no 'inputs'; add it"
        )
    for side, length in lengths.items():
        if length < 2:
            raise errors.ConfigError(
                f"data.feature_lengths.{side}={length} holds no token beside EOS; make it 2 or more"
            )
    vocabulary = config.data.vocabulary
    brings_sentinels = vocabulary.path is not None and not vocabulary.extra_ids  # how many, its file must tell
    if task.objective == "span_corruption" and not brings_sentinels:
        noise = SpanCorruption(
            noise_density=task.noise_density,
            mean_span_length=task.mean_noise_span_length,
            sentinels=vocabulary.extra_ids,
        )
        noise.chunk_length(inputs_length=lengths["inputs"], targets_length=lengths["targets"], task=task.name)


def _scanned(data: DataConfig, task: TaskConfig) -> Scan:
    scan = TaskSource(task).scan
    if not scan.documents[VALIDATION] and not data.allow_missing_split:
        if task.validation_files:
            what = f"its validation_files give no documents{_spelt(scan.dropped[VALIDATION])}; mend them"
        else:
            what = f"none of its {scan.documents[TRAIN]} documents is held out for validation; name validation_files"
        raise errors.DataError(f"task {task.name!r}: {what}, or set data.allow_missing_split=true")
    return scan


def _spelt(dropped: Mapping[str, int]) -> str:
    return "".join(f", {count} dropped: {reason}" for reason, count in dropped.items())


def task_parts(run: ResolvedRun, task: TaskConfig, vocabulary: VocabularyRef) -> dict[str, str]:
    """Returns everything that decides the bytes of the dataset, by what it is; a miss names the parts that differ."""
    settings = run.config.data
    parts = {
        "vocabulary": vocabulary.fingerprint,
        "feature_lengths": ",".join(f"{side}={length}" for side, length in sorted(settings.feature_lengths.items())),
        "passes": str(settings.passes),
        "validation": storage.fingerprint(
            [task.validation_fraction, task.max_validation_examples, settings.allow_missing_split]
        ),
        "libraries": fingerprints.library_versions(
            *(_DECIDING_LIBRARIES if task.has_documents else _DECIDING_LIBRARIES_OF_SEQIO)
        ),
    }
    if task.is_seqio:
        assert settings.module is not None, "the configuration checks that"
        arguments = (task.name, settings.module, settings.seqio_cache_dirs, task.use_cached)
        described = worker.call("t5core.data.seqio_registered:describe_task", *arguments)
        ours = fingerprints.code_fingerprint(*_DECIDING_MODULES_OF_SEQIO)
        return {**parts, "seed": str(run.seed), "data": described["data"], "code": f"{described['code']}+{ours}"}
    if task.objective in NOISY:
        parts["seed"] = str(run.seed)
    data = TaskSource(task).digest() if task.cache is None else seqio_cache.digest(task.cache, task=task.name)
    modules = _DECIDING_MODULES if task.has_documents else _DECIDING_MODULES_OF_CACHES
    return {
        **parts,
        "data": data,
        "filters": storage.fingerprint([task.invalid_utf8, filters.fingerprint(task)]),
        "objective": storage.fingerprint(_settings_that_count(task)),
        "code": fingerprints.code_fingerprint(*modules),
    }


def _settings_that_count(task: TaskConfig) -> list[Any]:
    if task.objective == "supervised":
        return [task.objective, task.inputs, task.targets]
    if task.objective == "ul2":
        return [task.objective, task.text, [denoiser.model_dump() for denoiser in task.ul2_denoisers]]
    if task.objective == "span_corruption":
        return [task.objective, task.text, task.noise_density, task.mean_noise_span_length]
    return [task.objective, task.text]
