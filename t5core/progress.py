"""Progress as a person sees it: bars on a terminal, one plain line every few seconds anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

SECONDS_BETWEEN_LINES = 5.0


class Bar(Protocol):
    """A stage under way."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Counts `amount` more units and shows `figures` beside them."""
        ...


def say(line: str) -> None:
    """Prints one line at once."""
    print(line, flush=True)  # noqa: T201 - the one place that prints


@contextlib.contextmanager
def stage(name: str, *, total: int | None, unit: str, start: int = 0) -> Iterator[Bar]:
    """Shows a stage of `total` units, of which `start` are done already; None when the total is unknown."""
    if sys.stdout.isatty():
        with _rich_bar(name, total=total, unit=unit, start=start) as bar:
            yield bar
        return
    lines = _PlainLines(name, total=total, unit=unit, start=start)
    yield lines
    lines.close()


def _figures(figures: dict[str, float]) -> str:
    return "  ".join(f"{key} {value:.4g}" for key, value in figures.items())


class _PlainLines:
    def __init__(self, name: str, *, total: int | None, unit: str, start: int) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._done, self._first, self._said = start, start, start - 1
        self._began = self._spoke = time.monotonic()
        self._shown: dict[str, float] = {}

    def advance(self, amount: int = 1, **figures: float) -> None:
        self._done += amount
        self._shown.update(figures)
        if time.monotonic() - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            self._speak()

    def _speak(self, ending: str = "") -> None:
        self._said = self._done
        of = f"/{self._total}" if self._total is not None else ""
        figures = f"  {_figures(self._shown)}" if self._shown else ""
        say(f"  {self._name}: {self._done}{of} {self._unit}{figures}{ending}")

    def close(self) -> None:
        seconds = f"({time.monotonic() - self._began:.1f} s)"
        if self._done == self._said:
            say(f"  {self._name}: finished {seconds}")
        elif self._done > self._first:
            self._speak(f"  {seconds}")


@contextlib.contextmanager
def _rich_bar(name: str, *, total: int | None, unit: str, start: int) -> Iterator[Bar]:
    from rich import progress

    columns = (
        progress.TextColumn("  {task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[figures]}"),
    )
    with progress.Progress(*columns) as display:
        task = display.add_task(name, total=total, completed=start, unit=unit, figures="")
        yield _RichBar(display, task)


class _RichBar:
    def __init__(self, display, task) -> None:  # noqa: ANN001 - rich stays out of start-up
        self._display, self._task = display, task
        self._shown: dict[str, float] = {}

    def advance(self, amount: int = 1, **figures: float) -> None:
        self._shown.update(figures)
        self._display.update(self._task, advance=amount, figures=_figures(self._shown))
