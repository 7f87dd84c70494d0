"""What a run may say of its data: vocabulary, tasks, mixture. Lengths are tokens."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core import errors
from t5core.config.base import StrictModel
from t5core.config.preprocessing_schema import UL2_DENOISERS, DenoiserConfig, FilterConfig

Objective = Literal["span_corruption", "prefix_lm", "lm", "ul2", "supervised"]

# What the evaluation of all trained tasks together is called, where an action or a metrics folder names a task.
MIXTURE = "mixture"


class VocabularyConfig(StrictModel):
    """A SentencePiece model that exists (`path`), one to be trained on the tasks' text, bytes, or another run's.

    Kind `parent` is the vocabulary that the checkpoint in `run.init_from` was trained with.
    """

    kind: Literal["sentencepiece", "bytes", "parent"] = "sentencepiece"
    path: str | None = Field(default=None, description="a .model file, local or gs://; None trains one")
    size: PositiveInt = Field(default=2000, description="pieces to train when there is no path")
    extra_ids: int = Field(default=100, ge=0, description="sentinels put behind the pieces")
    character_coverage: float = Field(default=0.9995, gt=0.0, le=1.0)
    byte_fallback: bool = Field(default=True, description="spell unknown characters as bytes instead of <unk>")
    max_unknown_rate: float = Field(
        default=0.01, ge=0.0, le=1.0, description="share of <unk> tokens that is refused above"
    )

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> VocabularyConfig:
        trained = ("size", "character_coverage", "byte_fallback")
        for idle, where, remedy in (
            (("path", *trained, "extra_ids") if self.kind == "parent" else (), "the vocabulary of the parent", "kind"),
            (("path", *trained) if self.kind == "bytes" else (), "a vocabulary of bytes", "kind"),
            (trained if self.path is not None else (), "a vocabulary that is there", "path"),
        ):
            for name in idle:
                value = getattr(self, name)
                if value != type(self).model_fields[name].default:
                    raise ValueError(f"{name}={value} has no effect on {where}; remove it, or {remedy}")
        return self


class TaskConfig(StrictModel):
    """One task of the mixture.

    The text comes from `files` (.txt: a document per line; .jsonl, .tsv, .csv, .parquet: a row each), from a `builtin`
    corpus, as tokens from the `cache` that SeqIO made of a task, or, without any of these, from the SeqIO task or
    mixture registered as `name` by `data.module`.
    """

    name: str
    rate: float | None = Field(default=None, ge=0.0, allow_inf_nan=False, description="None: in proportion to examples")
    files: list[str] = []
    validation_files: list[str] = []
    invalid_utf8: Literal["error", "replace", "drop"] = Field(
        default="error", description="what becomes of texts in files with bytes that are not UTF-8; all are counted"
    )
    malformed_rows: Literal["error", "drop"] = Field(
        default="error",
        description="what becomes of rows of .jsonl, .tsv and .csv that cannot be read; those dropped are counted",
    )
    builtin: Literal["python_docs", "python_docstrings"] | None = None
    cache: str | None = Field(
        default=None,
        description="folder of a SeqIO cache (info.train.json, TFRecords), whose tokens are taken as they are",
    )
    use_cached: bool = Field(
        default=False, description="read a SeqIO task from its cache in data.seqio_cache_dirs instead of its source"
    )
    filters: list[FilterConfig] = Field(default=[], description="documents that fail one are dropped and counted")
    objective: Objective = "span_corruption"
    text: str = Field(default="text", description="column that holds a document (unsupervised objectives)")
    inputs: str = Field(default="{inputs}", description="template over the columns for a supervised input")
    targets: str = Field(default="{targets}", description="template over the columns for a supervised target")
    noise_density: float = Field(default=0.15, gt=0.0, lt=1.0)
    mean_noise_span_length: float = Field(default=3.0, ge=1.0)
    denoisers: list[DenoiserConfig] = Field(default=[], description="of objective ul2; []: the seven of its paper")
    validation_fraction: float = Field(
        default=0.02, ge=0.0, lt=1.0, description="documents held out when no files are named"
    )
    max_validation_examples: PositiveInt | None = Field(default=256, description="None evaluates all of them")
    metrics: list[str] = Field(
        default=[], description="names or dotted functions, scored on decoded validation examples"
    )

    @pydantic.field_validator("name")
    @classmethod
    def _task_name(cls, name: str) -> str:
        if not re.fullmatch(r"[\w.:-]{1,100}", name) or not name.strip("."):
            raise ValueError(f"{name!r} cannot name a task; use letters, digits, '.', ':', '_' and '-'")
        return name

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> TaskConfig:
        given = ["files"] * bool(self.files)
        given += [f"{name}={getattr(self, name)!r}" for name in ("builtin", "cache") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"task {self.name!r} names both {given[0]} and {given[1]}; keep one")
        if self.validation_files and not self.files:
            raise ValueError(f"task {self.name!r} names validation_files without files; add the files to train on")
        if self.metrics and self.objective != "supervised" and not self.is_seqio:
            raise ValueError(
                f"task {self.name!r} has metrics, but its objective is {self.objective!r}; use 'supervised'"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _every_setting_counts(self) -> TaskConfig:
        if self.denoisers and self.objective != "ul2":
            raise ValueError(
                f"task {self.name!r} has denoisers, which have no effect on objective {self.objective!r}; use 'ul2'"
            )
        if self.invalid_utf8 != "error" and not self.files:
            raise ValueError(
                f"task {self.name!r}: invalid_utf8={self.invalid_utf8!r} has no effect without files; remove it"
            )
        if self.use_cached and not self.is_seqio:
            raise ValueError(f"task {self.name!r}: use_cached has no effect on a task with a source here; remove it")
        if self.filters and self.is_seqio:
            raise ValueError(
                f"task {self.name!r}: filters have no effect on a SeqIO task; put t5core.data.seqio_drops.drop_unless "
                "among its preprocessors, which counts as well"
            )
        beyond = next((entry for entry in self.filters if self.cache and not entry.counts_tokens), None)
        if beyond is not None:
            raise ValueError(
                f"task {self.name!r}: filter {beyond.reason!r} has no effect on a cache, which holds tokens; "
                "use min_tokens or max_tokens"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _rows_may_be_malformed(self) -> TaskConfig:
        if self.malformed_rows == "error":
            return self
        given = f"task {self.name!r}: malformed_rows={self.malformed_rows!r} has no effect"
        if not self.files:
            raise ValueError(f"{given} without files; remove it")
        if all(file.lower().endswith((".txt", ".parquet")) for file in (*self.files, *self.validation_files)):
            raise ValueError(f"{given} on .txt and .parquet files, whose rows cannot be malformed; remove it")
        return self

    @property
    def is_seqio(self) -> bool:
        """Whether the task is looked up in SeqIO's registry."""
        return not self.files and self.builtin is None and self.cache is None

    @property
    def has_documents(self) -> bool:
        """Whether the task brings its own text, and not tokens or a SeqIO task."""
        return bool(self.files) or self.builtin is not None

    @property
    def ul2_denoisers(self) -> list[DenoiserConfig]:
        """The denoisers of objective ul2: its own, or those of the paper."""
        return self.denoisers or list(UL2_DENOISERS)

    @property
    def needs_sentinels(self) -> bool:
        """Whether the objective hides spans of the text."""
        spans = any(denoiser.noise == "spans" for denoiser in self.ul2_denoisers)
        return self.objective == "span_corruption" or (self.objective == "ul2" and spans)


class DataConfig(StrictModel):
    """What is trained on: tasks, how they are mixed, and the shape of a row."""

    tasks: list[TaskConfig] = Field(min_length=1)
    module: str | None = Field(default=None, description="Python module that registers SeqIO tasks and mixtures")
    seqio_cache_dirs: list[str] = Field(default=[], description="where SeqIO looks for the caches of tasks")
    feature_lengths: dict[str, PositiveInt] = {"inputs": 128, "targets": 128}
    vocabulary: VocabularyConfig = VocabularyConfig()
    pack: bool = True
    shuffle: bool = True
    passes: PositiveInt = Field(
        default=1, description="times each corpus is written out, with its own order and noise; rows repeat after"
    )
    workers: PositiveInt | None = Field(
        default=None,
        description="processes that tokenise; None: as many as cores and memory allow. The data do not depend on it",
    )
    shares: PositiveInt | None = Field(
        default=None,
        le=1000,
        description="shares in which each task is tokenised: at once on a cluster, a pod for each, else one by one; "
        "None: one for a GiB of text. Each has a piece of 2 MiB at least, or a file of a SeqIO source. The data do not "
        "depend on it",
    )
    allow_missing_split: bool = Field(default=False, description="go on when a task lacks a validation split")

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task name {twice[0]!r} is used twice; rename one")
        if MIXTURE in names and self.mixed:
            raise ValueError(f"task name {MIXTURE!r} is that of all tasks together; rename the task")
        if "targets" not in self.feature_lengths:
            raise ValueError("feature_lengths has no 'targets'; add it, in tokens")
        unknown = sorted(set(self.feature_lengths) - {"inputs", "targets"})
        if unknown:
            raise ValueError(errors.unknown_name("feature in feature_lengths", unknown[0], ("inputs", "targets")))
        if all(task.rate == 0 for task in self.tasks):
            raise ValueError("every task has rate 0; give at least one a rate above 0")
        if self.module is None and any(task.is_seqio for task in self.tasks):
            name = next(task.name for task in self.tasks if task.is_seqio)
            raise ValueError(f"task {name!r} names no files; add files or builtin, or data.module for a SeqIO task")
        cached = next((task.name for task in self.tasks if task.use_cached), None)
        if (cached is not None) != bool(self.seqio_cache_dirs):
            raise ValueError(
                f"task {cached!r} has use_cached, but there are no data.seqio_cache_dirs; add the folder of its cache"
                if cached is not None
                else "seqio_cache_dirs has no effect without a task that has use_cached; set that or remove it"
            )
        return self

    @property
    def mixed(self) -> list[str]:
        """The tasks that are evaluated together, as the mixture: those that are trained on, if there are several."""
        trained = [task.name for task in self.tasks if task.rate != 0]
        return trained if len(trained) > 1 else []

    @property
    def evaluated(self) -> list[str]:
        """The names of what is evaluated: every task, and the mixture."""
        return [*(task.name for task in self.tasks), *([MIXTURE] if self.mixed else [])]
