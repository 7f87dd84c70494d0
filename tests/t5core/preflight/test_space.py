"""The checkpoints that a run has at once are those that it will really have."""

import pytest

from t5core.config.train_schema import TrainConfig
from t5core.preflight import space
from t5core.preflight.record import CheckpointFigures


def most(**settings):
    defaults = {"total_steps": 100, "segment_steps": 50, "checkpoint_period": 10, "eval_period": 50}
    return space.most_at_once(TrainConfig(**{**defaults, **settings}))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"keep_checkpoints": 1}, 2),  # the one that is written lies beside the one that is kept
        ({"keep_checkpoints": 3}, 4),
        ({"keep_checkpoints": 50}, 11),  # steps 0 to 100 by tens; 0 goes when 10 is there, but both are for a moment
        ({"keep_checkpoints": None}, 10),
        ({"keep_checkpoints": None, "total_steps": 100_000}, 10_000),
        ({"keep_checkpoints": 3, "checkpoint_period": 100}, 2),
    ],
)
def test_as_many_as_are_kept_and_one_that_is_written(settings, count):
    assert most(**settings) == pytest.approx(count, abs=1 if settings["keep_checkpoints"] in (None, 50) else 0)


def test_a_full_disk_is_told_with_what_it_takes():
    figures = CheckpointFigures(most=4, present=1, free_bytes=2_999_999)
    said = space.refusal(figures, checkpoint_bytes=1_000_000, uri="/runs/mine/checkpoints")
    assert said is not None
    assert said.startswith("3 more checkpoints of 1.0 MB need 0.00 GB, but the disk of /runs/mine/checkpoints has")
    assert "lower train.keep_checkpoints" in said
    assert "\n" not in said


@pytest.mark.parametrize("free_bytes", [3_000_000, None])
def test_what_fits_is_not_refused(free_bytes):
    figures = CheckpointFigures(most=4, present=1, free_bytes=free_bytes)
    assert space.refusal(figures, checkpoint_bytes=1_000_000, uri="runs") is None
