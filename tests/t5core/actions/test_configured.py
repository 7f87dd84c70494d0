"""Actions of a configuration: names that no evaluation will have are refused at the start, with those there are."""

import pytest

from t5core import errors
from t5core.actions import configured
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.evaluation.metric_functions import METRICS
from t5core.stages import resolve

HERE = "tests.t5core.user_actions"
TEXT = {"name": "text", "files": ["a.txt"]}
PAIRS = {"name": "pairs", "files": ["a.tsv"], "objective": "supervised", "metrics": ["exact_match", "chrf"]}
OWN = {"name": "own", "files": ["a.tsv"], "objective": "supervised", "metrics": ["my.metric"]}


def config_with(*actions):
    settings = {"data": {"tasks": [TEXT, PAIRS, OWN]}, "train": {"actions": list(actions)}}
    return load.validate(settings, PretrainConfig, origin="test")


@pytest.mark.parametrize("name", ["terminate_on_nan", "early_stopping", "keep_best"])
@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("text", "loss"),
        ("text", "accuracy"),
        ("text", "non_padding_fraction/encoder"),
        ("pairs", "loss"),
        ("pairs", "chrf"),
        ("pairs", "length_limit_fraction"),
        ("own", "what_my_metric_gives"),
        ("mixture", "loss"),
    ],
)
def test_the_names_that_an_evaluation_will_have_are_accepted(name, task, metric):
    configured.check(config_with({"name": name, "task": task, "metric": metric}))


@pytest.mark.parametrize("name", ["terminate_on_nan", "early_stopping", "keep_best"])
@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        ("text", "los", "train.actions.0: unknown metric of task 'text' 'los'; did you mean 'loss'? known: accuracy, "),
        ("text", "exact_match", "train.actions.0: unknown metric of task 'text' 'exact_match'; "),
        ("mixture", "chrf", "train.actions.0: unknown metric of task 'mixture' 'chrf'; "),
        (
            "pairs",
            "exact_macth",
            "unknown metric of task 'pairs' 'exact_macth'; did you mean 'exact_match'? known: acc",
        ),
    ],
)
def test_an_unknown_metric_is_refused_with_the_names_there_are(name, task, metric, message):
    with pytest.raises(errors.ConfigError) as raised:
        configured.check(config_with({"name": name, "task": task, "metric": metric}))
    assert message in str(raised.value)


def test_a_metric_of_ours_gives_a_value_of_its_own_name_and_no_other():
    for name, function in METRICS.items():
        assert set(function(["a b"], ["a c"])) == {name}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            {"function": f"{HERE}.loss_below"},
            r"train\.actions\.1: .*loss_below.* cannot be called as .*missing a required argument: 'limit'",
        ),
        (
            {"function": f"{HERE}.Countdown", "arguments": {"n": 1, "watched_task": "txet"}},
            r"train\.actions\.1: unknown task 'txet'; did you mean 'text'\?",
        ),
    ],
)
def test_the_first_stage_refuses_a_function_that_cannot_be_called(action, message):
    config = config_with({"name": "budget", "seconds": 1}, {"name": "call", **action})
    with pytest.raises(errors.ConfigError, match=message):
        resolve.check(config)


def test_a_task_that_was_found_without_a_validation_split_cannot_be_watched():
    config = config_with({"name": "budget", "seconds": 1}, {"name": "keep_best", "task": "pairs"})
    configured.check_evaluated(config, {"text": ["train"], "pairs": ["train", "validation"]})
    with pytest.raises(
        errors.ConfigError,
        match=r"actions\.1 watches task 'pairs', which has no validation split; tasks that have one: mixture, text",
    ):
        configured.check_evaluated(config, {"text": ["train", "validation"], "pairs": ["train"]})


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        ({"task": "txet"}, r"publish\.task: unknown task 'txet'; did you mean 'text'\?"),
        ({"task": "text", "metric": "los"}, r"publish: unknown metric of task 'text' 'los'; did you mean 'loss'\?"),
    ],
)
def test_what_decides_about_a_publication_has_to_be_measured(publish, message):
    settings = {"data": {"tasks": [TEXT, PAIRS]}, "publish": {"name": "best", **publish}}
    with pytest.raises(errors.ConfigError, match=message):
        configured.check(load.validate(settings, PretrainConfig, origin="test"))


def test_a_publication_needs_a_validation_split():
    settings = {"data": {"tasks": [TEXT, PAIRS]}, "publish": {"name": "best", "task": "pairs"}}
    config = load.validate(settings, PretrainConfig, origin="test")
    configured.check(config)
    with pytest.raises(errors.ConfigError, match="publish watches task 'pairs', which has no validation split"):
        configured.check_evaluated(config, {"text": ["train", "validation"], "pairs": ["train"]})


def test_the_mixture_can_be_watched_where_any_of_its_tasks_is_evaluated():
    config = config_with({"name": "keep_best", "task": "mixture"})
    configured.check_evaluated(config, {"text": ["train"], "pairs": ["train", "validation"]})
    with pytest.raises(errors.ConfigError, match="watches task 'mixture', which has no validation split"):
        configured.check_evaluated(config, {"text": ["train"], "pairs": ["train"]})
