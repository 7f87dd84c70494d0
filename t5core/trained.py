"""A checkpoint as something to use: with the model that it is of, its vocabulary, and the lengths it was trained with.

A run's own checkpoint brings all of it. One that was imported lies in no run's directory and has to be told.
"""

from __future__ import annotations

import functools

from t5core import errors
from t5core.checkpoints import index, locating
from t5core.checkpoints.record import CheckpointRecord
from t5core.config import load
from t5core.config.edges import CheckpointRef, VocabularyRef
from t5core.config.infer_edges import TrainedModel
from t5core.config.infer_schema import GivenVocabularyConfig
from t5core.config.schema import ModelConfig
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary, read_model
from t5core.data.vocabulary_verification import rounded_size
from t5core.importers import contents
from t5core.rundir import RunDirectory

_PARAMS = "params/"
# What to give where neither a run nor an import tells it.
_REMEDIES = {
    "model": "give the settings of its model, such as {preset: t5_1_1_small}",
    "vocabulary": "give vocabulary.path, its .model file, and vocabulary.extra_ids (100 for T5's own), or kind: bytes",
    "feature_lengths": "give the longest inputs and targets in tokens, such as {inputs: 512, targets: 114}",
}


def trained_model(
    checkpoint: CheckpointRef,
    *,
    model: ModelConfig | None,
    vocabulary: GivenVocabularyConfig | None,
    feature_lengths: dict[str, int] | None,
) -> TrainedModel:
    """Returns `checkpoint` with what is given, and with what its own run says in the place of each None.

    Raises:
      ConfigError: something is neither given nor told by a run, or the parts do not belong together.
      CheckpointError: the checkpoint is not of the model.
    """
    record = index.read_record(*index.locate(checkpoint.uri))
    directory = locating.run_of(checkpoint)
    own = _OfRun(directory) if directory is not None else _OfImport(record)
    for setting, value in (("model", model), ("vocabulary", vocabulary), ("feature_lengths", feature_lengths)):
        if value is None and getattr(own, setting) is None:
            raise errors.ConfigError(
                f"{setting} is missing, and {checkpoint.uri} lies in no run's directory that tells it; "
                f"{_REMEDIES[setting]}"
            )
    if model is not None and own.model is not None:
        contents.require_same_architecture(own.model.architecture(), model.architecture(), source=checkpoint.uri)
    given = None if vocabulary is None else _vocabulary(vocabulary.kind, vocabulary.path, vocabulary.extra_ids)
    trained = TrainedModel.model_validate(
        {
            "checkpoint": checkpoint,
            "model": model or own.model,
            "vocabulary": given or own.vocabulary,
            "feature_lengths": feature_lengths or own.feature_lengths,
        }
    )
    _check(trained, record)
    return trained


def vocabulary_of(checkpoint: CheckpointRef) -> VocabularyRef | None:
    """Returns the vocabulary that the run of `checkpoint` was trained with; None where no run tells it.

    Raises:
      IntegrityError: its file has changed.
    """
    directory = locating.run_of(checkpoint)
    tells = directory is not None and any(stage.stage == "vocabulary" for stage in directory.stages())
    return _OfRun(directory).vocabulary if directory is not None and tells else None


class _OfImport:
    """What the record of an imported checkpoint says; None: it does not."""

    vocabulary = feature_lengths = None

    def __init__(self, record: CheckpointRecord) -> None:
        source = record.provenance.imported_from
        self.model = None if source is None else contents.model_config(source.architecture)


class _OfRun:
    """What a run says of its checkpoints; only the settings that matter here are looked at."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._settings = load.read_file(directory.config_uri)

    @functools.cached_property
    def model(self) -> ModelConfig:
        return load.validate(self._settings["model"], ModelConfig, origin=f"{self._directory.config_uri}, model")

    @functools.cached_property
    def feature_lengths(self) -> dict[str, int]:
        return self._settings["data"]["feature_lengths"]

    @functools.cached_property
    def vocabulary(self) -> VocabularyRef:
        recorded = next((stage for stage in self._directory.stages() if stage.stage == "vocabulary"), None)
        if recorded is None:
            raise errors.ConfigError(f"{self._directory.uri} does not say which vocabulary it has; set vocabulary")
        settings = self._settings["data"]["vocabulary"]
        found = _vocabulary(settings["kind"], recorded.uri, settings["extra_ids"])
        if found.fingerprint != recorded.fingerprint:
            raise errors.IntegrityError(
                f"{recorded.uri} has changed: its fingerprint is {found.fingerprint}, and "
                f"{self._directory.uri} was trained with {recorded.fingerprint}; put the old file back"
            )
        return found


def _vocabulary(kind: str, uri: str | None, extra_ids: int) -> VocabularyRef:
    if kind == ByteVocabulary.kind:
        found, uri = ByteVocabulary(extra_ids=extra_ids), ""
    else:
        assert uri is not None, "the configuration checks that"
        found = SentencePieceVocabulary(read_model(uri), extra_ids=extra_ids, origin=uri)
    return VocabularyRef(
        uri=uri, kind=found.kind, extra_ids=found.extra_ids, size=found.vocab_size, fingerprint=found.fingerprint
    )


def _check(trained: TrainedModel, record: CheckpointRecord) -> None:
    expected, found = record.provenance.vocabulary_fingerprint, trained.vocabulary
    if expected and expected != found.fingerprint:
        raise errors.ConfigError(
            f"{trained.checkpoint.uri} was trained with vocabulary {expected}, not with {found.fingerprint} "
            f"({found.kind}, {found.size} ids, {found.extra_ids} of them extra); set vocabulary to that one"
        )
    rows = trained.model.architecture().vocab_size
    if rounded_size(found.size, 0) > rows:
        raise errors.ConfigError(
            f"the vocabulary has {found.size} ids, and the model has {rows} embedding rows; set the vocabulary that "
            f"{trained.checkpoint.uri} was trained with"
        )
    lengths, family = trained.feature_lengths, trained.model.architecture().family
    if family == "encoder_decoder" and "inputs" not in lengths:
        raise errors.ConfigError("feature_lengths has no 'inputs', which an encoder-decoder reads; add it, in tokens")
    held = {path.removeprefix(_PARAMS): leaf for path, leaf in record.leaves.items() if path.startswith(_PARAMS)}
    shapes = {path: leaf.shape for path, leaf in held.items()}
    contents.require_shapes(shapes, trained.model.architecture(), source=trained.checkpoint.uri)
