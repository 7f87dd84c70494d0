"""Runs `pyflyte` as a user does, on a text small enough for seconds."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
PYFLYTE = pathlib.Path(sys.executable).parent / "pyflyte"

SENTENCE = "the cat sat on a mat while seven small dogs ran over green hills and one old bird sang of rain"
WORDS = SENTENCE.split(" ")

CONFIG = """\
run: {{name: tiny, root: {root}, seed: 3}}
model:
  {{emb_dim: 16, num_heads: 2, head_dim: 8, mlp_dim: 32, num_encoder_layers: 1, num_decoder_layers: 1, vocab_size: 384}}
data:
  feature_lengths: {{inputs: 24, targets: 16}}
  vocabulary: {{size: 300, extra_ids: 20}}
  tasks:
    - {{name: text, files: ["{text}/*.txt"], validation_fraction: 0.1, max_validation_examples: 8}}
    - name: copy
      files: ["{text}/*.tsv"]
      objective: supervised
      inputs: "say {{word}}"
      targets: "{{word}}"
      metrics: [exact_match]
      validation_fraction: 0.2
      max_validation_examples: 8
train:
  total_steps: 12
  segment_steps: 4
  batch_size: 4
  checkpoint_period: 2
  eval_period: 4
  learning_rate: {{base_learning_rate: 0.1, warmup_steps: 10}}
  actions:
    - {{name: terminate_on_nan, task: text}}
evaluate: {{batch_size: 8, decode: {{max_examples: 4}}}}
"""


def write_text(folder: pathlib.Path) -> None:
    """Writes numbered lines, no two alike, as text and as a table."""
    folder.mkdir(parents=True)
    lines = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 14)) + f" {i}" for i in range(120)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.tsv").write_text("word\n" + "".join(f"{word} {i}\n" for i, word in enumerate(WORDS * 3)))


def write_config(folder: pathlib.Path, *, root: pathlib.Path, text: pathlib.Path) -> pathlib.Path:
    """Writes the config of a run under `root` that reads `text`."""
    file = folder / "tiny.yaml"
    file.write_text(CONFIG.format(root=root, text=text))
    return file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended; `lines` is everything that it printed."""

    code: int
    text: str
    seconds: float

    @property
    def error(self) -> str:
        """The last line that is not blank."""
        return next(line for line in reversed(self.text.splitlines()) if line.strip()).strip()


def start(
    *arguments: str, workflow: str = "pretrain", cwd: pathlib.Path = ROOT, home: pathlib.Path | None = None
) -> subprocess.Popen[str]:
    """Starts `pyflyte run workflows/<workflow>.py ...` in a process group of its own."""
    environment = {**os.environ, "COLUMNS": "200", **({"HOME": str(home)} if home else {})}
    command = [str(PYFLYTE), "run", str(ROOT / "workflows" / f"{workflow}.py"), *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, timeout: float = 240) -> Done:
    """Waits for a started command."""
    began = time.monotonic()
    text, _ = process.communicate(timeout=timeout)
    return Done(code=process.returncode, text=text, seconds=time.monotonic() - began)


def run(*arguments: str, **settings) -> Done:
    """Runs a command to its end."""
    return finish(start(*arguments, **settings))


def kill_when(process: subprocess.Popen[str], condition, *, how: int = signal.SIGKILL, timeout: float = 240) -> bool:
    """Signals the whole process group as soon as `condition()` holds; False when the command ended before."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and process.poll() is None:
        if condition():
            os.killpg(process.pid, how) if how == signal.SIGKILL else process.send_signal(how)
            return True
        time.sleep(0.005)
    return False


def summary(root: pathlib.Path, name: str = "tiny") -> dict:
    """Reads the summary of a run."""
    return json.loads((root / name / "summary.json").read_text())
