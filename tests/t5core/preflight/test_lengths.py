"""Lengths of examples: what fits to the token is not cut, and no token is lost or made."""

import pytest

from t5core.config.data_schema import TaskConfig
from t5core.preflight import lengths

ROOM = {"inputs": 12, "targets": 8}


def task(objective):
    return TaskConfig(name="mine", files=["a.tsv"], objective=objective, inputs="say {a}", targets="{b}: {a}")


def found(objective, *counts, sentinels=10):
    return lengths.example_lengths(task(objective), counts, lengths=ROOM, sentinels=sentinels)


def test_what_fits_with_its_end_is_whole_and_one_token_more_is_cut():
    made = found("supervised", {"inputs": 11, "targets": 7}, {"inputs": 12, "targets": 8}, {"inputs": 1, "targets": 90})
    assert made.tokens["inputs"].tolist() == [12, 12, 2]
    assert made.tokens["targets"].tolist() == [8, 8, 8]
    assert made.truncated == {"inputs": 1, "targets": 2}


def test_a_language_model_reads_each_token_and_one_end():
    made = found("lm", {"targets": 7}, {"targets": 8}, {"targets": 20})
    assert made.tokens["targets"].tolist() == [8, 8, 1, 8, 8, 5]


def test_a_prefix_is_cut_within_both_lengths_and_nothing_is_lost():
    made = found("prefix_lm", *({"targets": size} for size in range(1, 60)))
    inputs, targets = made.tokens["inputs"], made.tokens["targets"]
    assert (inputs + targets - 2).sum() == sum(range(1, 60))
    assert inputs.max() <= ROOM["inputs"]
    assert targets.max() <= ROOM["targets"]
    assert len(made) == sum(-(-size // 18) for size in range(1, 60))


def test_corrupted_text_fills_the_inputs():
    made = found("span_corruption", {"targets": 11}, {"targets": 22})
    assert made.tokens["inputs"].max() == 12
    spread = made.tokens["inputs"] + made.tokens["targets"]
    assert (spread - 4).sum() == 33, "each chunk adds a sentinel on either side and two ends"


@pytest.mark.parametrize(
    ("objective", "texts"),
    [("supervised", {"inputs": "say x", "targets": "y: x"}), ("lm", {"targets": "t"})],
)
def test_the_texts_are_those_that_the_task_tokenises(objective, texts):
    assert lengths.texts_of(task(objective), {"a": "x", "b": "y", "text": "t"}) == texts


def test_denoised_text_fits_and_loses_no_token():
    task = TaskConfig(name="t", files=["x.txt"], objective="ul2", denoisers=[{"noise": "suffix", "noise_density": 0.5}])
    found = lengths.example_lengths(
        task, [{"targets": 100}, {"targets": 7}], lengths={"inputs": 24, "targets": 16}, sentinels=100
    )
    sides = found.tokens
    assert sides["inputs"].max() <= 24
    assert sides["targets"].max() == 16
    assert sum(int(side.sum()) - len(side) for side in sides.values()) == 107
