"""When schedules fire: a function of its arguments, once a day whatever the clocks do."""

import datetime
import itertools

import pytest

from t5core import cron, errors

LONDON = "Europe/London"


def at(text):
    """Reads an instant of UTC."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def fires(expression, timezone, after, count):
    found = [at(after)]
    for _ in range(count):
        found.append(cron.next_fire(expression, timezone, found[-1]))
    return [instant.astimezone(datetime.UTC).strftime("%m-%d %H:%M") for instant in found[1:]]


def test_the_hour_is_that_of_the_zone_s_clocks():
    assert fires("0 6 * * *", LONDON, "2026-01-10", 2) == ["01-10 06:00", "01-11 06:00"]
    assert fires("0 6 * * *", LONDON, "2026-07-10", 2) == ["07-10 05:00", "07-11 05:00"]
    assert fires("30 23 * * *", "Asia/Kolkata", "2026-01-10", 1) == ["01-10 18:00"]
    fire = cron.next_fire("0 6 * * *", LONDON, at("2026-07-10"))
    assert (fire.hour, str(fire.tzinfo)) == (6, LONDON)


def test_an_instant_at_which_it_fires_is_followed_by_the_next():
    assert fires("0 6 * * *", "UTC", "2026-01-10T06:00", 1) == ["01-11 06:00"]
    assert fires("0 6 * * *", "UTC", "2026-01-10T05:59:59", 1) == ["01-10 06:00"]


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("30 1 * * *", "2026-03-28T02:00", ["03-29 01:00", "03-30 00:30"]),  # 01:30 is leapt over: at 02:00 BST
        ("30 1 * * *", "2026-10-24T02:00", ["10-25 00:30", "10-26 01:30"]),  # 01:30 comes twice: at the first
        ("15 2 * * *", "2026-03-28T03:00", ["03-29 01:15", "03-30 01:15"]),
        ("0 * * * *", "2026-03-28T23:30", ["03-29 00:00", "03-29 01:00", "03-29 02:00"]),
        ("0 * * * *", "2026-10-24T23:30", ["10-25 00:00", "10-25 01:00", "10-25 02:00"]),
        ("*/30 * * * *", "2026-10-25T00:15", ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]),
    ],
)
def test_days_on_which_the_clock_moves(expression, after, expected):
    assert fires(expression, LONDON, after, len(expected)) == expected


@pytest.mark.parametrize("expression", ["0 0 * * *", "30 1 * * *", "45 2 * * *", "59 23 * * *"])
@pytest.mark.parametrize("timezone", [LONDON, "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"])
def test_one_run_on_each_day_of_two_years(expression, timezone):
    instant, days = at("2026-01-01T15:00"), []
    for _ in range(730):
        instant = cron.next_fire(expression, timezone, instant)
        days.append(instant.date())
    assert {later - day for day, later in itertools.pairwise(days)} == {datetime.timedelta(days=1)}


def test_it_depends_on_the_arguments_alone():
    """A scheduler that was down, or whose expression was edited, asks from where it stands: nothing fires late."""
    assert fires("0 6 * * *", "UTC", "2026-01-10T12:00", 1) == ["01-11 06:00"]
    assert fires("0 9 * * *", "UTC", "2026-01-10T12:00", 1) == ["01-11 09:00"]
    assert fires("0 0 29 2 *", "UTC", "2026-01-10T12:00", 1) == ["02-29 00:00"]


def test_a_kick_off_stands_for_the_last_tick():
    late = at("2026-01-10T06:00:02")
    assert cron.last_fire("0 6 * * *", "UTC", late) == at("2026-01-10T06:00")
    assert cron.last_fire("0 6 * * *", "UTC", at("2026-01-10T06:00")) == at("2026-01-10T06:00")
    assert cron.last_fire("0 6 * * *", "UTC", at("2026-01-10T05:59")) == at("2026-01-09T06:00")
    assert cron.last_fire("0 0 29 2 *", "UTC", late) == at("2024-02-29")
    assert cron.last_fire("30 1 * * *", LONDON, at("2026-03-29T12:00")) == at("2026-03-29T01:00")


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6 *", "never fires"),
        ("0 0 * *", "has 4 fields"),
        ("0 0 * * * *", "has 6 fields"),
        ("61 0 * * *", "no schedule"),
        ("daily", "has 1 fields"),
    ],
)
def test_what_is_no_schedule_is_refused(expression, told):
    for ask in (cron.next_fire, cron.last_fire):
        with pytest.raises(errors.ConfigError, match=told) as refusal:
            ask(expression, "UTC", at("2026-01-01"))
        assert repr(expression) in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_a_zone_that_is_none_is_named_with_the_nearest():
    with pytest.raises(errors.ConfigError, match=r"'Europe/Lodon'.*'Europe/London'"):
        cron.next_fire("0 6 * * *", "Europe/Lodon", at("2026-01-01"))
