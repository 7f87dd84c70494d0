"""Figures from sums: exact over unequal steps, and under T5X's names."""

import math

import pytest

from t5core.metrics import summarise


def sums(*, tokens, loss_per_token, correct=0, positions=20, sequences=2):
    return {
        "objective": loss_per_token,
        "loss": tokens * loss_per_token,
        "z_loss": tokens * 0.5,
        "cross_ent_loss": tokens * (loss_per_token - 0.5),
        "weight_sum": tokens,
        "correct": correct,
        "nonpadding_tokens": tokens,
        "target_tokens": positions,
        "num_examples": sequences,
        "tokens/encoder": 10,
        "non_padding_tokens/encoder": 4,
        "effective_batch_size/encoder": sequences,
        "tokens/decoder": positions,
        "non_padding_tokens/decoder": tokens,
        "effective_batch_size/decoder": sequences,
    }


STEPS = [sums(tokens=10, loss_per_token=4.0, correct=5), sums(tokens=2, loss_per_token=1.0, correct=1, sequences=1)]


def test_per_token_figures_weigh_tokens_and_the_loss_weighs_steps():
    figures = summarise.summarise(STEPS)
    assert figures["loss"] == pytest.approx(2.5)
    assert figures["loss_per_nonpadding_target_token"] == pytest.approx(42 / 12)
    assert figures["loss_per_all_target_tokens"] == pytest.approx(42 / 40)
    assert figures["accuracy"] == pytest.approx(6 / 12)
    assert figures["z_loss"] == pytest.approx(3.0)
    assert figures["cross_ent_loss_per_all_target_tokens"] == pytest.approx(36 / 40)


def test_padding_is_counted_by_feature_and_over_all():
    figures = summarise.summarise(STEPS)
    assert figures["non_padding_fraction/encoder"] == pytest.approx(8 / 20)
    assert figures["non_padding_fraction/decoder"] == pytest.approx(12 / 40)
    assert figures["non_padding_fraction/overall"] == pytest.approx(20 / 60)
    assert figures["non_padding_fraction/loss_weights"] == pytest.approx(12 / 40)
    assert figures["effective_batch_size/encoder"] == pytest.approx(1.5)


def test_an_evaluation_does_not_depend_on_its_batches():
    whole = [{name: a + b for (name, a), b in zip(STEPS[0].items(), STEPS[1].values(), strict=True)}]
    whole[0]["objective"] = 42 / 12
    for name in summarise.EVALUATION_METRICS:
        if name.endswith(("_loss",)):
            continue  # totals of a batch, averaged over batches
        split, joined = summarise.evaluation_figures(STEPS)[name], summarise.evaluation_figures(whole)[name]
        assert split == pytest.approx(joined), name


def test_every_metric_an_action_may_name_is_there():
    assert set(summarise.EVALUATION_METRICS) <= set(summarise.evaluation_figures(STEPS))


def test_nan_stays_nan():
    assert math.isnan(summarise.summarise([sums(tokens=3, loss_per_token=math.nan)])["loss"])


def test_throughput_divides_by_seconds_and_devices():
    timing = summarise.timing(STEPS, seconds=2.0, num_devices=4)
    assert timing["timing/steps_per_second"] == 1.0
    assert timing["timing/seconds_per_step"] == 1.0
    assert timing["timing/seqs_per_second"] == pytest.approx(1.5)
    assert timing["timing/target_tokens_per_second_per_core"] == pytest.approx(12 / 2 / 4)
