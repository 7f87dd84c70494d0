"""What the data of a run hold: counted where the datasets are there, estimated from a sample of the text before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from t5core.config.data_schema import TaskConfig
from t5core.config.edges import DatasetRef, ResolvedRun
from t5core.data import manifest, mixture, ordering, packing
from t5core.data.converters import converter_for
from t5core.data.manifest import Manifest
from t5core.data.vocabulary import ByteVocabulary, SentencePieceVocabulary
from t5core.preflight import lengths
from t5core.preflight.lengths import ExampleLengths
from t5core.preflight.record import DataFigures
from t5core.preflight.sample import Sample

# Examples that are packed to see how well they fill their rows.
_PACKED = 4000

AnyVocabulary = SentencePieceVocabulary | ByteVocabulary


def counted(tasks: Sequence[DatasetRef], mixed: DatasetRef) -> DataFigures | None:
    """Returns the figures in the manifests of a run's datasets, None when the mixture's is gone."""
    described = manifest.load(mixed.uri)
    if described is None:
        return None
    train = described.splits["train"]
    tokens = {name: count for name, count in train.tokens.items() if name in _token_features(described)}
    entries = {name: train.rows * train.features[name].length for name in tokens}
    return DataFigures(
        basis="counted when the data were written",
        is_exact=True,
        examples=sum(share.reads for share in described.tasks.values()),
        rows=train.rows,
        tokens=tokens,
        efficiency={name: tokens[name] / max(1, entries[name]) for name in tokens},
        truncated=_truncated(tasks),
    )


def _token_features(described: Manifest) -> set[str]:
    return {name for share in described.tasks.values() for name in share.tokens}


def _truncated(tasks: Sequence[DatasetRef]) -> dict[str, dict[str, float]]:
    found = {}
    for task in tasks:
        described = manifest.load(task.uri)
        if described is not None and (train := described.splits["train"]).truncated:
            found[task.name] = {side: count / max(1, train.rows) for side, count in train.truncated.items() if count}
    return found


def estimated(run: ResolvedRun, samples: Mapping[str, Sample], vocabulary: AnyVocabulary, *, basis: str) -> DataFigures:
    """Returns what the text in `samples` lets expect of the mixture of `run`.

    Args:
      run: its lengths, rates, passes and packing count.
      samples: of each task that is trained on.
      vocabulary: that the run will have, or one like it.
      basis: what the vocabulary is, in words.

    Raises:
      ConfigError: the tasks cannot be mixed at their rates, or do not fit their lengths.
    """
    tasks = mixture.active_tasks(run)
    examples = {task.name: _lengths(run, task, samples[task.name], vocabulary) for task in tasks}
    rows = {
        task.name: max(1, round(len(examples[task.name]) * _scale(samples[task.name]) * run.config.data.passes))
        for task in tasks
    }
    reads = mixture.planned_reads({task.name: task.rate for task in tasks}, rows)
    total = sum(reads.values())
    share = min(1.0, _PACKED / total)
    counts = [round(reads[task.name] * share) for task in tasks]
    filled = _filled(run, [examples[task.name] for task in tasks], counts)
    scale = total / max(1, sum(counts))
    entries = {name: array.size for name, array in filled.items()}
    tokens = {name: int(np.count_nonzero(array)) for name, array in filled.items()}
    (packed_rows,) = {len(array) for array in filled.values()}
    return DataFigures(
        basis=f"estimated from {_read(samples)}, {basis}",
        is_exact=False,
        examples=total,
        rows=round(packed_rows * scale),
        tokens={name: round(count * scale) for name, count in tokens.items()},
        efficiency={name: tokens[name] / max(1, entries[name]) for name in tokens},
        truncated={
            name: {side: cut / max(1, len(found)) for side, cut in found.truncated.items() if cut}
            for name, found in examples.items()
            if any(found.truncated.values())
        },
    )


def _lengths(run: ResolvedRun, task: TaskConfig, sample: Sample, vocabulary: AnyVocabulary) -> ExampleLengths:
    texts = [lengths.texts_of(task, document) for document in sample.documents]
    sides = {
        side: [len(ids) for ids in vocabulary.encode_batch([text[side] for text in texts])]
        for side in (texts[0] if texts else ())
    }
    counts = [{side: sizes[number] for side, sizes in sides.items()} for number in range(len(texts))]
    data = run.config.data
    return lengths.example_lengths(task, counts, lengths=data.feature_lengths, sentinels=vocabulary.sentinels)


def _scale(sample: Sample) -> float:
    return sample.total / max(1, len(sample.documents))


def _read(samples: Mapping[str, Sample]) -> str:
    read, total = (sum(counts) for counts in zip(*((len(s.documents), s.total) for s in samples.values()), strict=True))
    about = "" if all(sample.is_counted for sample in samples.values()) else "about "
    return f"{read:,} of {about}{total:,} documents"


def _filled(run: ResolvedRun, examples: Sequence[ExampleLengths], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns rows as the mixture would store them, filled by `counts` examples of each task in their order."""
    config = run.config
    converter = converter_for(config.model.architecture().family, config.data.feature_lengths)
    packer = packing.Packer(converter) if config.data.pack else None
    parts = []
    for tasks, numbers in ordering.interleave(counts, seed=run.seed):
        chosen = {side: np.zeros(len(tasks), np.int64) for side in config.data.feature_lengths}
        for index, found in enumerate(examples):
            here = tasks == index
            order = ordering.Permutation(max(1, len(found)), key=ordering.key(run.seed, "preflight", index))
            for side, sizes in found.tokens.items():
                chosen[side][here] = sizes[order(numbers[here] % len(found))]
        block = converter.from_task(
            {side: _ones(sizes, config.data.feature_lengths[side]) for side, sizes in chosen.items()}
        )
        parts.append(packer.add(block) if packer else block)
    if packer:
        parts.append(packer.finish())
    names = [tokens for tokens, *_ in converter.members.values()]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _ones(sizes: np.ndarray, length: int) -> np.ndarray:
    return (np.arange(length)[None, :] < sizes[:, None]).astype(np.int32)
