"""The loop: commits where the schedule says, stops where it is told, and ends in the same bits however it was cut."""

import contextlib
import functools
import os
import signal

import jax
import numpy as np
import pytest

from t5core import errors, preemption
from t5core.loop import Loop
from t5core.preemption import StopRequest
from t5core.schedule import Schedule
from tests.t5core import tiny

SCHEDULE = Schedule(total_steps=9, segment_steps=4, checkpoint_period=3, eval_period=0)


@functools.cache
def trainer():
    return tiny.trainer()


def copied(state):
    return jax.tree.map(np.array, jax.device_get(state))


class Recorder:
    """A loop whose commits and reports are kept; `on_report` sees each chunk."""

    def __init__(self, *, on_report=lambda chunk: False, stats_period=2, stop=None, first_step=0):
        self.commits, self.chunks = {}, []
        self.stop = StopRequest() if stop is None else stop
        self.on_report = on_report
        self.loop = Loop(
            trainer=trainer(),
            batches=tiny.batches,
            first_step=first_step,
            schedule=SCHEDULE,
            commit=lambda state, step: self.commits.update({step: copied(state)}),
            report=self.report,
            stop=self.stop,
            stats_period=stats_period,
        )

    def report(self, chunk):
        self.chunks.append(chunk)
        return self.on_report(chunk)


def test_commits_fall_on_the_schedule_and_reports_cover_each_step_once():
    recorder = Recorder()
    _, step = recorder.loop.run(trainer().initial_state(), 0, 9)
    assert step == 9
    assert sorted(recorder.commits) == [3, 4, 6, 8, 9]
    assert [(c.first, c.last) for c in recorder.chunks] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 6), (6, 8), (8, 9)]
    assert [len(c.sums) for c in recorder.chunks] == [1, 1, 1, 1, 2, 2, 1]


@pytest.mark.parametrize("cuts", [[9], [5, 9], [6, 9]])
def test_the_first_step_of_a_run_is_reported_alone_wherever_the_run_begins_and_is_cut(cuts):
    """A run from another's checkpoint says where its loss began; a resumed one has the lines of an unbroken one."""
    state = trainer().initial_state()
    state, lines, step = state.replace(step=state.step + 4), [], 4
    for end in cuts:
        recorder = Recorder(first_step=4)
        state, step = recorder.loop.run(state, step, end)
        lines += [(chunk.first, chunk.last) for chunk in recorder.chunks]
    assert lines == [(4, 5), (5, 6), (6, 8), (8, 9)]


@pytest.mark.parametrize("cuts", [[9], [4, 9], [1, 2, 3, 5, 8, 9]])
def test_any_cut_ends_in_the_same_bits(cuts):
    straight, _ = Recorder().loop.run(trainer().initial_state(), 0, 9)
    state, step = trainer().initial_state(), 0
    for end in cuts:
        # Each piece starts from host copies, as a restored checkpoint does.
        state, step = Recorder().loop.run(jax.device_put(copied(state), trainer().state_shardings), step, end)
    jax.tree.map(np.testing.assert_array_equal, copied(state), copied(straight))


def test_a_report_that_asks_for_a_stop_is_obeyed_with_a_commit():
    recorder = Recorder(on_report=lambda chunk: chunk.last >= 2)
    _, step = recorder.loop.run(trainer().initial_state(), 0, 9)
    assert step == 2
    assert sorted(recorder.commits) == [2]


def test_a_stop_request_finishes_the_step_commits_it_and_says_so():
    stop = StopRequest()
    recorder = Recorder(stop=stop, on_report=lambda chunk: bool(chunk.last == 6 and stop.set()))
    with pytest.raises(errors.Preempted, match="told to stop; step 6 is committed, run again to go on from there"):
        recorder.loop.run(trainer().initial_state(), 0, 9)
    assert max(recorder.commits) == 6


def test_sigterm_is_heard_inside_the_block_only():
    before = signal.getsignal(signal.SIGTERM)
    with preemption.listening() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
    assert signal.getsignal(signal.SIGTERM) is before


def test_batches_are_closed_when_training_fails():
    closed = []

    @contextlib.contextmanager
    def failing(start, stop):
        try:
            yield iter([(7, tiny.batch(0))])
        finally:
            closed.append(True)

    recorder = Recorder()
    loop = Loop(**{**vars(recorder.loop), "batches": failing})
    with pytest.raises(AssertionError, match="batch of step 7 came for step 0"):
        loop.run(trainer().initial_state(), 0, 9)
    assert closed == [True]
