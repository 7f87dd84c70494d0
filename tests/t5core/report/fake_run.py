"""Builds run directories that look like those a run leaves, in a blink and without training."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

from t5core import storage
from t5core.config import edges
from t5core.data import manifest

SPANS, SENTENCES = "docs_span_corruption", "docstring_first_sentence"
TASKS = (SPANS, SENTENCES)
SEGMENT_STEPS = 60
TOTAL_STEPS = 240

CONFIG = """\
run:
  name: demo
  root: runs
  seed: 0
model:
  preset: t5_1_1_tiny
  dropout_rate: 0.0
data:
  feature_lengths: {inputs: 128, targets: 64}
  tasks:
  - {name: docs_span_corruption, builtin: python_docs, objective: span_corruption, rate: 0.75}
  - {name: docstring_first_sentence, builtin: python_docstrings, objective: supervised, rate: 0.25}
train:
  total_steps: 240
  segment_steps: 60
  batch_size: 16
  learning_rate: {factors: constant * linear_warmup * rsqrt_decay, base_learning_rate: 0.3, warmup_steps: 30}
"""

EXAMPLES = (
    ("shutil.copyfile(src, dst, *, follow_symlinks=True)", "Copy data from src to dst in the most efficient way."),
    ("textwrap.dedent(text)", "Remove any common leading whitespace from every line in `text`."),
    ("random.Random.shuffle(self, x)", "Shuffle list x in place, and return None."),
    ("os.path.commonprefix(m)", "Given a list of pathnames, returns the longest common leading component"),
)
GUESSES = {
    60: ("Return the the the the.", "Return the string.", "Return the list.", "Return the path."),
    120: (
        "Return the file to the file.",
        "Return a string of the text.",
        "Return the x of the list.",
        "Return a path.",
    ),
    180: ("Copy the file to the given file.", "Return a text of the line.", "Shuffle x.", "Return the common path."),
    240: (
        "Copy data from src to dst.",
        "Remove the whitespace from every line in text.",
        "Shuffle list x in place, and return None.",
        "Given a path, returns the longest path.",
    ),
}


def checkpoint(run: pathlib.Path, step: int) -> edges.CheckpointRef:
    """Returns the reference of a checkpoint that the run would have at `step`."""
    return edges.CheckpointRef(
        uri=f"{run}/checkpoints/{step}", step=step, digest=storage.digest(f"state {step}".encode())
    )


def write_lines(path: pathlib.Path, lines: list[dict[str, Any]]) -> None:
    storage.write_text(path, "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))


def training_loss(step: int) -> float:
    """Returns a curve that falls as real ones do, with a little deterministic noise."""
    return 2.7 + 5.0 * math.exp(-step / 45) + 0.07 * math.sin(7.3 * step) + 0.04 * math.cos(2.1 * step)


def learning_rate(step: int) -> float:
    return 0.3 * min(1.0, step / 30) / math.sqrt(max(step, 30))


def write_training(run: pathlib.Path, last_step: int, nan_from: int | None = None) -> None:
    lines = []
    for step in [1, *range(5, last_step + 1, 5)]:
        loss = math.nan if nan_from is not None and step >= nan_from else training_loss(step)
        compiling = step == 1 or step % SEGMENT_STEPS == 5
        lines.append(
            {
                "step": step,
                "loss_per_nonpadding_target_token": loss,
                "loss": loss * 700,
                "accuracy": 0.45 * (1 - math.exp(-step / 90)) + 0.005 * math.sin(3 * step),
                "learning_rate": learning_rate(max(step - 2, 1)),  # the mean of what comes before, as training has it
                "learning_rate/current": learning_rate(step),
                "timing/target_tokens_per_second": 900.0 if compiling else 2350 + 60 * math.sin(step),
            }
        )
    write_lines(run / "metrics/train/metrics.jsonl", lines)


def evaluation_metrics(step: int) -> dict[str, dict[str, float]]:
    gain = 1 - math.exp(-step / 110)
    return {
        SPANS: {
            "loss_per_nonpadding_target_token": 6.9 - 3.6 * gain,
            "accuracy": 0.41 * gain,
            "loss": 5230.5 - 2600 * gain,
            "non_padding_fraction/overall": 0.913,
            "timing/seconds": 1.31,
        },
        SENTENCES: {
            "loss_per_nonpadding_target_token": 6.4 - 3.7 * gain,
            "accuracy": 0.52 * gain,
            "loss": 3110.25 - 1700 * gain,
            "non_padding_fraction/overall": 0.742,
            "timing/seconds": 0.94,
            "exact_match": 9.375 * (step == 240) + 1.5625 * (step == 180),
            "token_f1": 34.2 * gain,
        },
    }


def write_evaluation(run: pathlib.Path, step: int, *, reused: bool) -> None:
    uri = run / f"records/evaluation-{step:08d}.json"
    evaluation = edges.Evaluation(
        step=step,
        checkpoint=checkpoint(run, step),
        metrics=evaluation_metrics(step),
        seconds=3.4,
        reused=reused,
        uri=str(uri),
    )
    storage.write_json(uri, evaluation.model_dump())
    guesses = zip(EXAMPLES, GUESSES[step], strict=True)
    lines = [{"inputs": inputs, "target": target, "prediction": prediction} for (inputs, target), prediction in guesses]
    write_lines(run / f"predictions/{SENTENCES}-{step:08d}.jsonl", lines * 16)


def write_evaluation_curves(run: pathlib.Path, steps: range) -> None:
    decoded = ("exact_match", "token_f1")
    for task in TASKS:
        metrics = {step: evaluation_metrics(step)[task] for step in steps}
        forced = [
            {"step": step, **{name: value for name, value in values.items() if name not in decoded}}
            for step, values in metrics.items()
        ]
        write_lines(run / f"metrics/training_eval/{task}/metrics.jsonl", forced)
    lines = [{"step": step, **{name: evaluation_metrics(step)[SENTENCES][name] for name in decoded}} for step in steps]
    write_lines(run / f"metrics/inference_eval/{SENTENCES}/metrics.jsonl", lines)


def write_segment(run: pathlib.Path, end: int, *, reused: bool) -> None:
    record = edges.SegmentRecord(
        start=end - SEGMENT_STEPS,
        end=end,
        seconds=21.4 + end / 60,
        trained_steps=SEGMENT_STEPS,
        reused=reused,
        parent=checkpoint(run, end - SEGMENT_STEPS),
        checkpoint=checkpoint(run, end),
    )
    storage.write_json(run / f"records/segment-{end:08d}.json", record.model_dump())
    cursor = edges.Cursor(checkpoint=record.checkpoint)
    storage.write_json(run / f"records/actions-{end:08d}.json", cursor.model_dump())


def write_checkpoint(run: pathlib.Path, step: int) -> None:
    """Writes as much of a checkpoint as is looked at: the names of its files, and the record."""
    folder = run / f"checkpoints/{step}"
    leaves = {
        "params/decoder/scale": {"shape": [128], "dtype": "float32", "digest": "d"},
        "params/encoder/kernel": {"shape": [4, 8], "dtype": "float32", "digest": "e"},
        "opt_state/encoder/kernel": {"shape": [1000], "dtype": "float32", "digest": "f"},
    }
    place = {"total_steps": TOTAL_STEPS, "batch_size": 16}
    origin = {"seed": 0, "schedule": place} | dict.fromkeys(
        ("config_fingerprint", "dataset_fingerprint", "vocabulary_fingerprint"), "a"
    )
    record = {"step": step, "digest": "d", "leaves": leaves, "provenance": origin, "versions": {}}
    storage.write_json(folder / "record/metadata", record)
    for name in ("state/data", "seal.json", "commit_success.txt", "_CHECKPOINT_METADATA"):
        storage.write_text(folder / name, "")


def write_stage(run: pathlib.Path, stage: str, *, name: str = "", reused: bool = False, **fields: Any) -> None:
    reason = fields.pop("reason", "fingerprint 6f1d2c3b4a596877 unchanged" if reused else "no dataset yet")
    content = {"stage": stage, "name": name, "reused": reused, "reason": reason, "seconds": 0.4}
    content |= {"fingerprint": "", "uri": "", **fields}
    suffix = f"{stage}-{name}" if name else stage
    storage.write_json(run / f"records/stage-{suffix}.json", content)


def task_manifest(name: str, rows: int, fingerprint: str) -> manifest.Manifest:
    features = {
        "inputs": manifest.FeatureSpec(dtype="uint16", length=128),
        "targets": manifest.FeatureSpec(dtype="uint16", length=64),
    }
    train = manifest.SplitRecord(
        rows=rows,
        features=features,
        tokens={"inputs": rows * 97, "targets": rows * 31},
        pass_rows=(rows // 2, rows - rows // 2),
        truncated={"targets": 37},
        dropped={"empty target": 3},
        unknown_tokens=12,
    )
    validation = manifest.SplitRecord(
        rows=256, features=features, tokens={"inputs": 256 * 95, "targets": 256 * 30}, pass_rows=(256,)
    )
    return manifest.Manifest(
        kind="task",
        name=name,
        fingerprint=fingerprint,
        parts={"code": "b1c2d3e4f5061728", "text": "77aa88bb99cc00dd", "vocabulary": "aa11bb22cc33dd44"},
        splits={"train": train, "validation": validation},
        created="2026-11-30T20:59:00+00:00",
    )


def mixture_manifest(fingerprint: str, tasks: dict[str, manifest.Manifest]) -> manifest.Manifest:
    rates = dict(zip(tasks, (0.75, 0.25), strict=True))
    shares = {
        name: manifest.TaskShare(
            fingerprint=task.fingerprint,
            requested_rate=rates[name],
            realised_rate=rates[name] + 0.00012,
            reads=int(12000 * rates[name]),
            epochs=12000 * rates[name] / task.splits["train"].rows,
            tokens={
                "encoder_input_tokens": int(1.1e6 * rates[name]),
                "decoder_target_tokens": int(3.61e5 * rates[name]),
            },
            source=task.splits["train"],
        )
        for name, task in tasks.items()
    }
    packed = manifest.SplitRecord(
        rows=9216,
        features={"encoder_input_tokens": manifest.FeatureSpec(dtype="uint16", length=128)},
        tokens={
            "encoder_input_tokens": 1_100_000,
            "encoder_segment_ids": 1_100_000,
            "decoder_target_tokens": 361_000,
            "decoder_segment_ids": 361_000,
        },
    )
    return manifest.Manifest(
        kind="mixture",
        name="demo",
        fingerprint=fingerprint,
        parts={"code": "b1c2d3e4f5061729", "settings": "0011223344556677", "tasks": "8899aabbccddeeff"},
        splits={"train": packed},
        tasks=shares,
        packing=manifest.Packing(
            examples=12000,
            rows=9216,
            open_rows=64,
            efficiency={"encoder_input_tokens": 0.9325, "decoder_target_tokens": 0.6120},
        ),
        created="2026-11-30T20:59:30+00:00",
    )


def write_data(root: pathlib.Path, run: pathlib.Path, *, reused: bool) -> None:
    """Writes two task datasets and their mixture, with the records of the stages that made them."""
    tasks = {
        SPANS: task_manifest(SPANS, 5310, "1a2b3c4d5e6f7081"),
        SENTENCES: task_manifest(SENTENCES, 4004, "91a2b3c4d5e6f708"),
    }
    made = [("materialise", name, task) for name, task in tasks.items()]
    made.append(("assemble", "", mixture_manifest("0f1e2d3c4b5a6978", tasks)))
    for stage, name, content in made:
        uri = root / f"datasets/{content.name}-{content.fingerprint}"
        storage.write_text(uri / "manifest.json", manifest.render(content))
        write_stage(run, stage, name=name, reused=reused, fingerprint=content.fingerprint, uri=str(uri), seconds=6.21)


def build(
    root: pathlib.Path,
    *,
    name: str = "demo",
    steps: int = TOTAL_STEPS,
    reused: bool = False,
    nan_from: int | None = None,
) -> pathlib.Path:
    """Returns the directory of a run below `root` that has `steps` steps behind it and no summary yet.

    Args:
      root: the folder of runs.
      name: the run's.
      steps: a multiple of the segment's steps; 0 leaves what a run holds before its first segment.
      reused: as it reads when the same command was given again.
      nan_from: the step from which the training loss is NaN.
    """
    run = root / name
    storage.write_text(run / "config.yaml", CONFIG)
    identity = {"identity": "c0ffee00c0ffee00", "created": "2026-11-30T20:58:41+00:00", "name": name, "seed": 0}
    storage.write_json(run / "run.json", identity)
    again = "the same configuration" if reused else "a new run"
    write_stage(run, "resolve", reused=reused, reason=again, fingerprint="c0ffee00c0ffee00", uri=str(run))
    uri = str(root / "vocabularies/demo-aa11bb22cc33dd44")
    write_stage(run, "vocabulary", reused=reused, fingerprint="aa11bb22cc33dd44", uri=uri, seconds=4.8)
    write_data(root, run, reused=reused)
    write_stage(run, "verify", reused=False, reason="2,100 of 2,176 embedding rows are used; 0.01 % unknown")
    write_stage(run, "initialise", reused=reused, reason="checkpoint 0 committed" if reused else "no checkpoint yet")
    for end in range(SEGMENT_STEPS, steps + 1, SEGMENT_STEPS):
        write_segment(run, end, reused=reused)
        write_evaluation(run, end, reused=reused)
    if steps:
        write_checkpoint(run, steps)
        write_training(run, steps, nan_from)
        write_evaluation_curves(run, range(SEGMENT_STEPS, steps + 1, SEGMENT_STEPS))
    return run
