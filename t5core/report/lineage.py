"""Where the figures of a run come from: the chain from a metric down to data, vocabulary and configuration."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from t5core import counting
from t5core.config import edges
from t5core.report import figures
from t5core.report.gather import RunRecord
from t5core.report.summary import LastValue, leading_metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One link of the chain from a figure down to the code: what it is, which one, and its name by content."""

    what: str
    which: str
    fingerprint: str = ""
    remark: str = ""
    is_broken: bool = False


def lineage_of(record: RunRecord, values: Mapping[str, Mapping[str, LastValue]]) -> tuple[Link, ...]:
    """Returns the chain from the newest metrics down to the configuration, the metrics first.

    Figures that come from different evaluations each name their own.
    """
    evaluations = {at.evaluation.step: at.evaluation for metrics in values.values() for at in metrics.values()}
    links: list[Link] = []
    for step, evaluation in sorted(evaluations.items(), reverse=True):
        links += _measured(record, values, step, evaluation)
        links += _trained(record, evaluation.checkpoint)
    if not evaluations and record.checkpoint:
        links += _trained(record, record.checkpoint)
    return (*links, *_made_from(record))


def _measured(
    record: RunRecord, values: Mapping[str, Mapping[str, LastValue]], step: int, evaluation: edges.Evaluation
) -> tuple[Link, Link]:
    shown = "; ".join(
        f"{task}: {', '.join(f'{figures.label(name)} {figures.number(metrics[name].value)}' for name in names)}"
        for task, metrics in values.items()
        if (names := [name for name in leading_metrics(metrics) if metrics[name].evaluation.step == step])
    )
    checkpoint = evaluation.checkpoint
    return (
        Link(what="metrics", which=shown or "none of those shown first", remark=f"recorded in {evaluation.uri}"),
        _kept(record, checkpoint, what=f"checkpoint of step {checkpoint.step:,}"),
    )


def _kept(record: RunRecord, checkpoint: edges.CheckpointRef, *, what: str) -> Link:
    """Returns the link to a checkpoint of the run, which says where retention has deleted it."""
    remark = "" if checkpoint.step in record.kept_steps else "no longer kept"
    return Link(what=what, which=checkpoint.uri, fingerprint=checkpoint.digest, remark=remark)


def _trained(record: RunRecord, checkpoint: edges.CheckpointRef) -> list[Link]:
    """Returns the segments below `checkpoint`; where one does not start from what the one before left, it says so."""
    chain = record.segments_to(checkpoint.step)
    if not chain or chain[-1].end != checkpoint.step:
        return [Link(what="segment", which=f"no record of one that ends at step {checkpoint.step:,}", is_broken=True)]
    last, first = chain[-1], chain[0]
    wrote = last.checkpoint.digest
    pairs = itertools.pairwise(chain)
    torn = next((after.start for before, after in pairs if before.checkpoint.digest != after.parent.digest), None)
    broken = ""
    if wrote != checkpoint.digest:
        broken = "this is not the state that was evaluated"
    if torn is not None:
        broken = f"the segment from step {torn:,} did not start from the state that the one before it left"
    intact = "each started from the state that the one before it left" if len(chain) > 1 else ""
    which = f"steps {last.start:,} to {last.end:,}, the last of {counting.count(len(chain), 'segment')}"
    return [
        Link(what="segment", which=which, fingerprint=wrote, remark=broken or intact, is_broken=bool(broken)),
        _kept(record, first.parent, what=f"state of step {first.parent.step:,}"),
    ]


def _made_from(record: RunRecord) -> list[Link]:
    """Returns what a run was made from: data, vocabulary and configuration."""
    links = []
    if record.parent:
        parent = record.parent
        remark = f"this run was started from {parent}"
        links.append(Link(what="parent", which=parent.uri, fingerprint=parent.digest, remark=remark))
    for dataset in reversed(record.datasets):
        parts = dataset.manifest.parts if dataset.manifest else {}
        remark = "made from " + ", ".join(f"{name} {value}" for name, value in parts.items()) if parts else ""
        what = "mixture" if dataset.stage.stage == "assemble" else f"task {dataset.stage.name}"
        links.append(Link(what=what, which=dataset.stage.uri, fingerprint=dataset.stage.fingerprint, remark=remark))
    given = record.config.get("data", {}).get("vocabulary", {}).get("path")
    for stage in record.stages_of("vocabulary"):
        remark = f"a copy of {given}" if given and given != stage.uri else ""
        links.append(Link(what="vocabulary", which=stage.uri or "bytes", fingerprint=stage.fingerprint, remark=remark))
    if record.config_text is not None:
        uri = f"{record.uri}/config.yaml"
        links.append(Link(what="configuration", which=uri, fingerprint=record.fingerprint))
    return links
