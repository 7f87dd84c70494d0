"""Metrics by step: lines of JSON first, TensorBoard's event files beside them."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from etils import epath

from t5core import errors, storage
from t5core.metrics import json_numbers

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FILE = "metrics.jsonl"
_SECONDS_BETWEEN_UPLOADS = 30.0


class MetricWriter:
    """Writes one line for each step into `folder`, after the lines up to `resume_step` that are there already.

    Lines of later steps are dropped when the writer is opened: a run that was killed takes those steps again. On a
    disk a line is with the system when `write` returns; in an object store, where nothing can be appended to, each
    writer fills a file of its own and uploads it at `flush`, at `close` and twice a minute. So `flush` belongs before
    a checkpoint is committed.
    """

    def __init__(self, folder: str, resume_step: int, *, tensorboard: bool = True) -> None:
        self._folder = storage.path(folder)
        self._last_step = resume_step
        _drop_after(self._folder, resume_step)
        self._lines = _RemoteLines(self._folder, resume_step) if storage.is_remote(folder) else _Lines(self._folder)
        # The events of the dropped steps stay in their files; this tells TensorBoard not to show them.
        self._events = _event_writer(folder, purge_step=resume_step + 1) if tensorboard else None

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the line of `step`; the values are anything that `float` takes.

        Raises:
          RunDirectoryError: no space, or no right to write.
        """
        assert step > self._last_step, f"step {step} was written already; the last one is {self._last_step}"
        assert "step" not in metrics, "the key 'step' is the line's own"
        numbers = {name: float(value) for name, value in metrics.items()}
        self._lines.append(json.dumps({"step": step, **json_numbers.encode(numbers)}, allow_nan=False))
        self._last_step = step
        if self._events is not None:
            for name, number in numbers.items():
                self._events.add_scalar(name, number, global_step=step)

    def flush(self) -> None:
        """Returns when every line is stored."""
        self._lines.flush()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


def read_metrics(folder: str) -> list[dict[str, Any]]:
    """Returns the lines of the writers of `folder` as dicts, by ascending step; empty when there are none.

    A last line that a killed writer left unfinished is passed over.

    Raises:
      IntegrityError: another line is damaged; the message has the file and the line.
    """
    rows = [row for part in _parts(storage.path(folder)) for row in _read_part(part)]
    return sorted(rows, key=lambda row: row["step"])


class _Lines:
    def __init__(self, folder: epath.Path) -> None:
        self._path = folder / FILE
        with _refusals(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._handle: IO[str] = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - until `close`

    def append(self, line: str) -> None:
        with _refusals(self._path):
            self._handle.write(line + "\n")
            self._handle.flush()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._handle.close()


class _RemoteLines:
    def __init__(self, folder: epath.Path, resume_step: int) -> None:
        self._path = folder / f"metrics-{resume_step + 1:012d}.jsonl"
        self._pending: list[str] = []
        self._stored = ""
        self._uploaded_at = time.monotonic()

    def append(self, line: str) -> None:
        self._pending.append(line + "\n")
        if time.monotonic() - self._uploaded_at > _SECONDS_BETWEEN_UPLOADS:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        content = self._stored + "".join(self._pending)
        storage.write_text(self._path, content)
        self._stored, self._pending = content, []
        self._uploaded_at = time.monotonic()

    def close(self) -> None:
        self.flush()


@contextlib.contextmanager
def _refusals(path: epath.Path) -> Iterator[None]:
    """Says in one line what the system refused."""
    try:
        yield
    except OSError as error:
        raise storage.write_refused(path, error) from error


def _event_writer(folder: str, *, purge_step: int) -> SummaryWriter:
    from tensorboardX import SummaryWriter  # a second of imports

    # The suffix tells writers apart that start within one second: their files would have one name otherwise.
    return SummaryWriter(folder, purge_step=purge_step, filename_suffix=f".{purge_step}")


def _parts(folder: epath.Path) -> list[epath.Path]:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return [folder / name for name in sorted(names) if re.fullmatch(r"metrics(-\d+)?\.jsonl", name)]


def _drop_after(folder: epath.Path, resume_step: int) -> None:
    """Rewrites the files of `folder` without the lines of steps after `resume_step`."""
    for part in _parts(folder):
        content = part.read_bytes()
        kept = _up_to(content, resume_step, source=part)
        if kept != content:
            storage.write_bytes(part, kept)


def _up_to(content: bytes, step: int, *, source: epath.Path) -> bytes:
    """Returns the lines of `content` up to `step`; looks from the end, where the steps are that go."""
    end = content.rfind(b"\n") + 1  # what comes after was cut short by a kill
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        if _parse(content[start:end], source=source, line=None)["step"] <= step:
            break
        end = start
    return content[:end]


def _read_part(part: epath.Path) -> list[dict[str, Any]]:
    lines = part.read_bytes().split(b"\n")[:-1]
    return [_parse(line, source=part, line=number) for number, line in enumerate(lines, start=1)]


def _parse(text: bytes, *, source: epath.Path, line: int | None) -> dict[str, Any]:
    where = f"{source}, line {line}" if line else f"{source}, near its end,"
    try:
        row = json.loads(text)
    except ValueError as error:
        raise errors.IntegrityError(f"{where} is not JSON: {text[:60]!r}; remove that line") from error
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise errors.IntegrityError(f"{where} has no step: {text[:60]!r}; remove that line")
    return {key: json_numbers.decode(value) for key, value in row.items()}
