"""Scheduled pipelines in this process: which tick runs as what; and the plans as a cluster would take them."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
from unittest import mock

import pytest
from flytekit import FlyteContextManager, workflow
from flytekit.core.type_engine import TypeEngine
from flytekit.testing import task_mock

from t5core import errors, storage, ticks
from t5core.config.edges import Summary
from t5core.config.evaluate_edges import EvaluationSummary
from t5core.config.evaluate_schema import EvaluationConfig
from t5core.config.schedule_schema import ScheduleConfig
from t5core.config.schema import PretrainConfig
from t5core.stages import resolve
from tests.packaging.package import ROOT
from workflows import schedules

TICK = datetime.datetime(2026, 12, 1, 3, 0, 4, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SCHEDULE = ScheduleConfig(name="nightly", cron="0 3 * * *")


def training(root):
    settings = {
        "run": {"root": str(root)},
        "data": {
            "tasks": [{"name": "a", "files": ["text/{date}/*.txt"], "validation_files": ["text/{date:%Y/%m}/held.txt"]}]
        },
    }
    return PretrainConfig.model_validate(settings)


def evaluation(root):
    tasks = [{"name": "a", "files": ["text/{date}/*.txt"]}, {"name": "b", "files": ["fixed.txt"]}]
    return EvaluationConfig.model_validate({"run": {"root": str(root)}, "checkpoint": f"{root}/x", "tasks": tasks})


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock of the ticks: `clock.now`."""

    class Clock:
        now = TICK + datetime.timedelta(minutes=1)

    admit = ticks.admit
    monkeypatch.setattr(ticks, "admit", lambda *given, **named: admit(*given, **named, now=lambda: Clock.now))
    return Clock


class Pipelines:
    """Stand-ins for the pipelines, which only note what they were asked for."""

    def __init__(self):
        self.started = []

    @contextlib.contextmanager
    def __call__(self):
        with task_mock(schedules.finetune) as train, task_mock(schedules.evaluate) as evaluate:
            train.side_effect, evaluate.side_effect = self._train, self._evaluate
            yield self

    def _note(self, promise, kind):
        config = TypeEngine.to_python_value(FlyteContextManager.current_context(), promise.val, kind)
        self.started.append(config)
        return config

    def _train(self, config, overrides):
        config = self._note(config, PretrainConfig)
        uri = f"{config.run.root}/{config.run.name}/summary.json"
        return Summary(
            run_name=config.run.name,
            status="completed",
            final_step=1,
            stop_reason="",
            state_digest="d",
            uri=uri,
            report="r",
        )

    def _evaluate(self, config, overrides):
        config = self._note(config, EvaluationConfig)
        return EvaluationSummary(
            name=config.run.name, status="completed", checkpoints=1, reused=0, uri="u", table="t", csv="c", report="r"
        )


@pytest.fixture
def pipelines():
    with Pipelines()() as stubs:
        yield stubs


@contextlib.contextmanager
def execution(name):
    """Makes this process that of a Flyte execution."""
    with mock.patch.dict("os.environ", {"FLYTE_INTERNAL_EXECUTION_ID": name}):
        yield


def finetune(root, kickoff=TICK, *, by="one", schedule=SCHEDULE):
    with execution(by):
        return schedules.scheduled_finetune(kickoff_time=kickoff, config=training(root), schedule=schedule)


def test_a_tick_trains_the_run_of_its_day(tmp_path, clock, pipelines):
    summary = finetune(tmp_path)
    (started,) = pipelines.started
    assert (summary.status, summary.run_name) == ("completed", "nightly-2026-12-01T0300")
    assert started.run.name == summary.run_name
    (task,) = started.data.tasks
    assert (task.files, task.validation_files) == (["text/2026-12-01/*.txt"], ["text/2026/12/held.txt"])


def test_a_tick_evaluates_on_the_text_of_its_day(tmp_path, clock, pipelines):
    with execution("one"):
        summary = schedules.scheduled_evaluate(
            kickoff_time=TICK, config=evaluation(tmp_path), schedule=SCHEDULE.model_copy(update={"name": "measure"})
        )
    (started,) = pipelines.started
    assert (summary.status, summary.name) == ("completed", "measure-2026-12-01T0300")
    assert started.run.name == summary.name
    assert [task.files for task in started.tasks] == [["text/2026-12-01/*.txt"], ["fixed.txt"]]


def test_two_ticks_at_once_never_share_a_directory(tmp_path, clock, pipelines):
    finetune(tmp_path, by="one")  # its stand-in leaves no summary behind, so it counts as going on
    second = finetune(tmp_path, by="two")
    clock.now += DAY
    third = finetune(tmp_path, TICK + DAY, by="three")
    assert [config.run.name for config in pipelines.started] == ["nightly-2026-12-01T0300"]
    assert [second.status, third.status] == ["skipped", "skipped"]
    assert third.run_name == "nightly-2026-12-02T0300"
    assert third.stop_reason == "skipped: nightly-2026-12-01T0300 is still going (in flyte:one)"
    assert storage.read_json(third.uri)["reason"] == third.stop_reason
    assert not (tmp_path / third.run_name).exists()


def test_the_policy_may_be_to_refuse(tmp_path, clock, pipelines):
    finetune(tmp_path, by="one")
    refusing = SCHEDULE.model_copy(update={"overlap": "refuse"})
    with pytest.raises(errors.RunDirectoryError, match=r"is refused: nightly-2026-12-01T0300 is still going"):
        finetune(tmp_path, by="two", schedule=refusing)
    assert len(pipelines.started) == 1


def test_the_same_tick_twice_is_the_same_run(tmp_path, clock, pipelines):
    first = finetune(tmp_path, by="one")
    storage.write_json(first.uri, {})
    clock.now += datetime.timedelta(hours=5)
    os.utime(first.uri, (clock.now.timestamp(),) * 2)  # the run has ended
    again = finetune(tmp_path, TICK + datetime.timedelta(hours=4), by="two")
    assert (again.status, again.run_name) == ("completed", first.run_name)
    assert pipelines.started[0] == pipelines.started[1]


def test_a_late_tick_runs_on_request_only(tmp_path, clock, pipelines):
    clock.now += 3 * DAY
    late = finetune(tmp_path)
    assert (late.status, pipelines.started) == ("skipped", [])
    assert late.stop_reason.startswith("late: the tick of 2026-12-02 03:00 is due already; set backfill")
    asked = finetune(tmp_path, schedule=SCHEDULE.model_copy(update={"backfill": True}))
    assert (asked.status, asked.run_name) == ("completed", "nightly-2026-12-01T0300")


def test_an_edited_cron_fires_nothing_by_itself(tmp_path, clock, pipelines):
    """A plan that is activated again with another expression stands for its own last firing, by the same rules."""
    clock.now = TICK + datetime.timedelta(minutes=1)
    edited = SCHEDULE.model_copy(update={"cron": "30 2 * * *"})
    assert finetune(tmp_path, schedule=edited).run_name == "nightly-2026-12-01T0230"


def test_a_day_in_a_path_of_a_run_that_is_no_tick_is_one_line(tmp_path):
    with pytest.raises(errors.ConfigError) as refusal:
        resolve.check(training(tmp_path))
    assert str(refusal.value) == (
        "task 'a': 'text/{date}/*.txt' takes the day of a tick, and this run is no tick of a schedule; "
        "write the day, or start it by workflows/schedules.py"
    )


def test_a_template_over_a_column_called_date_is_no_path():
    supervised = {"name": "a", "files": ["a.tsv"], "objective": "supervised", "inputs": "on {date}", "targets": "{b}"}
    ticks.refuse_undated(PretrainConfig.model_validate({"data": {"tasks": [supervised]}}).data.tasks)


@workflow
def open_input(kickoff_time: datetime.datetime, config: PretrainConfig, schedule: ScheduleConfig, more: int) -> Summary:
    """Has an input that no plan gives."""
    return schedules.scheduled_finetune(kickoff_time=kickoff_time, config=config, schedule=schedule)


@workflow
def no_kickoff(config: PretrainConfig, schedule: ScheduleConfig) -> Summary:
    """Does not ask when it was started."""
    return schedules.scheduled_finetune(kickoff_time=TICK, config=config, schedule=schedule)


@pytest.mark.parametrize(
    ("scheduled", "inputs", "message"),
    [
        (open_input, ["config"], "open_input leaves more open; give every other input a value"),
        (schedules.scheduled_finetune, [], "scheduled_finetune leaves config open; give every other input a value"),
        (no_kickoff, ["config"], "no_kickoff has no input kickoff_time"),
        (schedules.scheduled_finetune, ["config", "confg"], "unknown input 'confg'; did you mean 'config'?"),
    ],
)
def test_a_plan_that_could_never_start_is_refused_at_import(tmp_path, scheduled, inputs, message):
    with pytest.raises(errors.ConfigError) as refusal:
        schedules.planned(SCHEDULE, scheduled, dict.fromkeys(inputs, training(tmp_path)))
    assert message in str(refusal.value)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "61 * * * *", "daily"])
def test_an_impossible_cron_is_refused_at_import(expression):
    with pytest.raises(ValueError, match="cron"):
        ScheduleConfig(name="nightly", cron=expression)


def test_a_plan_is_asleep_and_says_when_and_with_what():
    for each in (schedules.NIGHTLY_FINETUNE, schedules.NIGHTLY_EVALUATE):
        plan = each.plan
        assert plan.schedule.cron_schedule.schedule == each.schedule.cron
        assert plan.schedule.kickoff_time_input_arg == "kickoff_time"
        assert not plan.should_auto_activate
        assert set(plan.fixed_inputs.literals) == {"config", "schedule"}


def test_the_next_fires_show_on_any_clock_once_a_day():
    """The clocks of London move on 28 March 2027; a plan in UTC fires once each day all the same."""
    now = datetime.datetime(2027, 3, 27, 0, 0, tzinfo=datetime.UTC)
    schedule = ScheduleConfig(name="nightly", cron="30 1 * * *")
    assert schedules.next_fires(schedule, timezone="Europe/London", count=3, now=now) == [
        "Sat 2027-03-27 01:30 GMT",
        "Sun 2027-03-28 02:30 BST",
        "Mon 2027-03-29 02:30 BST",
    ]


@pytest.mark.e2e
def test_the_command_lists_the_plans(tmp_path):
    def listed(*arguments):
        command = [sys.executable, "-m", "workflows.schedules", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = listed("--timezone", "Asia/Tokyo", "--count", "2")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("workflows", "  "))]
    assert [line.split()[0] for line in lines if line.startswith("w")] == [
        "workflows.schedules.nightly_finetune",
        "workflows.schedules.nightly_evaluate",
    ]
    assert [line.split()[2:] for line in lines[1:3]] == [["12:00", "JST"]] * 2
    wrong = listed("--timezone", "Europe/Lodnon")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines()[-1].startswith(
        "Error: unknown time zone 'Europe/Lodnon'; did you mean 'Europe/Lond"
    )


def test_the_list_is_all_that_is_printed():
    environment = {name: value for name, value in os.environ.items() if name != "FLYTE_SDK_LOGGING_LEVEL"}
    command = [sys.executable, "-m", "workflows.schedules"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("workflows.schedules.nightly_finetune ")
    assert done.stderr == ""
