"""SeqIO mixtures by name: each gives way to its tasks with its rates."""

import pytest

from t5core import errors
from t5core.data import registered_mixtures, worker
from t5core.stages import resolve
from tests.t5core.data.task_runs import run_of

pytestmark = pytest.mark.xdist_group("seqio")

MODULE = f"{__package__}.registered_tasks"


def expanded(*tasks, **settings):
    config = run_of("x", list(tasks), module=MODULE, **settings).config
    return {task.name: task.rate for task in registered_mixtures.expanded(config).data.tasks}


def test_a_mixture_gives_its_tasks_with_its_rates():
    assert expanded({"name": "registered_mixture"}) == {"registered_good": 1.0, "registered_noisy": 1.0}


def test_mixtures_of_mixtures_multiply_their_rates():
    found = expanded({"name": "registered_nested"})
    assert found == {"registered_counted": 1.0, "registered_good": 1.5, "registered_noisy": 1.5}


def test_beside_other_tasks_its_rates_add_up_to_its_own():
    found = expanded({"name": "registered_mixture", "rate": 0.5}, {"name": "registered_counted", "rate": 0.25})
    assert found == {"registered_good": 0.25, "registered_noisy": 0.25, "registered_counted": 0.25}


def test_the_other_settings_go_to_each_task():
    config = run_of("x", [{"name": "registered_mixture", "max_validation_examples": 3}], module=MODULE).config
    found = registered_mixtures.expanded(config).data.tasks
    assert [task.max_validation_examples for task in found] == [3, 3]


def test_tasks_stay_as_they_are():
    config = run_of("x", [{"name": "registered_good"}], module=MODULE).config
    assert registered_mixtures.expanded(config) == config


@pytest.mark.parametrize(("task", "known"), [("registered_good", True), ("registered_mixture", False)])
def test_actions_name_the_tasks_of_a_mixture(task, known):
    actions = [{"name": "terminate_on_nan", "task": task, "metric": "loss"}]
    config = run_of("x", [{"name": "registered_mixture"}], module=MODULE, train={"actions": actions}).config
    if known:
        resolve.check(registered_mixtures.expanded(config))
        return
    with pytest.raises(errors.ConfigError, match=r"^train\.actions\.0: unknown task 'registered_mixture'; did you"):
        resolve.check(registered_mixtures.expanded(config))


def test_without_seqio_tasks_no_worker_is_needed(monkeypatch):
    monkeypatch.setattr(worker, "start", lambda: pytest.fail("the worker was started"))
    config = run_of("x", [{"name": "t", "files": ["x.txt"]}]).config
    assert registered_mixtures.expanded(config) == config


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (
            [{"name": "registered_mixture"}, {"name": "registered_counted"}],
            "data.tasks: the SeqIO mixture 'registered_mixture' has no rate beside other tasks; give each of them one",
        ),
        (
            [{"name": "registered_mixture", "rate": 1}, {"name": "registered_good", "rate": 1}],
            "data.tasks: task 'registered_good' comes twice, as a part of a SeqIO mixture; name it once",
        ),
        (
            [{"name": "registered_mixtur"}],
            "unknown SeqIO task or mixture 'registered_mixtur'; did you mean 'registered_mixture'? known: registered_",
        ),
        (
            [{"name": "registered_by_size"}],
            "SeqIO mixture 'registered_by_size': the rate of 'registered_good' cannot be told (",
        ),
    ],
)
def test_what_cannot_work(tasks, message):
    with pytest.raises(errors.ConfigError) as caught:
        expanded(*tasks)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
