"""Ticks of a schedule: each once, never beside one another, never late unless asked for."""

import datetime
import os
import pathlib
import re
import subprocess
import sys

import pytest

from t5core import errors, process, records, sharing, storage, ticks
from t5core.config import load
from t5core.config.schedule_schema import ScheduleConfig
from t5core.lock import RunLock

DAILY = {"name": "nightly", "cron": "0 6 * * *"}
DAY = datetime.timedelta(days=1)
TICK = datetime.datetime(2026, 12, 1, 6, 0, 2, tzinfo=datetime.UTC)  # the scheduler is two seconds late


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def admit(root, kickoff=TICK, *, execution="flyte:one", late=datetime.timedelta(minutes=1), **settings):
    schedule = ScheduleConfig(**DAILY, **settings)
    return ticks.admit(schedule, root=root, kickoff=kickoff, execution=execution, now=lambda: kickoff + late)


def end_run(root, name, at):
    """Leaves the summary of a run that ended at `at`."""
    uri = f"{root}/{name}/summary.json"
    storage.write_json(uri, {})
    os.utime(uri, (at.timestamp(), at.timestamp()))


def test_a_tick_names_its_run_after_the_firing_it_stands_for(root):
    tick = admit(root)
    assert (tick.go, tick.run_name) == (True, "nightly-2026-12-01T0600")
    assert tick.fire == TICK.replace(second=0)
    naive = ticks.admit(
        ScheduleConfig(**DAILY), root=root, kickoff=TICK.replace(tzinfo=None), execution="flyte:one", now=lambda: TICK
    )
    assert naive == tick


def test_the_same_tick_twice_is_the_same_run(root):
    first = admit(root)
    end_run(root, first.run_name, TICK + datetime.timedelta(hours=1))
    again = admit(root, execution="flyte:two", late=datetime.timedelta(hours=2))
    assert (again.go, again.run_name) == (True, first.run_name)


def test_another_attempt_of_an_execution_is_let_in(root):
    assert admit(root).go
    assert admit(root).go


def test_two_that_come_at_once_do_not_share_a_run(root):
    assert admit(root).go
    second = admit(root, execution="flyte:two")
    assert not second.go
    assert second.reason == "skipped: nightly-2026-12-01T0600 is still going (in flyte:one)"


def test_one_that_comes_while_another_is_being_let_in_waits_for_the_answer(root, monkeypatch):
    other = RunLock(f"{root}/schedules/nightly.lock", owner="flyte:one")
    other.acquire()

    def wait(seconds):
        other.release()
        assert admit(root).go

    monkeypatch.setattr(sharing.time, "sleep", wait)
    assert admit(root, execution="flyte:two").reason.startswith("skipped: nightly-2026-12-01T0600 is still going")


def test_the_next_tick_waits_for_nobody_who_has_ended(root):
    first = admit(root)
    assert not admit(root, TICK + DAY, execution="flyte:two").go
    end_run(root, first.run_name, TICK + datetime.timedelta(hours=3))
    assert admit(root, TICK + DAY, execution="flyte:two").run_name == "nightly-2026-12-02T0600"


def test_a_run_that_ended_before_the_tick_was_let_in_again_has_not_ended(root):
    end_run(root, "nightly-2026-12-01T0600", TICK - DAY)
    assert admit(root).go
    assert not admit(root, execution="flyte:two").go


def test_a_refused_tick_is_one_line(root):
    admit(root)
    with pytest.raises(errors.RunDirectoryError) as refusal:
        admit(root, TICK + DAY, execution="flyte:two", overlap="refuse")
    assert str(refusal.value) == (
        "nightly-2026-12-02T0600 is refused: nightly-2026-12-01T0600 is still going (in flyte:one); "
        "wait for it, or set overlap: skip or wait"
    )


def test_a_waiting_tick_goes_on_when_the_other_ends(root, monkeypatch):
    first = admit(root)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            end_run(root, first.run_name, TICK + DAY)

    monkeypatch.setattr(ticks.time, "sleep", pause)
    assert admit(root, TICK + DAY, execution="flyte:two", overlap="wait").go
    assert len(pauses) == 3


def test_a_tick_that_has_waited_enough_can_be_tried_again(root, monkeypatch):
    admit(root)
    clock = [TICK + DAY]
    monkeypatch.setattr(
        ticks.time, "sleep", lambda seconds: clock.append(clock[-1] + datetime.timedelta(seconds=seconds))
    )
    schedule = ScheduleConfig(**DAILY, overlap="wait", wait_minutes=2)
    with pytest.raises(errors.RecoverableError, match="has waited 2 minutes: nightly-2026-12-01T0600 is still going"):
        ticks.admit(schedule, root=root, kickoff=TICK + DAY, execution="flyte:two", now=lambda: clock[-1])
    assert clock[-1] - clock[0] == datetime.timedelta(minutes=2)


def test_a_late_tick_runs_on_request_only(root):
    late = admit(root, late=DAY)
    assert not late.go
    assert late.reason == "late: the tick of 2026-12-02 06:00 is due already; set backfill to run it all the same"
    assert not os.path.exists(f"{root}/schedules")
    assert admit(root, late=DAY, backfill=True).go


def test_an_execution_that_gives_no_sign_of_life_is_abandoned(root):
    first = admit(root)
    assert not admit(root, TICK + 2 * DAY, execution="flyte:two", abandoned_hours=72).go
    record = f"{root}/{first.run_name}/records/stage-resolve.json"
    storage.write_json(record, {})
    os.utime(record, ((TICK + DAY).timestamp(),) * 2)
    assert not admit(root, TICK + 2 * DAY, execution="flyte:two", abandoned_hours=25).go
    assert admit(root, TICK + 2 * DAY, execution="flyte:two", abandoned_hours=23).go


def test_a_process_that_was_killed_is_not_waited_for(root):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    uri = f"{root}/schedules/nightly.json"
    admit(root)
    claim = records.read(uri, ticks.Claim)
    stat = pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    identity = process.this_process().model_copy(update={"pid": child.pid, "started": stat[19]})
    records.write(uri, claim.model_copy(update={"execution": None, "process": identity}))
    assert not admit(root, TICK + DAY).go
    child.kill()
    child.wait()
    assert admit(root, TICK + DAY).go


def test_a_record_that_is_none_is_named(root):
    storage.write_json(f"{root}/schedules/nightly.json", {"run": 1})
    with pytest.raises(errors.IntegrityError, match=re.escape("schedules/nightly.json is no record of a tick")):
        admit(root)


def test_the_day_goes_into_paths():
    assert ticks.dated("gs://b/{date}/*.txt", TICK) == "gs://b/2026-12-01/*.txt"
    assert ticks.dated("{date:%Y/%m/%d}/{date:%H}.tsv", TICK) == "2026/12/01/06.tsv"
    assert ticks.dated("{other} {dates}", TICK) == "{other} {dates}"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"cron": "0 0 30 2 *"}, "cron '0 0 30 2 *' never fires"),
        ({"name": "a/b"}, "'a/b' cannot name runs"),
        ({"wait_minutes": 3}, "wait_minutes=3.0 has no effect with overlap: skip"),
        ({"overlap": "queue"}, "overlap='queue' is not valid"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(settings, told):
    with pytest.raises(errors.ConfigError, match=re.escape(told)):
        load.validate({**DAILY, **settings}, ScheduleConfig, origin="test")
