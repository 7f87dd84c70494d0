"""Kills a small run at random moments, resumes it, and compares its end with that of a run that nobody disturbed.

`make torture`, or `python -m tests.torture --kills 50 --seed 0`. Each life is the whole command, `pyflyte run
workflows/pretrain.py`, in a process group of its own, which SIGKILL ends at once: some time after its start or after
one of its commits, drawn evenly from all of them. Lives are forked from a process that has imported everything, so
that most of their time is the run's. Data and compiled programs are there; every run starts from its seed. Exits with
1 when a run ends in other bits, or does not end.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

from t5core.checkpoints import index
from t5core.rundir import RunDirectory
from tests.workflows import command_line

_LONGEST_LIFE_SECONDS = 300.0
_COMMITS = (0, 2, 4, 6, 8, 10)
_LAST_STEP = 12
_NEEDED = (
    "flytekit.clis.sdk_in_container.pyflyte",
    "orbax.checkpoint",
    "t5core.evaluation.checkpoint",
    "t5core.report.page",
    "t5core.training",
    "workflows.pretrain",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that was killed `killed_after` seconds from its start; `step` was its last commit, None before the first.

    `digest` is what it came to after it was resumed, '' when it did not get there.
    """

    killed_after: float
    step: int | None
    digest: str
    seconds: float


def main(arguments: list[str]) -> int:
    """Returns 0 when every killed run ended in the bits of the undisturbed one; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=pathlib.Path, help="where data, runs and tiny.yaml lie already")
    asked = parser.parse_args(arguments)
    _import_everything()
    if asked.folder is not None:
        return torture(asked.folder, kills=asked.kills, seed=asked.seed)
    with tempfile.TemporaryDirectory(prefix="torture-") as made:
        folder = pathlib.Path(made)
        command_line.write_text(folder / "text")
        config = command_line.write_config(folder, root=folder / "runs", text=folder / "text")
        _live(config, "first", folder)  # makes the data and compiles
        return torture(folder, kills=asked.kills, seed=asked.seed)


def torture(folder: pathlib.Path, *, kills: int, seed: int) -> int:
    """Returns 0 when all of `kills` runs ended in the same bits as an undisturbed one; works in `folder`."""
    config = folder / "tiny.yaml"
    began = time.monotonic()
    expected = _live(config, "undisturbed", folder)
    whole = time.monotonic() - began
    _say(f"undisturbed: {whole:.1f} s, state digest {expected[:16]}")
    _say(f"{'run':>4}  {'killed after':>12}  {'last commit':>11}  {'resumed in':>10}  digest")
    luck, same = random.Random(seed), 0
    number = 0
    while number < kills:
        moment = (luck.choice((None, *_COMMITS)), luck.uniform(0.0, whole / len(_COMMITS)))
        outcome = _killed_and_resumed(config, f"run-{number + 1}", folder, moment=moment)
        if outcome is None:
            shutil.rmtree(folder / "runs" / f"run-{number + 1}")  # it ended before its moment came: another
            continue
        number += 1
        same += outcome.digest == expected
        _say(_row(number, outcome, expected))
    _say(f"{same} of {kills} runs ended in the undisturbed digest")
    return 0 if same == kills else 1


def _import_everything() -> None:
    """Imports what a life needs; no backend of JAX is made and no thread is started, so forks are safe."""
    for name in _NEEDED:
        importlib.import_module(name)


def _killed_and_resumed(
    config: pathlib.Path, name: str, folder: pathlib.Path, *, moment: tuple[int | None, float]
) -> Outcome | None:
    """Returns None when the run ended before the moment came: some seconds after a commit (None: after the start)."""
    commit, seconds = moment
    life = _begin(config, name, folder)
    began = time.monotonic()
    came = began if commit is None else None
    while came is None or time.monotonic() - came < seconds:
        if os.waitpid(life, os.WNOHANG)[0] == life:
            return None
        if came is None and _has_committed(folder, name, commit):
            came = time.monotonic()
        time.sleep(0.002)
    after = time.monotonic() - began
    os.killpg(life, signal.SIGKILL)
    os.waitpid(life, 0)
    step = index.latest(_checkpoints(folder, name))
    resumed = time.monotonic()
    try:
        digest = _live(config, name, folder)
    except RuntimeError as error:
        _say(str(error))
        digest = ""
    return Outcome(killed_after=after, step=step, digest=digest, seconds=time.monotonic() - resumed)


def _live(config: pathlib.Path, name: str, folder: pathlib.Path) -> str:
    """Runs the command to its end; returns the digest of the last checkpoint.

    Raises:
      RuntimeError: it failed, or took too long.
    """
    life = _begin(config, name, folder)
    deadline = time.monotonic() + _LONGEST_LIFE_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(life, os.WNOHANG)
        if ended:
            if status:
                raise RuntimeError(f"{name} failed: {_log(folder, name).read_text()[-2000:]}")
            step = index.latest(_checkpoints(folder, name))
            assert step == _LAST_STEP, f"{name} ended at step {step}"
            return index.reference(_checkpoints(folder, name), step).digest
        time.sleep(0.01)
    os.killpg(life, signal.SIGKILL)
    os.waitpid(life, 0)
    raise RuntimeError(f"{name} did not end: {_log(folder, name).read_text()[-2000:]}")


def _begin(config: pathlib.Path, name: str, folder: pathlib.Path) -> int:
    """Starts the command in a process group of its own; returns its process id."""
    sys.stdout.flush()
    life = os.fork()
    if life:
        while os.getpgid(life) != life:
            time.sleep(0.0005)
        return life
    code = 1
    try:
        os.setsid()
        log = os.open(_log(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from flytekit.clis.sdk_in_container.pyflyte import main as pyflyte

        script = str(command_line.ROOT / "workflows" / "pretrain.py")
        override = f'["run.name={name}"]'
        pyflyte.main(args=["run", script, "--config", str(config), "--overrides", override], standalone_mode=False)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _has_committed(folder: pathlib.Path, name: str, step: int | None) -> bool:
    latest = index.latest(_checkpoints(folder, name))
    return latest is not None and step is not None and latest >= step


def _checkpoints(folder: pathlib.Path, name: str) -> str:
    return RunDirectory(str(folder / "runs" / name)).checkpoints_uri


def _log(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"{name}.log"


def _row(number: int, outcome: Outcome, expected: str) -> str:
    step = "none" if outcome.step is None else str(outcome.step)
    verdict = "the same" if outcome.digest == expected else "DIFFERENT"
    times = f"{outcome.killed_after:>10.2f} s  {step:>11}  {outcome.seconds:>8.1f} s"
    return f"{number:>4}  {times}  {outcome.digest[:16]} {verdict}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
