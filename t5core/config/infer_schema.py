"""What a batch prediction may be told: with which checkpoint, over which rows, and how.

`None` takes what the checkpoint's own run says where a field says so. Lengths are tokens.
"""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field, PositiveInt

from t5core import errors
from t5core.config.base import StrictModel
from t5core.config.schema import ClusterConfig, DecodingConfig, ModelConfig, RunPlace

Mode = Literal["predict", "score"]


class InferPlace(RunPlace):
    """Where the predictions go."""

    name: str = Field(default="infer", description="folder of the predictions under run.root")


class InferSourceConfig(StrictModel):
    """The rows: of files, of a corpus that every CPython carries, or of a SeqIO task.

    Files are .txt (a column `text`), .jsonl, .tsv, .csv or .parquet. The rows of a corpus are those that are held out
    for validation by default.
    """

    files: list[str] = Field(default=[], description="paths or patterns, local or gs://; the rows keep this order")
    builtin: Literal["python_docs", "python_docstrings"] | None = None
    task: str | None = Field(default=None, description="SeqIO task that `module` registers")
    module: str | None = Field(default=None, description="Python module that registers SeqIO tasks")
    split: str = Field(default="validation", description="of the SeqIO task")
    inputs: str | None = Field(
        default="{inputs}", description="template over the columns; None: the model reads targets alone"
    )
    targets: str | None = Field(default=None, description="template over the columns of what is to be scored")
    max_rows: PositiveInt | None = Field(default=None, description="first rows to take; None: all")

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> InferSourceConfig:
        named = [name for name in ("files", "builtin", "task") if getattr(self, name)]
        if len(named) != 1:
            given = " and ".join(named) or "nothing"
            raise ValueError(f"the source names {given}; name one of files, builtin and task")
        if self.task is None:
            self._refuse_what_has_no_effect(("module", "split"), on="a source without a SeqIO task")
        else:
            self._refuse_what_has_no_effect(("inputs", "targets"), on="a SeqIO task, which has its own features")
            if self.module is None:
                raise ValueError(f"the SeqIO task {self.task!r} needs the module that registers it; set module")
        return self

    def _refuse_what_has_no_effect(self, names: tuple[str, ...], *, on: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value!r} has no effect on {on}; remove it")


class GivenVocabularyConfig(StrictModel):
    """A vocabulary that exists."""

    kind: Literal["sentencepiece", "bytes"] = "sentencepiece"
    path: str | None = Field(default=None, description="a .model file, local or gs://")
    extra_ids: int = Field(default=100, ge=0, description="sentinels put behind the pieces")

    @pydantic.model_validator(mode="after")
    def _a_model_for_pieces(self) -> GivenVocabularyConfig:
        if self.kind == "sentencepiece" and self.path is None:
            raise ValueError("a SentencePiece vocabulary needs its .model file; set path, or kind: bytes")
        if self.kind == "bytes" and self.path is not None:
            raise ValueError(f"path={self.path!r} has no effect on bytes; remove it, or set kind: sentencepiece")
        return self


class InferDecodingConfig(DecodingConfig):
    """How predictions are made, and how many of each row are kept, the best first."""

    num_decodes: PositiveInt = 1
    seed: int = Field(default=0, ge=0, lt=2**31, description="of samples")

    @pydantic.model_validator(mode="after")
    def _decodes_differ(self) -> InferDecodingConfig:
        if self.strategy != "sample" and self.seed:
            raise ValueError(f"seed={self.seed} has no effect on {self.strategy} decoding; set strategy: sample")
        if self.num_decodes > 1 and (self.strategy == "greedy" or (self.strategy == "sample" and not self.temperature)):
            how = "greedy decoding" if self.strategy == "greedy" else "temperature=0"
            raise ValueError(
                f"num_decodes={self.num_decodes} asks for different predictions, and {how} gives one; "
                "set strategy: beam, or sample with a temperature above 0"
            )
        if self.strategy == "beam" and self.num_decodes > self.beam_size:
            raise ValueError(
                f"num_decodes={self.num_decodes} are more than the beams; set beam_size={self.num_decodes}"
            )
        return self


class InferConfig(StrictModel):
    """Everything that a batch prediction needs."""

    run: InferPlace = InferPlace()
    checkpoint: str = Field(description="a run directory (its last step), the folder of one step, or published:NAME")
    model: ModelConfig | None = Field(default=None, description="None: that of the checkpoint's run")
    vocabulary: GivenVocabularyConfig | None = Field(default=None, description="None: that of the checkpoint's run")
    feature_lengths: dict[str, PositiveInt] | None = Field(
        default=None, description="longest inputs and targets; None: those of the checkpoint's run"
    )
    source: InferSourceConfig
    mode: Mode = Field(default="predict", description="score: the log-probability of the targets given the inputs")
    decode: InferDecodingConfig = InferDecodingConfig()
    batch_size: PositiveInt = Field(default=32, description="rows decoded at a time; rounded up to fit the devices")
    shard_rows: PositiveInt = Field(default=2048, description="rows of one task, which is done as a whole or again")
    max_bad_rows: int | None = Field(
        default=None, ge=0, description="rows that may be unusable; None: any number, but not all"
    )
    cluster: ClusterConfig = ClusterConfig()

    @pydantic.model_validator(mode="after")
    def _the_mode_takes_every_setting(self) -> InferConfig:
        if self.mode == "predict":
            if self.source.targets is not None:
                raise ValueError(
                    f"source.targets={self.source.targets!r} has no effect on predictions; remove it or set mode: score"
                )
            if self.source.inputs is None:
                raise ValueError("source.inputs is missing, and there is nothing to predict from; give a template")
        else:
            if self.decode != InferDecodingConfig():
                raise ValueError("decode has no effect on scores; set mode: predict, or remove it")
            if self.source.targets is None and self.source.task is None:
                raise ValueError("source.targets is missing, and there is nothing to score; give a template")
        return self

    @pydantic.field_validator("feature_lengths")
    @classmethod
    def _known_features(cls, lengths: dict[str, int] | None) -> dict[str, int] | None:
        for name in lengths or ():
            if name not in ("inputs", "targets"):
                raise ValueError(errors.unknown_name("feature", name, ("inputs", "targets")))
        if lengths is not None and "targets" not in lengths:
            raise ValueError("has no 'targets'; add it, in tokens")
        return lengths
