"""What a resumed run is trained on, and with which random numbers: exactly what a straight one is."""

import itertools
import json
import pathlib

import numpy as np

from tests.t5core import small_runs


def run(root, name, *, examples, data=None, **settings):
    data = {"pack": False, **(data or {})}
    config = small_runs.config(root, run={"name": name}, data=data, **{"checkpoint_period": 100, **settings})
    return small_runs.inputs(config, examples=examples)


def ids(batches):
    """Returns the numbers of the examples by step."""
    return {step: (targets[:, 0] - 2).tolist() for step, targets in batches.items()}


def test_no_example_comes_twice_before_all_came_once_and_a_resumed_run_reads_on(tmp_path):
    straight = ids(small_runs.batches(run(tmp_path, "straight", examples=64, total_steps=16)))
    assert sorted(itertools.chain(*straight.values())) == list(range(64))
    cut = run(tmp_path, "cut", examples=64, total_steps=16, segment_steps=8)
    small_runs.interrupt(cut, at=12)
    after = ids(small_runs.batches(cut))
    assert min(after) == 8, "from the last committed step"
    assert after == {step: straight[step] for step in range(8, 16)}


def test_many_restarts_read_each_line_once(tmp_path):
    read = {}
    for end in (5, 10, 15, 20, 25):
        read |= ids(small_runs.batches(run(tmp_path, "run", examples=100, total_steps=end, segment_steps=5)))
    assert sorted(read) == list(range(25))
    assert sorted(itertools.chain(*read.values())) == list(range(100))


def test_packed_rows_after_a_resume_are_those_of_a_straight_run(tmp_path):
    packed = {"data": {"pack": True}, "examples": 90, "total_steps": 8}
    straight = small_runs.batches(run(tmp_path, "straight", **packed))
    cut = run(tmp_path, "cut", **packed, checkpoint_period=3)
    small_runs.interrupt(cut, at=5)
    after = small_runs.batches(cut)
    assert min(after) == 3
    for step, targets in after.items():
        assert targets.tobytes() == straight[step].tobytes()
    assert len({targets.tobytes() for targets in straight.values()}) == 8


def test_each_epoch_has_an_order_of_its_own_that_a_resume_keeps(tmp_path):
    straight = ids(small_runs.batches(run(tmp_path, "straight", examples=16, total_steps=12)))
    epochs = [list(itertools.chain(*(straight[start + i] for i in range(4)))) for start in (0, 4, 8)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(16))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    cut = run(tmp_path, "cut", examples=16, total_steps=12, segment_steps=6)
    small_runs.interrupt(cut, at=7)
    assert ids(small_runs.batches(cut)) == {step: straight[step] for step in range(6, 12)}


def test_dropout_goes_on_after_a_resume_and_is_not_left_off(tmp_path):
    def losses(name, rate, cuts):
        for end in cuts:
            settings = {"model": {"dropout_rate": rate}, "total_steps": end, "stats_period": 1}
            inputs = small_runs.inputs(small_runs.config(tmp_path, run={"name": name, "seed": 1}, **settings))
            small_runs.train(inputs)
        lines = pathlib.Path(inputs.run.uri, "metrics/train/metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    straight, cut, without = losses("a", 0.5, [8]), losses("b", 0.5, [4, 8]), losses("c", 0.0, [8])
    assert len(straight) == 8
    np.testing.assert_allclose(cut, straight, rtol=0, atol=1e-6)
    assert not np.isclose(straight, without, rtol=0, atol=1e-6).any()
