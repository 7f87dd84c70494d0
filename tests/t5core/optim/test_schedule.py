import json
import math
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5core import errors
from t5core.config.train_schema import LearningRateConfig
from t5core.optim.factors import FACTORS
from t5core.optim.schedule import learning_rate_schedule, learning_rate_warnings

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "learning_rate.json").read_text())
T5X_DEFAULTS = {
    "factors": "constant * linear_warmup * rsqrt_decay",
    "base_learning_rate": 0.5,
    "warmup_steps": 1000,
}


def golden_config(config):
    given = {**T5X_DEFAULTS, **config}
    if given["factors"] == "constant":
        del given["warmup_steps"]
    return LearningRateConfig(**given)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["config"].get("factors", "defaults"))
def test_rates_are_those_of_t5x(case):
    config = golden_config(case["config"])
    # The one deliberate difference: T5X starts a new cosine cycle there.
    end = config.warmup_steps + config.steps_per_cycle if "cosine" in config.factors else math.inf
    expected = {int(step): rate for step, rate in case["values"].items() if int(step) < end}
    rates = learning_rate_schedule(config)(np.array(list(expected)))
    # 2e-8 of slack: one float32 rounding of the base in what is left of a decay that has reached zero
    np.testing.assert_allclose(rates, list(expected.values()), rtol=1e-6, atol=2e-8)


def test_cosine_stays_at_its_end_after_its_cycle():
    config = LearningRateConfig(
        factors="constant * cosine_decay", base_learning_rate=0.1, warmup_steps=10, steps_per_cycle=100
    )
    rates = np.asarray(learning_rate_schedule(config)(np.arange(300)))
    assert np.all(np.diff(rates) <= 0)
    np.testing.assert_array_equal(rates[110:], np.float32(config.min_learning_rate))


@pytest.mark.parametrize(
    ("factors", "rates"),
    [
        ("constant * linear_warmup", [2.0, 2.0, 2.0]),
        ("constant * rsqrt_decay", [2.0, 2.0, 1.0]),
        ("constant * rsqrt_normalized_decay", [2.0, 2.0, 1.0]),
        ("linear_decay", [2.0, 1.8, 1.2]),
        ("constant * cosine_decay", [2.0, 2.0, 2.0]),
    ],
)
def test_no_warmup_steps_means_no_warmup(factors, rates):
    used = {"decay_factor": 0.1} if factors == "linear_decay" else {}
    config = LearningRateConfig(factors=factors, base_learning_rate=2.0, warmup_steps=0, **used)
    np.testing.assert_allclose(learning_rate_schedule(config)(np.array([0, 1, 4])), rates, rtol=1e-6)


@st.composite
def any_config(draw):
    names = draw(st.lists(st.sampled_from(FACTORS), min_size=1, max_size=4))
    every = {
        "base_learning_rate": draw(st.floats(1e-6, 1e6)),
        "warmup_steps": draw(st.integers(0, 10**6)),
        "decay_factor": draw(st.floats(1e-6, 1.0)),
        "steps_per_decay": draw(st.integers(1, 10**6)),
        "steps_per_cycle": draw(st.integers(1, 10**6)),
        "step_offset": draw(st.integers(0, 10**6)),
        "min_learning_rate": draw(st.floats(0, 1e-3)),
    }
    for unused in draw(st.sets(st.sampled_from(sorted(every)))):
        del every[unused]
    try:
        config = LearningRateConfig(factors=" * ".join(names), **every)
        learning_rate_schedule(config)
    except errors.ConfigError:
        config = LearningRateConfig(factors=" * ".join([*names, *FACTORS]), **every)
    return config


@settings(max_examples=60, deadline=None, derandomize=True)
@given(any_config())
def test_rates_are_finite_and_at_least_the_minimum_at_every_step(config):
    rates = np.asarray(learning_rate_schedule(config)(np.array([0, 1, 2, 999, 10**4, 10**6, 2**31 - 1])))
    assert rates.dtype == np.float32
    assert np.all(np.isfinite(rates))
    assert np.all(rates >= np.float32(config.min_learning_rate))


def test_jitted_arrays_of_steps_give_the_rates_of_single_steps():
    schedule = learning_rate_schedule(LearningRateConfig(**T5X_DEFAULTS))
    steps = np.arange(0, 3000, 250)
    one_by_one = np.array([schedule(int(step)) for step in steps])
    np.testing.assert_allclose(jax.jit(schedule)(steps), one_by_one, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        (
            {"factors": "constant * linear_warmpu"},
            "unknown learning-rate factor 'linear_warmpu'; did you mean 'linear_warmup'? known: ",
        ),
        ({"factors": "constant *"}, "unknown learning-rate factor ''; known: "),
        (
            {"factors": "constant", "warmup_steps": 100},
            "warmup_steps=100 has no effect with factors 'constant'; remove it or add one of: linear_warmup, ",
        ),
        (
            {"factors": "rsqrt_decay", "base_learning_rate": 0.1},
            "base_learning_rate=0.1 has no effect with factors 'rsqrt_decay'; remove it or add one of: constant, ",
        ),
        (
            {"factors": "constant", "step_offset": 5},
            "step_offset=5 has no effect with factors 'constant'; remove it or add one of: linear_warmup, ",
        ),
        (
            {"factors": "constant * decay_every", "decay_factor": 2.0},
            "decay_factor=2.0 makes decay_every grow without bound; give at most 1",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_construction(settings_given, message):
    with pytest.raises(errors.ConfigError) as raised:
        learning_rate_schedule(LearningRateConfig(**settings_given))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("settings_given", "total_steps", "lines"),
    [
        ({"factors": "constant * linear_warmup", "warmup_steps": 10}, 100, ()),
        (
            {"factors": "constant * linear_warmup", "warmup_steps": 10, "step_offset": 50},
            100,
            ("the learning rate stays at its minimum of 1e-08 for the first 51 steps",),
        ),
        ({"factors": "constant * cosine_decay", "warmup_steps": 0, "steps_per_cycle": 100}, 100, ()),
        (
            {"factors": "constant * cosine_decay", "warmup_steps": 0, "steps_per_cycle": 100},
            140,
            ("the learning rate is at its minimum of 1e-08 from step 100 to the end, 140",),
        ),
        (
            {"factors": "constant", "base_learning_rate": 1e-9},
            100,
            ("the learning rate stays at its minimum of 1e-08 for all 100 steps",),
        ),
    ],
)
def test_stretches_without_learning_are_reported(settings_given, total_steps, lines):
    assert learning_rate_warnings(LearningRateConfig(**settings_given), total_steps) == lines


def test_factor_names_are_checked_without_jax():
    probe = "import sys; import t5core.optim.factors; print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
