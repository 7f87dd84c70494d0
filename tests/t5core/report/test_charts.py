from __future__ import annotations

import itertools
import math
import pathlib
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5core.config import edges
from t5core.report import charts, plot
from t5core.report.gather import LOSS, gather
from tests.t5core.report import fake_run


def chart_of(*points: tuple[float, float], dots: bool = False, label: str = "training", **more: Any) -> plot.Chart:
    line = plot.Line(label=label, points=points, color=0, dots=dots)
    return plot.Chart(title="Loss", lines=(line,), boundaries=(60,), evaluations=(60, 120), **more)


def labels_of(chart: plot.Chart, side: str) -> list[str]:
    return [part.text or "" for part in ET.fromstring(chart.svg).iter("text") if part.get("class") == side]


def elements(chart: plot.Chart, name: str) -> list[ET.Element]:
    return [part for part in ET.fromstring(chart.svg).iter("path") if part.get("class", "").startswith(name)]


def coordinates(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+),([\d.]+)", path.get("d", ""))]


def values_at(chart: plot.Chart, drawn: list[tuple[float, float]]) -> list[float]:
    """Reads values off a chart with its own tick labels, as an eye does."""
    labels = [part for part in ET.fromstring(chart.svg).iter("text") if part.get("class") == "left"]
    marks = [(float(part.get("y", "")), float((part.text or "").replace(",", ""))) for part in labels]
    (low_y, low), (high_y, high) = marks[0], marks[-1]
    return [low + (y - low_y) * (high - low) / (high_y - low_y) for _, y in drawn]


def test_the_charts_of_a_run_hold_its_metrics(run: pathlib.Path):
    drawn = {chart.title: chart for chart in charts.of_run(gather(str(run)))}
    assert list(drawn) == [
        "Loss per target token",
        "Accuracy of the next token",
        "Learning rate",
        "Target tokens per second",
        "docstring_first_sentence: exact_match",
        "docstring_first_sentence: token_f1",
    ]
    loss = drawn["Loss per target token"]
    assert [line.label for line in loss.lines] == ["training", *(f"{task}, validation" for task in fake_run.TASKS)]
    assert loss.lines[0].points[-1] == (240, fake_run.training_loss(240))
    spans = next(line for line in loss.lines if line.label.startswith(fake_run.SPANS))
    assert spans.points[-1] == (240, fake_run.evaluation_metrics(240)[fake_run.SPANS][LOSS])
    assert (loss.boundaries, loss.evaluations) == ((60, 120, 180, 240), (60, 120, 180, 240))
    assert len({line.color for line in loss.lines}) == 3
    scores = drawn["docstring_first_sentence: token_f1"].lines[0]
    assert scores.color == next(line.color for line in loss.lines if line.label.startswith(fake_run.SENTENCES))


def test_a_curve_can_be_read_off_with_the_tick_labels():
    chart = chart_of((1, 7.6), (60, 4.1), (120, 2.9))
    path = elements(chart, "line")[0]
    assert values_at(chart, coordinates(path)) == pytest.approx([7.6, 4.1, 2.9], abs=0.02)


def test_boundaries_and_evaluations_are_marked():
    chart = chart_of((1, 3.0), (120, 2.0))
    assert [part.findtext("title") for part in elements(chart, "boundary")] == ["a segment ends at step 60"]
    assert [part.findtext("title") for part in elements(chart, "evaluated")] == [
        "evaluated at step 60",
        "evaluated at step 120",
    ]


def test_points_of_a_sparse_curve_show_their_value():
    chart = chart_of((60, 0.25), (120, 0.5), dots=True)
    titles = [part.findtext("title") for part in elements(chart, "dot")]
    assert titles == ["training, step 60: 0.25", "training, step 120: 0.5"]


def test_a_lost_value_breaks_the_curve_and_is_told():
    chart = chart_of((1, 3.0), (2, 2.5), (3, math.nan), (4, 2.0), (5, 1.5))
    assert elements(chart, "line")[0].get("d", "").count("M") == 2
    assert [part.findtext("title") for part in elements(chart, "broken")] == ["training: NaN at step 3"]
    assert chart.note == "training: NaN at step 3"


def test_a_curve_without_a_finite_value_says_so():
    assert "no finite value was recorded" in chart_of((1, math.nan), (2, math.inf)).svg


@pytest.mark.parametrize("points", [((0, 0.0),), ((5, 3.0),), ((1, 0.01), (240, 0.01)), ((1, 1e-6), (2, 1e9))])
def test_degenerate_curves_are_drawn_inside_the_frame(points: tuple[tuple[float, float], ...]):
    for x, y in coordinates(elements(chart_of(*points), "line")[0]):
        assert 0 <= x <= plot.WIDTH
        assert 0 <= y <= plot.HEIGHT


def test_names_are_escaped():
    chart = chart_of((1, 2.0), (2, math.nan), dots=True, label='<script>"&')
    ET.fromstring(chart.svg)
    assert "<script>" not in chart.svg
    assert elements(chart, "dot")[0].findtext("title") == '<script>"&, step 1: 2'


def test_a_chart_reads_as_words_too():
    label = ET.fromstring(chart_of((1, 7.5), (240, 2.25)).svg).get("aria-label")
    assert label == "Loss by step: training 7.5 at step 1, 2.25 at step 240"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_inside_and_no_two_labels_are_alike(low: float, width: float):
    if width < 1e-3 * abs(low):
        return
    values = plot.ticks(low, low + width, most=6)
    slack = 1e-6 * width
    assert 2 <= len(values) <= 7
    assert all(low - slack <= value <= low + width + slack for value in values)
    step = values[1] - values[0]
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 3) in (1, 2, 5)
    assert len(set(plot.tick_labels(values))) == len(values)


def test_tick_labels_are_short():
    assert plot.tick_labels([2.0, 2.5, 3.0]) == ["2.0", "2.5", "3.0"]
    assert plot.tick_labels([0.0, 2000.0, 4000.0]) == ["0", "2,000", "4,000"]
    assert plot.tick_labels([0.0, 20000.0]) == ["0", "20k"]
    assert plot.tick_labels([0.0, 2e-5, 4e-5]) == ["0", "2e-5", "4e-5"]


def test_a_long_curve_is_thinned_to_means_and_says_so():
    points = tuple((step, float(step % 2)) for step in range(6000))
    thin = plot.thinned(points)
    assert len(thin) == plot.MOST_POINTS
    assert {value for _, value in thin} == {0.5}
    assert chart_of(*points).note == "a point is the mean of 10 records"
    assert plot.thinned(points[:600]) == points[:600]


def test_the_axis_ends_with_the_last_step_and_begins_where_the_run_began():
    assert labels_of(chart_of((1, 7.0), (240, 2.0)), "below") == ["0", "50", "100", "150", "200", "240"]
    assert labels_of(chart_of((21, 7.0), (41, 2.0), start=20), "below") == ["20", "25", "30", "35", "41"]
    assert labels_of(chart_of((60, 7.0), dots=True), "below")[-1] == "60"
    assert labels_of(chart_of((1, 7.0), (1_000_123, 2.0)), "below")[-1] == "1,000,123"


@given(st.integers(0, 10**7), st.integers(1, 10**7))
def test_labels_of_steps_never_run_into_each_other(start: int, steps: int):
    svg = ET.fromstring(chart_of((start + steps, 1.0), start=start).svg)
    found = [(float(part.get("x", "")), part.text or "") for part in svg.iter("text") if part.get("class") == "below"]
    for (left, text), (right, following) in itertools.pairwise(found):
        assert right - left >= 7 * (len(text) + len(following)) / 2
    assert all(x + 7 * len(text) / 2 <= plot.WIDTH for x, text in found)


def test_a_mark_on_the_first_or_the_last_step_is_whole():
    (first, _), (last, _) = coordinates(elements(chart_of((60, 2.0), (120, 1.0), start=60, dots=True), "line")[0])
    assert first >= plot.LEFT + 5
    assert last <= plot.WIDTH - plot.RIGHT - 5


@pytest.mark.parametrize("value", [0.0, 3.6, 100.0])
def test_a_percentage_is_drawn_from_nothing_to_all(run: pathlib.Path, value: float):
    lines = [{"step": step, "exact_match": value, "length_limit_fraction": 0.0} for step in (60, 120)]
    fake_run.write_lines(run / f"metrics/inference_eval/{fake_run.SENTENCES}/metrics.jsonl", lines)
    exact, limited = charts.of_run(gather(str(run)))[-2:]
    assert (exact.title, limited.title) == tuple(
        f"{fake_run.SENTENCES}: {metric}" for metric in ("exact_match", "length_limit_fraction")
    )
    assert labels_of(exact, "left") == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert labels_of(limited, "left") == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]


def test_the_learning_rate_is_that_of_its_step(run: pathlib.Path):
    rate = next(chart for chart in charts.of_run(gather(str(run))) if chart.title == "Learning rate")
    assert max(rate.lines[0].points, key=lambda point: point[1]) == (30, fake_run.learning_rate(30))


def test_tasks_come_in_the_order_of_the_configuration_and_the_mixture_last_and_heavier(run: pathlib.Path):
    lines = [{"step": 60, LOSS: 3.0}, {"step": 120, LOSS: 2.0}]
    for task in ("zebra", "mixture"):
        fake_run.write_lines(run / f"metrics/training_eval/{task}/metrics.jsonl", lines)
    loss = charts.of_run(gather(str(run)))[0]
    names = [line.label.removesuffix(", validation") for line in loss.lines]
    assert names == ["training", *fake_run.TASKS, "zebra", "mixture"]
    assert [line.is_whole for line in loss.lines] == [False, False, False, False, True]


def test_many_tasks_are_told_apart():
    lines = [plot.Line(label="", points=(), color=color, dots=True) for color in range(1, 15)]
    assert len({line.style for line in lines}) == len(lines)
    assert all(one.marker(0, 0) != other.marker(0, 0) for one, other in itertools.pairwise(lines))


def test_checkpoints_that_are_compared_have_curves():
    first, second = (
        edges.Evaluation(
            step=step,
            checkpoint=fake_run.checkpoint(pathlib.Path("run"), step),
            metrics=fake_run.evaluation_metrics(step),
            seconds=1.0,
            reused=False,
            uri="",
        )
        for step in (180, 240)
    )
    drawn = charts.of_evaluations([first, second], fake_run.TASKS)
    assert [chart.title for chart in drawn] == [
        "Loss per target token",
        "Accuracy of the next token",
        f"{fake_run.SENTENCES}: exact_match",
        f"{fake_run.SENTENCES}: token_f1",
    ]
    assert drawn[2].lines[0].points == ((180, 1.5625), (240, 9.375))
    assert all(chart.start == 180 for chart in drawn)
    assert charts.of_evaluations([second], fake_run.TASKS) == ()
