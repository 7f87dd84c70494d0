"""Retention: what stays whatever happens, and the order in which the rest goes."""

import logging
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5core import errors
from t5core.checkpoints import index, pins, retention, seal
from t5core.checkpoints.retention import BestBy, Deletion, RetentionPolicy, steps_to_delete


def kept(steps, policy, **known):
    return sorted(set(steps) - {deletion.step for deletion in steps_to_delete(steps, policy=policy, **known)})


def run(saved, policy, **known):
    """Returns what is left when retention acts after each of the `saved` steps."""
    left = []
    for step in saved:
        left = kept([*left, step], policy, **known)
    return left


def make_checkpoints(folder, *steps):
    for step in steps:
        os.makedirs(f"{folder}/{step}/state")
        os.makedirs(f"{folder}/{step}/record")
        for name in (index.RECORD_FILE, seal.FILE, seal.COMMIT_FILE, seal.METADATA_FILE):
            open(f"{folder}/{step}/{name}", "w").close()


def test_the_newest_stay():
    assert run(range(5, 35, 5), RetentionPolicy(keep=3)) == [20, 25, 30]
    assert run(range(5, 35, 5), RetentionPolicy()) == [5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize(("total", "left"), [(12, [5, 10, 12]), (10, [5, 10])])
@pytest.mark.parametrize("segment", [1, 3, 4, 7, 100])
def test_a_run_leaves_the_same_checkpoints_however_it_was_cut(total, left, segment):
    handed_over = {step for step in range(segment, total, segment)}
    saved = sorted({*range(5, total, 5), *handed_over, total})
    assert run(saved, RetentionPolicy(keep=3, checkpoint_period=5)) == left


def test_the_last_step_counts_among_the_newest_though_it_is_off_the_grid():
    assert run([5, 10, 15, 18], RetentionPolicy(keep=3, checkpoint_period=5)) == [10, 15, 18]


def test_a_handed_over_step_stays_until_a_later_one_is_committed():
    policy = RetentionPolicy(keep=1, checkpoint_period=5)
    assert run([5, 8], policy) == [8]
    assert run([5, 8, 10], policy) == [10]


def test_the_newest_is_kept_though_others_are_better():
    metrics = {step: {"docs/loss": float(step)} for step in range(1, 6)}  # gets worse all the time
    policy = RetentionPolicy(keep=1, best=(BestBy(metric="docs/loss", count=3),))
    assert run(range(1, 6), policy, metrics=metrics) == [1, 2, 3, 5]


def test_the_best_is_kept_though_it_is_old_and_the_oldest_of_the_others_goes_first():
    metrics = {step: {"docs/accuracy": 1.0 / step} for step in range(1, 6)}
    policy = RetentionPolicy(keep=2, best=(BestBy(metric="docs/accuracy", mode="max"),))
    deletions = steps_to_delete([5, 3, 1, 2, 4], policy=policy, metrics=metrics)
    reason = "older than the newest 2, not among the best 1 by docs/accuracy (max)"
    assert deletions == tuple(Deletion(step=step, reason=reason) for step in (2, 3))


def test_several_metrics_each_keep_their_best_and_nan_is_never_the_best():
    nan = float("nan")
    metrics = {1: {"a": nan, "b": 1.0}, 2: {"a": 1.0, "b": nan}, 3: {"a": nan, "b": 5.0}, 4: {}}
    policy = RetentionPolicy(keep=1, best=(BestBy(metric="a"), BestBy(metric="b")))
    assert run(range(1, 5), policy, metrics=metrics) == [1, 2, 4]


def test_the_last_one_up_to_a_finite_metric_stays_until_a_later_one_is_known_to_be_finite():
    policy = RetentionPolicy(keep=1, finite=("docs/loss",))
    good, nan = {"docs/loss": 1.0}, {"docs/loss": float("nan")}
    assert kept([2, 4, 6], policy) == [6]
    assert kept([2, 4, 6], policy, metrics={2: good, 4: good}) == [4, 6]
    assert kept([2, 4, 6], policy, metrics={2: good, 5: good}) == [4, 6]
    assert kept([2, 4, 6], policy, metrics={2: good, 4: nan, 6: nan}) == [2, 6]
    assert kept([2, 4, 6], policy, metrics={2: good, 6: good}) == [6]
    assert kept([4, 6], policy, metrics={2: good, 6: nan}) == [6]


def test_of_equally_good_ones_the_later_stays():
    metrics = {step: {"loss": 1.0} for step in (1, 2, 3)}
    assert run([1, 2, 3, 4], RetentionPolicy(keep=1, best=(BestBy(metric="loss"),)), metrics=metrics) == [3, 4]


def test_every_multiple_stays_for_good():
    assert run(range(10, 80, 10), RetentionPolicy(keep=1, keep_period=30)) == [30, 60, 70]


def test_a_metric_that_no_evaluation_has_is_an_error():
    policy = RetentionPolicy(best=(BestBy(metric="docs/los"),))
    with pytest.raises(errors.ConfigError, match=r"unknown metric to keep checkpoints by 'docs/los'; did you mean"):
        steps_to_delete([1, 2], policy=policy, metrics={1: {"docs/loss": 1.0}})


@pytest.mark.parametrize("field", ["keep", "checkpoint_period", "keep_period"])
def test_a_rule_that_keeps_nothing_is_an_error(field):
    with pytest.raises(errors.ConfigError, match=f"{field}=0 keeps nothing; give 1 or more, or None"):
        RetentionPolicy(**{field: 0})


small = st.none() | st.integers(1, 5)


@given(st.sets(st.integers(0, 60), min_size=1), small, small, small, st.sets(st.integers(0, 60)))
def test_nothing_deletes_the_newest_or_the_protected(steps, keep, period, keep_period, protected):
    policy = RetentionPolicy(keep=keep, checkpoint_period=period, keep_period=keep_period)
    deleted = [deletion.step for deletion in steps_to_delete(steps, policy=policy, protected=protected)]
    assert deleted == sorted(deleted)
    assert not {max(steps), *protected} & set(deleted)
    assert steps_to_delete(set(steps) - set(deleted), policy=policy, protected=protected) == ()


def test_a_deletion_is_logged_and_leaves_nothing(tmp_path, caplog):
    make_checkpoints(tmp_path, 5, 10)
    with caplog.at_level(logging.INFO):
        retention.delete(str(tmp_path), Deletion(step=5, reason="older than the newest 1"))
    assert sorted(os.listdir(tmp_path)) == ["10"]
    assert f"deleting checkpoint {tmp_path}/5: older than the newest 1" in caplog.text


def test_deletions_are_logged_in_their_order_and_leave_what_the_policy_keeps(tmp_path, caplog):
    make_checkpoints(tmp_path, *range(1, 6))
    policy = RetentionPolicy(keep=1, best=(BestBy(metric="docs/loss"),))
    metrics = {step: {"docs/loss": float(step)} for step in range(1, 6)}
    with caplog.at_level(logging.INFO):
        retention.delete_old(str(tmp_path), policy=policy, metrics=metrics)
    assert index.committed_steps(str(tmp_path)) == (1, 5)
    logged = [line.split(":")[0].rsplit("/", 1)[-1] for line in caplog.messages]
    assert logged == ["2", "3", "4"]
    assert caplog.messages[0].endswith("older than the newest 1, not among the best 1 by docs/loss (min)")


def test_a_deletion_that_is_killed_half_way_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    make_checkpoints(tmp_path, 5, 10)

    def killed(path):
        os.unlink(f"{path}/{seal.FILE}")
        raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        retention.delete(str(tmp_path), Deletion(step=5, reason="any"))
    found = index.survey(str(tmp_path))
    assert found.committed == (10,)
    assert found.unfinished == ("5.orbax-checkpoint-tmp-deleted",)


def test_a_checkpoint_that_is_being_read_is_pinned_until_the_reader_is_done(tmp_path):
    make_checkpoints(tmp_path, 5, 10)
    with pins.reading(str(tmp_path), 5):
        assert pins.pinned_steps(str(tmp_path)) == {5}
        retention.delete(str(tmp_path), Deletion(step=5, reason="decided before the reader came"))
        assert index.committed_steps(str(tmp_path)) == (5, 10)
    assert pins.pinned_steps(str(tmp_path)) == frozenset()


def test_a_pin_that_is_damaged_is_named_before_anything_is_deleted(tmp_path):
    make_checkpoints(tmp_path, 5, 10)
    pins.publish(str(tmp_path), 5, name="best")
    (tmp_path / "pins" / "published-best.json").write_text("[]")
    with pytest.raises(errors.IntegrityError, match=r"pins/published-best.json is no pin; delete it if nothing was"):
        retention.delete_old(str(tmp_path), policy=RetentionPolicy(keep=1), metrics={})
    assert index.committed_steps(str(tmp_path)) == (5, 10)


def test_the_pin_of_a_reader_that_died_does_not_count(tmp_path, monkeypatch):
    make_checkpoints(tmp_path, 5)
    dead = pins.this_process().model_copy(update={"started": "1"})
    monkeypatch.setattr(pins, "this_process", lambda: dead)
    with pins.reading(str(tmp_path), 5):
        assert pins.pinned_steps(str(tmp_path)) == frozenset()


def test_reading_what_retention_removed_is_refused_by_name(tmp_path):
    make_checkpoints(tmp_path, 10)
    with (
        pytest.raises(errors.CheckpointError, match=r"no checkpoint of step 5 .*\(removed by retention.*steps: 10"),
        pins.reading(str(tmp_path), 5),
    ):
        pass
    assert os.listdir(tmp_path / "pins") == []


def test_a_published_checkpoint_stays_and_its_name_is_taken(tmp_path):
    make_checkpoints(tmp_path, 5, 10)
    pins.publish(str(tmp_path), 5, name="release-1")
    pins.publish(str(tmp_path), 5, name="release-1")
    assert pins.pinned_steps(str(tmp_path)) == {5}
    with pytest.raises(errors.CheckpointError, match=r"'release-1' is checkpoint 5 of .* already; choose another name"):
        pins.publish(str(tmp_path), 10, name="release-1")
    with pytest.raises(errors.CheckpointError, match=r"'\.\./x' cannot name a checkpoint"):
        pins.publish(str(tmp_path), 5, name="../x")
    for _ in range(2):
        pins.withdraw(str(tmp_path), name="release-1")
        assert pins.pinned_steps(str(tmp_path)) == frozenset()


def test_the_first_state_of_a_run_goes_once_a_later_one_is_there():
    """A run of 12 steps with a period of 5 leaves the checkpoints 5, 10 and 12: step 0 is where it came from."""
    policy = RetentionPolicy(checkpoint_period=5)
    assert [d.step for d in steps_to_delete([0, 5], policy=policy)] == [0]
    assert steps_to_delete([0], policy=policy) == ()
    assert steps_to_delete([5, 10, 12], policy=policy) == ()
