"""Stage one of the data: one task becomes a dataset of tokenised examples, made once and found again by content.

TensorFlow-free: what needs SeqIO runs in the worker, which is not even started for a dataset that is there.
"""

from __future__ import annotations

import time
from typing import Any

from t5core import errors, fingerprints, storage
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import (
    DatasetRef,
    ResolvedRun,
    ShareRequest,
    Survey,
    TaskRequest,
    TokenisedShare,
    VocabularyRef,
)
from t5core.config.schema import PretrainConfig
from t5core.data import filters, gathering, manifest, seqio_cache, worker
from t5core.data.manifest import Manifest
from t5core.data.noise import SpanCorruption
from t5core.data.objectives import NOISY
from t5core.data.sources import TaskSource, columns_of
from t5core.data.tokenising import Tokenising
from t5core.data.work import task_named
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
    "t5core.data.plain_rows",
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


def survey_task(request: TaskRequest) -> Survey:
    """Returns what is known of a task before it is tokenised: whether its dataset is there, else in how many shares.

    For that its source is looked at, once for the same content: what was found is kept beside the shards.

    Raises:
      ConfigError: the task cannot work as configured.
      DataError: its text cannot be used.
    """
    began, run, task = time.monotonic(), request.run, task_named(request.run.config.data, request.task)
    check_task(run.config, task)
    source = _state_of_source(task)  # before its digest is taken
    parts = task_parts(run, task, request.vocabulary)
    survey = Survey(request=request, parts=parts, source=source, shares=0, seconds=0.0)
    if manifest.reuse_or_reason(run.config.run.root, task.name, parts).found is None:
        survey = survey.model_copy(update={"shares": Tokenising(survey).shares})
    return survey.model_copy(update={"seconds": time.monotonic() - began})


def tokenise_share(request: ShareRequest) -> TokenisedShare:
    """Returns what became of one share of a task: made by `data.workers` processes, as far as it was missing.

    Raises:
      ConfigError: the task cannot work as configured.
      DataError: its text cannot be used.
    """
    if not request.survey.shares:
        return TokenisedShare(task=request.survey.request.task, index=request.index, made=0, seconds=0.0)
    return Tokenising(request.survey).tokenise(request.index)


def materialise_survey(survey: Survey) -> DatasetRef:
    """Returns the dataset of a task that was looked at: the one that is there already, or a new one.

    A new one is put together from its shares. Those that are missing are made here, as all are without a cluster; what
    an earlier attempt finished is kept.

    Raises:
      ConfigError: the task cannot work as configured.
      DataError: its text cannot be used, or gives no examples.
    """
    task, tokenising = survey.request.task, Tokenising(survey)

    def make(uri: str) -> Manifest:
        with tokenising.folder.removed_after_a_failure():
            tokenising.complete()
            _check_unchanged(survey)
            return gathering.gather(
                tokenising.work,
                tokenising.outline.plan,
                folder=tokenising.folder.uri,
                uri=uri,
                inputs=survey.parts,
                examples_in_source=tokenising.examples_in_source,
            )

    dataset = manifest.reuse_or_make(survey.request.run.config.run.root, task, survey.parts, make)
    tokenising.folder.remove()  # whoever was slower than another run may have left it as well
    return dataset


def _state_of_source(task: TaskConfig) -> str:
    return TaskSource(task).state() if task.has_documents else ""


def _check_unchanged(survey: Survey) -> None:
    if _state_of_source(task_named(survey.request.run.config.data, survey.request.task)) != survey.source:
        raise errors.DataError(
            f"task {survey.request.task!r}: its files changed while they were tokenised, so that its rows would be of "
            "neither text; run again when nothing writes to them"
        )


def materialise_task(request: TaskRequest) -> DatasetRef:
    """Returns the dataset of one task: the one that is there already, or a new one.

    Raises:
      ConfigError: the task cannot work as configured.
      DataError: its text cannot be used, or gives no examples.
    """
    return materialise_survey(survey_task(request))


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
        "filters": storage.fingerprint([task.invalid_utf8, task.malformed_rows, filters.fingerprint(task)]),
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
