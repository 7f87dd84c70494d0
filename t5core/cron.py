"""When a schedule fires: cron expressions read in a time zone, with one run on the days on which the clock moves.

An hour that comes twice fires once, at its first coming, and a time that the clock leaps over fires when the leap is
over; only an expression for every hour (`*` or `*/n` there) follows the hours as they pass.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import zoneinfo
from collections.abc import Iterator

from croniter import CroniterBadCronError, CroniterBadDateError, croniter

from t5core import errors

_FIELDS = 5
_LEAP = datetime.timedelta(hours=3)  # no zone's clock moves further at once
_LONGEST_PAUSE = datetime.timedelta(days=40 * 366)  # a 29 February on a given day of the week


def check(cron: str) -> None:
    """Refuses an expression that is none, or that no day fulfils.

    Raises:
      ConfigError: it has not five fields (minute, hour, day of month, month, day of week), or it never fires.
    """
    if len(cron.split()) != _FIELDS:
        raise errors.ConfigError(
            f"cron {cron!r} has {len(cron.split())} fields; give minute, hour, day of month, month, day of week"
        )
    try:
        croniter(cron, datetime.datetime(2000, 1, 1)).get_next(datetime.datetime)
    except CroniterBadDateError as error:
        raise errors.ConfigError(f"cron {cron!r} never fires: there is no such day; mend its day or month") from error
    except (CroniterBadCronError, ValueError) as error:
        raise errors.ConfigError(f"cron {cron!r} is no schedule ({error}); mend the field") from error


def zone(name: str) -> zoneinfo.ZoneInfo:
    """Returns a time zone by its name, as `Europe/London`.

    Raises:
      ConfigError: there is none of that name.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise errors.ConfigError(
            errors.unknown_name("time zone", name, sorted(zoneinfo.available_timezones()))
        ) from error


def next_fire(cron: str, timezone: str, last: datetime.datetime) -> datetime.datetime:
    """Returns the first instant after `last` at which `cron` fires on the clocks of `timezone`.

    It depends on nothing but its arguments: a restart of a scheduler or a change of the expression fires nothing.

    Args:
      cron: five fields: minute, hour, day of month, month, day of week.
      timezone: a name as `Europe/London`; the answer is in it.
      last: an aware instant.

    Raises:
      ConfigError: `cron` or `timezone` is none.
    """
    check(cron)
    clock, after = zone(timezone), last.astimezone(datetime.UTC)
    return next(fire for fire in _fires(cron, clock, after - _LEAP) if fire > after).astimezone(clock)


def last_fire(cron: str, timezone: str, now: datetime.datetime) -> datetime.datetime:
    """Returns the last instant, not after `now`, at which `cron` fires: the tick that a kick-off at `now` stands for.

    Raises:
      ConfigError: `cron` or `timezone` is none, or it never fired in the last decades.
    """
    check(cron)
    clock, end, reach = zone(timezone), now.astimezone(datetime.UTC), _LEAP
    while reach < _LONGEST_PAUSE:
        fires = list(itertools.takewhile(lambda fire: fire <= end, _fires(cron, clock, end - reach)))
        if fires:
            return fires[-1].astimezone(clock)
        reach *= 4
    raise errors.ConfigError(f"cron {cron!r} has not fired in the decades before {now:%Y-%m-%d}; mend it")


def _fires(cron: str, timezone: zoneinfo.ZoneInfo, start: datetime.datetime) -> Iterator[datetime.datetime]:
    """Yields the instants at which `cron` fires from about `start` on, in UTC, each once, in order."""
    every_hour = cron.split()[1].startswith("*")
    comings = [_comings(cron, timezone, start, fold=fold) for fold in ((0, 1) if every_hour else (0,))]
    seen: datetime.datetime | None = None
    for instant in heapq.merge(*comings):
        if seen is None or instant > seen:
            seen = instant
            yield instant


def _comings(
    cron: str, timezone: zoneinfo.ZoneInfo, start: datetime.datetime, *, fold: int
) -> Iterator[datetime.datetime]:
    """Yields, in UTC, when the clocks show each time of `cron`: for the first (fold 0) or the last (fold 1) time."""
    wall = croniter(cron, start.astimezone(timezone).replace(tzinfo=None))
    while True:
        shown: datetime.datetime = wall.get_next(datetime.datetime)
        comings = [shown.replace(tzinfo=timezone, fold=f).astimezone(datetime.UTC) for f in (0, 1)]
        is_leapt_over = comings[1] < comings[0]  # then the offsets before and after the leap put it on both sides
        yield _leap_between(comings[1], comings[0], timezone) if is_leapt_over else comings[fold]


def _leap_between(
    before: datetime.datetime, after: datetime.datetime, timezone: zoneinfo.ZoneInfo
) -> datetime.datetime:
    """Returns the first minute after the clocks leapt, between two instants on its two sides."""
    offset = before.astimezone(timezone).utcoffset()
    while after - before > datetime.timedelta(minutes=1):
        middle = before + (after - before) / 2
        if middle.astimezone(timezone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(second=0, microsecond=0)
