"""The stages of a conversion: look at the source, convert, compare. Each is idempotent from the conversion's folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from t5core import errors, progress, records, sharing, storage
from t5core.checkpoints import index
from t5core.config import load
from t5core.config.convert_edges import Conversion, ConversionPlan, ConversionSummary, SourceRef
from t5core.config.convert_schema import ConvertConfig, DestinationConfig, SourceConfig

if TYPE_CHECKING:
    from t5core.importers.contents import Contents

_FOLDERS = {"t5flow": "checkpoints", "t5x": "t5x", "huggingface": "huggingface"}


def inspect(config: ConvertConfig, overrides: list[str], *, uri: str | None = None) -> ConversionPlan:
    """Returns what is to be converted into what; nothing is converted yet.

    Args:
      config: the settings.
      overrides: settings put over them, `section.key=value` each.
      uri: folder of the reports; None: <root>/<name>.

    Raises:
      ConfigError: a setting that cannot work.
      CheckpointError: there is no such checkpoint.
    """
    from t5core.importers import formats

    config = load.override_config(config, overrides)
    place = f"{config.run.root.rstrip('/')}/{config.run.name}" if uri is None else uri
    place = _absolute(place)
    source = config.source if config.source.uri is not None else _example(config.source, config.run.root, place)
    config = config.model_copy(update={"source": source})
    ref = formats.survey(source)
    destination = _absolute(config.destination.uri or f"{place}/{_FOLDERS[config.destination.format]}")
    settings = config.model_dump(mode="json", exclude={"run": True, "source": {"uri"}, "destination": {"uri"}})
    plan = ConversionPlan(
        uri=place,
        config=config,
        source=ref,
        destination=destination,
        fingerprint=storage.fingerprint({"settings": settings, "digest": ref.digest, "destination": destination}),
    )
    progress.say(
        f"convert {ref.uri} ({ref.format}, {ref.size_bytes / 1e6:.1f} MB) -> {destination} "
        f"({config.destination.format})"
    )
    return plan


def _absolute(uri: str) -> str:
    return uri if storage.is_remote(uri) else os.path.abspath(uri)


def _example(source: SourceConfig, root: str, place: str) -> SourceConfig:
    """Returns the built-in example: what `make pretrain` trained, or a tiny model written as T5X would."""
    demo = f"{root.rstrip('/')}/demo"
    if index.latest(f"{demo}/checkpoints") is not None:
        progress.say(f"source.uri is not set: taking the last checkpoint of {demo}")
        return source.model_copy(update={"uri": demo})
    from t5core.importers import example

    folder = f"{place}/example"
    progress.say(f"source.uri is not set and {demo} has no checkpoint: making a tiny T5X checkpoint in {folder}")
    with _turn(folder):
        return source.model_copy(update={"uri": example.checkpoint(folder)})


def _turn(folder: str) -> contextlib.AbstractContextManager[None]:
    return sharing.turn(f"{folder}/conversion.lock", busy=f"another conversion writes to {folder}")


def convert(plan: ConversionPlan) -> Conversion:
    """Returns the conversion, made now or found made; the same one at the same time is waited for and taken.

    Raises:
      CheckpointError: the source cannot be read, or cannot be written in the other format.
      RunDirectoryError: the folder belongs to another conversion, or cannot be written.
    """
    with _turn(plan.uri), _turn(plan.destination):
        existing = _existing(plan)
        if existing is not None:
            progress.say(f"convert: reused ({existing.reason})")
            return existing
        return _made(plan)


def _made(plan: ConversionPlan) -> Conversion:
    from t5core.importers import formats

    config = plan.config
    found = formats.read(plan.source, config.source)
    checkpoint, left_out = formats.write(plan.destination, found, config.destination, plan.source)
    if config.destination.format == "huggingface":
        left_out += _tokenizer(plan)
    conversion = Conversion(
        plan=plan,
        checkpoint=checkpoint,
        step=found.step,
        digest=formats.written(checkpoint, config.destination.format).digest,
        left_out=left_out,
        reused=False,
        reason="no conversion yet",
    )
    records.write(_record_uri(plan), conversion)
    progress.say(f"convert: wrote {checkpoint} ({len(found.params)} parameters)")
    return conversion


def _tokenizer(plan: ConversionPlan) -> list[str]:
    """Writes the tokenizer beside a model of Hugging Face; returns what is left out of it."""
    from t5core import trained
    from t5core.importers import own, tokenizer_files

    vocabulary = trained.vocabulary_of(own.reference(plan.source.uri)) if plan.source.format == "t5flow" else None
    if vocabulary is None:
        return [f"the tokenizer, as the source does not tell its vocabulary: add its {tokenizer_files.MODEL_FILE}"]
    tokenizer_files.write(plan.destination, vocabulary)
    return []


def _record_uri(plan: ConversionPlan) -> str:
    return f"{plan.uri}/conversion.json"


def _existing(plan: ConversionPlan) -> Conversion | None:
    """Returns the same conversion from before, None when there is none or its checkpoint is gone.

    Raises:
      RunDirectoryError: the folder has another conversion.
      CheckpointError: what it wrote was changed.
    """
    made = records.read(_record_uri(plan), Conversion)
    if made is None:
        return None
    if made.plan.fingerprint != plan.fingerprint:
        raise errors.RunDirectoryError(
            f"{plan.uri} holds the conversion of {made.plan.source.uri} to {made.plan.destination}, by other settings "
            f"or of other content; choose another run.name"
        )
    if not storage.path(made.checkpoint).exists():
        return None
    from t5core.importers import formats

    if formats.written(made.checkpoint, plan.config.destination.format).digest != made.digest:
        raise errors.CheckpointError(f"{made.checkpoint} is not what was written there; remove it and run again")
    reason = f"{made.checkpoint} is there, of the same source and settings"
    return made.model_copy(update={"plan": plan, "reused": True, "reason": reason})


def compare(conversion: Conversion) -> tuple[ConversionSummary, str]:
    """Writes the parity report and the summary; returns the summary and the report's HTML.

    The new checkpoint is read back. What was imported is also written in its source's format once more and read
    again, so that both directions are seen.

    Raises:
      IntegrityError: something differs; the report says what.
    """
    from t5core.importers import formats, parity
    from t5core.report import parity_page

    plan = conversion.plan
    config = plan.config
    source = formats.read(plan.source, config.source)
    back = _read_back(conversion.checkpoint, config.destination.format, source)
    comparisons = [parity.compare("source and destination", source, back)]
    if config.destination.format == "t5flow" and plan.source.format != "t5flow":
        again = _there_and_back(plan.source, back)
        comparisons.append(
            parity.compare(f"source and destination exported to {plan.source.format} again", source, again)
        )
    report = parity.Parity(
        source=plan.source.uri,
        destination=conversion.checkpoint,
        step=conversion.step,
        architecture=source.architecture,
        tensors=list(source.mapping),
        unused=list(source.unused),
        left_out=conversion.left_out,
        notes=list(source.notes),
        comparisons=comparisons,
    )
    summary = ConversionSummary(
        name=plan.uri.rpartition("/")[2],
        status="equal" if report.is_equal else "different",
        source=plan.source.uri,
        checkpoint=conversion.checkpoint,
        step=conversion.step,
        tensors=len(report.tensors),
        largest_logits_difference=report.largest_difference,
        uri=f"{plan.uri}/summary.json",
        report=f"{plan.uri}/report.html",
        parity=f"{plan.uri}/parity.json",
    )
    page = parity_page.render(summary, report, conversion)
    records.write(summary.parity, report)
    storage.write_text(f"{plan.uri}/parity.txt", parity.render(report))
    storage.write_text(summary.report, page)
    records.write(summary.uri, summary)
    if not report.is_equal:
        raise errors.IntegrityError(
            f"{conversion.checkpoint} differs from its source; {plan.uri}/parity.txt says where"
        )
    _say(summary, conversion)
    return summary, page


def _read_back(checkpoint: str, kind: str, source: Contents) -> Contents:
    """Returns what was written, as if it came from elsewhere; the step of a Hugging Face model is its source's."""
    from t5core.importers import formats
    from t5core.importers.contents import model_config

    # T5X's folders do not say which activations the model has.
    model = model_config(source.architecture) if kind == "t5x" else None
    step = source.step if kind == "huggingface" else None
    settings = SourceConfig.model_validate({"uri": checkpoint, "format": kind, "model": model, "step": step})
    return formats.read(SourceRef(uri=checkpoint, format=kind, digest="", size_bytes=0), settings)


def _there_and_back(source: SourceRef, found: Contents) -> Contents:
    """Returns `found` after a trip through the format of `source`, in a folder that is gone afterwards."""
    from t5core.importers import formats

    with tempfile.TemporaryDirectory(prefix="t5flow-parity-") as folder:
        target = DestinationConfig.model_validate({"format": source.format})
        checkpoint, _ = formats.write(f"{folder}/model", found, target, source)
        back = _read_back(checkpoint, source.format, found)
        # Tensors of a file are views of it.
        return back.detached()


def _say(summary: ConversionSummary, conversion: Conversion) -> None:
    lines = [
        "",
        f"{summary.tensors} tensors, all the same to the bit when read back; largest difference of logits "
        f"{summary.largest_logits_difference:.3g}",
        *(f"  left out: {what}" for what in conversion.left_out),
        "",
        f"  checkpoint   {storage.near(summary.checkpoint)}",
        f"  parity       {storage.near(summary.parity.removesuffix('.json'))}.txt",
        f"  report       {storage.near(summary.report)}",
        f"  summary      {storage.near(summary.uri)}",
    ]
    for line in lines:
        progress.say(line)
