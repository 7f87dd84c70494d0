"""A plot of curves over steps, as inline SVG.

Drawn by hand, not by a plotting library, so that colours come from the page's style sheet (and follow light, dark and
print), text stays text, and the same records give the same bytes in a few kilobytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from t5core.report import figures

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 14, 30
INSET = 12  # between the frame's sides and the first and the last step, so that no mark is cut in half
MOST_POINTS = 600
HUES = 7  # of tasks; training and the mixture have colours of their own
_CHARACTER = 7.5  # its width in a label, at most

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: of training (`color` 0), of a task (counted from 1), or of all of them together (`is_whole`).

    The colour picks hue, stroke and marker; `dots` marks each point, for sparse curves.
    """

    label: str
    points: tuple[Point, ...]
    color: int
    dots: bool
    is_whole: bool = False

    @property
    def finite(self) -> tuple[Point, ...]:
        """The points that can be drawn."""
        return tuple(point for point in self.points if math.isfinite(point[1]))

    @property
    def style(self) -> str:
        """The classes of the style sheet that make its stroke and its markers."""
        if self.is_whole:
            return "whole"
        if not self.color:
            return "c0"
        stroke = ("", " dashed", " dotted")[(self.color - 1) // 4 % 3]
        return f"c{1 + (self.color - 1) % HUES}{stroke}"

    def marker(self, x: float, y: float) -> str:
        """Returns the path of its marker at (x, y); tasks next to each other have different shapes."""
        shapes = (
            "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
            "m-3.2 -3.2h6.4v6.4h-6.4z",
            "m0 -4.4l4 7.2h-8z",
            "m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
        )
        return f"M{x:.1f} {y:.1f}{shapes[0 if self.is_whole else self.color % len(shapes)]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over steps. `boundaries` are steps where a segment ended, `evaluations` steps that were evaluated.

    The steps are drawn from `start` on. `bounds` are the least and the greatest value that there can be, None where
    they are not known; `unit` stands behind the numbers of the axis.
    """

    title: str
    lines: tuple[Line, ...]
    boundaries: tuple[int, ...] = ()
    evaluations: tuple[int, ...] = ()
    start: int = 0
    bounds: Point | None = None
    unit: str = ""
    from_zero: bool = False

    @property
    def note(self) -> str:
        """What the curves leave out, in a sentence; '' when nothing."""
        broken = [(line.label, step, value) for line in self.lines for step, value in _broken(line)[:1]]
        notes = [f"{label}: {figures.number(value)} at step {int(step):,}" for label, step, value in broken]
        thinned = [math.ceil(len(line.points) / MOST_POINTS) for line in self.lines if len(line.points) > MOST_POINTS]
        if thinned:
            notes.append(f"a point is the mean of {max(thinned)} records")
        return "; ".join(notes)

    @property
    def svg(self) -> Markup:
        """The chart without its title and legend, which the page sets as text around it."""
        return _draw(self)


def _broken(line: Line) -> list[Point]:
    return [point for point in line.points if not math.isfinite(point[1])]


def ticks(low: float, high: float, *, most: int) -> tuple[float, ...]:
    """Returns round values inside [low, high]: multiples of 1, 2 or 5 times a power of ten, `most` steps or fewer."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1))


def tick_labels(values: Sequence[float]) -> list[str]:
    """Returns the labels of `ticks`, no two alike: as many decimals as the step between them needs, thousands as k."""
    step = values[1] - values[0] if len(values) > 1 else abs(values[0])
    if max(map(abs, values)) >= 1e4:
        return [_in_thousands(value) for value in values]
    if step < 1e-4:
        return [figures.number(value) for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}" if value else "0" for value in values]


def _in_thousands(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Returns at most MOST_POINTS points: the means of equal runs of `points`, or `points` when they are few."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return tuple(points)
    runs = (points[start : start + size] for start in range(0, len(points), size))
    return tuple((sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Frame:
    """The rectangle that values are drawn into."""

    steps: Point
    values: Point

    def x(self, step: float) -> float:
        low, high = self.steps
        return LEFT + INSET + (WIDTH - LEFT - RIGHT - 2 * INSET) * (step - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.values
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def at(self, point: Point) -> str:
        return f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}"


def _frame(chart: Chart) -> _Frame | None:
    """Returns a frame around everything finite; None when nothing is."""
    finite = [value for line in chart.lines for _, value in line.finite]
    if not finite:
        return None
    last = max(step for line in chart.lines for step, _ in line.points)
    return _Frame(steps=(float(chart.start), max(last, chart.start + 1.0)), values=_range(chart, finite))


def _range(chart: Chart, values: Sequence[float]) -> Point:
    """Returns the least and the greatest value of the axis: all that can be where that is known, else with a margin."""
    low, high = min(values), max(values)
    if chart.bounds is not None:
        return min(low, chart.bounds[0]), max(high, chart.bounds[1])
    low = min(low, 0.0) if chart.from_zero else low
    # A curve that stands still would otherwise be all rounding noise.
    margin = 0.06 * (high - low) if high - low > 1e-3 * abs(high) else 0.5 * abs(high) or 1.0
    return 0.0 if 0 <= low < margin else low - margin, high + margin


def _draw(chart: Chart) -> Markup:
    frame = _frame(chart)
    name = escape(f"{chart.title} by step: {'; '.join(map(_in_words, chart.lines))}")
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, name)
    if frame is None:
        text = f'<text class="empty" x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}">no finite value was recorded</text>'
        return Markup("{}{}</svg>").format(head, Markup(text))
    parts = itertools.chain(_axes(chart, frame), _marks(chart, frame), *(_curve(line, frame) for line in chart.lines))
    return Markup("{}{}</svg>").format(head, Markup("").join(parts))


def _in_words(line: Line) -> str:
    (first, before), (last, after) = line.points[0], line.points[-1]
    return (
        f"{line.label} {figures.number(before)} at step {int(first):,}, {figures.number(after)} at step {int(last):,}"
    )


def _axes(chart: Chart, frame: _Frame) -> Iterator[Markup]:
    values = ticks(*frame.values, most=6)
    for value, label in zip(values, tick_labels(values), strict=True):
        y = f"{frame.y(value):.1f}"
        yield Markup(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        yield Markup('<text class="left" x="{}" y="{}">{}{}</text>').format(LEFT - 7, y, label, chart.unit)
    for x, label in _step_labels(frame):
        yield Markup('<text class="below" x="{}" y="{}">{}</text>').format(f"{x:.1f}", HEIGHT - 9, label)
    yield Markup(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')


def _step_labels(frame: _Frame) -> list[tuple[float, str]]:
    """Returns the labels below the axis and the middle of each: the first and the last step, and round ones between.

    A round one that would run into the first or the last is left out.
    """
    first, last = map(round, frame.steps)
    round_steps = [step for step in ticks(*frame.steps, most=6) if step == int(step)]
    between = {step: label for step, label in zip(round_steps, tick_labels(round_steps), strict=True)}
    ends = {step: between.pop(step, f"{step:,}") for step in (first, last)}

    def placed(step: float, label: str) -> tuple[float, str]:
        return min(frame.x(step), WIDTH - 2 - _CHARACTER * len(label) / 2), label

    outer = [placed(step, label) for step, label in ends.items()]
    inner = [placed(step, label) for step, label in between.items()]
    fitting = [label for label in inner if not any(_touch(label, end) for end in outer)]
    return sorted([*outer, *fitting])


def _touch(one: tuple[float, str], other: tuple[float, str]) -> bool:
    return abs(one[0] - other[0]) < _CHARACTER * (len(one[1]) + len(other[1]) + 2) / 2


def _marks(chart: Chart, frame: _Frame) -> Iterator[Markup]:
    base = HEIGHT - BOTTOM
    for step in chart.boundaries:
        if frame.steps[0] <= step <= frame.steps[1]:
            x = f"{frame.x(step):.1f}"
            title = f"<title>a segment ends at step {step:,}</title>"
            yield Markup(f'<path class="boundary" d="M{x} {TOP}V{base}">{title}</path>')
    for step in chart.evaluations:
        if frame.steps[0] <= step <= frame.steps[1]:
            x = f"{frame.x(step):.1f}"
            title = f"<title>evaluated at step {step:,}</title>"
            yield Markup(f'<path class="evaluated" d="M{x} {base + 2}l-4 6h8z">{title}</path>')


def _curve(line: Line, frame: _Frame) -> Iterator[Markup]:
    groups = itertools.groupby(thinned(line.points), key=lambda point: math.isfinite(point[1]))
    paths = ["M" + "L".join(map(frame.at, points)) for finite, points in groups if finite]
    yield Markup(f'<path class="line {line.style}" d="{"".join(paths)}"/>')
    if line.dots:
        for step, value in line.finite:
            title = escape(f"{line.label}, step {int(step):,}: {figures.number(value)}")
            yield Markup('<path class="dot {}" d="{}"><title>{}</title></path>').format(
                line.style, line.marker(frame.x(step), frame.y(value)), title
            )
    for step, value in _broken(line)[:1]:
        x = f"{frame.x(step):.1f}"
        title = escape(f"{line.label}: {figures.number(value)} at step {int(step):,}")
        yield Markup('<path class="broken" d="M{} {}l8 8m0 -8l-8 8"><title>{}</title></path>').format(
            f"{float(x) - 4:.1f}", TOP, title
        )
