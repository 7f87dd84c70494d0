"""The schedule: events on absolute steps, whatever the segments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5core import errors, schedule
from t5core.config.train_schema import TrainConfig
from t5core.schedule import Schedule

periods = st.integers(0, 12)


def schedules():
    return st.builds(
        Schedule,
        total_steps=st.integers(1, 60),
        segment_steps=st.integers(1, 20),
        checkpoint_period=periods,
        eval_period=periods,
    )


def test_evaluations_and_checkpoints_fall_where_the_periods_say():
    schedule = Schedule(total_steps=10, segment_steps=5, checkpoint_period=3, eval_period=4)
    steps = range(1, 11)
    assert [s for s in steps if schedule.is_evaluation_due(s)] == [4, 8, 10]
    assert [s for s in steps if schedule.is_checkpoint_due(s)] == [3, 6, 9, 10]
    assert schedule.segments() == ((0, 4), (4, 5), (5, 8), (8, 10))


@pytest.mark.parametrize(("total", "expected"), [(12, [5, 10, 12]), (10, [5, 10])])
def test_the_last_step_is_a_checkpoint_once(total, expected):
    schedule = Schedule(total_steps=total, segment_steps=total, checkpoint_period=5, eval_period=0)
    commits, step = [], 0
    while step < total:
        step = schedule.next_commit(step)
        commits.append(step)
    assert commits == expected


@given(schedules(), st.integers(0, 60))
def test_segments_from_any_step_are_the_rest_of_the_whole(schedule, start):
    whole = [end for _, end in schedule.segments()]
    rest = schedule.segments(start)
    assert [end for _, end in rest] == [end for end in whole if end > start]
    assert all(end - begin <= schedule.segment_steps for begin, end in rest)
    assert not rest or (rest[0][0] == start and rest[-1][1] == schedule.total_steps)


@given(schedules(), st.integers(1, 20))
def test_neither_evaluations_nor_checkpoints_depend_on_the_segments(schedule, segment_steps):
    other = Schedule(
        total_steps=schedule.total_steps,
        segment_steps=segment_steps,
        checkpoint_period=schedule.checkpoint_period,
        eval_period=schedule.eval_period,
    )
    for step in range(1, schedule.total_steps + 1):
        assert schedule.is_evaluation_due(step) == other.is_evaluation_due(step)
        assert schedule.is_checkpoint_due(step) == other.is_checkpoint_due(step)


@given(schedules(), st.integers(0, 59))
def test_the_next_commit_is_the_first_due_step(schedule, step):
    if step >= schedule.total_steps:
        return
    due = [
        s
        for s in range(step + 1, schedule.total_steps + 1)
        if schedule.is_checkpoint_due(s) or schedule.is_segment_end(s)
    ]
    assert schedule.next_commit(step) == due[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"total_steps": 0}, "total_steps=0 trains nothing; give at least 1"),
        ({"segment_steps": 0}, "segment_steps=0 trains nothing; give at least 1"),
        ({"eval_period": -1}, "eval_period=-1 is negative; give 0 for the end only"),
    ],
)
def test_impossible_schedules_are_refused(changed, message):
    settings = {"total_steps": 4, "segment_steps": 2, "checkpoint_period": 1, "eval_period": 1}
    with pytest.raises(errors.ConfigError, match=message):
        Schedule(**{**settings, **changed})


@pytest.mark.parametrize("changed", [{"total_steps": 10**22}, {"total_steps": 10001, "eval_period": 1}])
def test_more_segments_than_can_be_chained_are_refused_before_they_are_counted(changed):
    with pytest.raises(errors.ConfigError, match=r"are more than 10000 segments; raise train.segment_steps and train"):
        schedule.of(TrainConfig(**changed))
    assert len(schedule.of(TrainConfig(total_steps=10000, segment_steps=1)).segments()) == 10000


def test_nothing_is_due_before_the_first_step():
    schedule = Schedule(total_steps=4, segment_steps=2, checkpoint_period=1, eval_period=1)
    due = [schedule.is_evaluation_due(0), schedule.is_checkpoint_due(0), schedule.is_segment_end(0)]
    assert not any(due)
