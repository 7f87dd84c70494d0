from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5core import counting
from t5core.report import figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (-0.0, "0"),
        (240, "240"),
        (1234567, "1,234,567"),
        (7.6287, "7.629"),
        (0.46132, "0.4613"),
        (1234.4, "1,234"),
        (999.6, "1,000"),
        (3.25e-5, "3.25e-5"),
        (-2e-4, "-2e-4"),
        (1e20, "1e20"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, shown: str):
    assert figures.number(value) == shown


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_a_shown_number_is_within_a_half_percent_of_the_recorded_one(value: float):
    assert float(figures.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@given(st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1))
def test_numbers_of_a_column_are_as_exact_as_its_largest_needs(values: list[float]):
    tolerance = 5.1e-4 * max(map(abs, values))
    for value, shown in zip(values, figures.column(values), strict=True):
        assert float(shown.replace(",", "")) == pytest.approx(value, rel=5.1e-3, abs=tolerance)


def test_numbers_of_a_column_align_and_keep_what_is_not_finite():
    assert figures.column([5.386, 4.5, 12.0, math.nan]) == ["5.39", "4.50", "12.00", "NaN"]
    assert figures.column([60, 12000]) == ["60", "12,000"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.01, "0 s"),
        (0.44, "0.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (92, "1 min 32 s"),
        (7530, "2 h 05 min"),
    ],
)
def test_durations_show_two_units(seconds: float, shown: str):
    assert figures.duration(seconds) == shown


def test_a_change_is_told_only_where_it_means_something():
    assert figures.change(8.0, 2.0) == "−75 %"
    assert figures.change(2.0, 3.0) == "+50 %"
    assert figures.change(0.0, 3.0) == figures.change(3.0, math.nan) == figures.change(math.inf, 3.0) == ""


def test_an_amount_of_one_has_no_plural():
    assert [counting.count(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    assert [counting.count(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_metrics_of_ours_are_headed_by_their_unit():
    assert [figures.heading(name) for name in ("exact_match", "length_limit_fraction", "mine")] == [
        "exact_match (%)",
        "length_limit_fraction",
        "mine",
    ]
    assert [figures.bounds(name) for name in ("chrf", "length_limit_fraction", "loss")] == [(0, 100), (0, 1), None]
