"""Which checkpoint of a run is offered under a name, and where the decision is told."""

import pytest

from t5core import publishing, storage
from t5core.checkpoints import index
from t5core.config.edges import Cursor, Evaluation
from t5core.config.publish_schema import PublishConfig
from t5core.report import closing, gather, page, summary
from t5core.rundir import RunDirectory
from t5core.stages import evaluate, publish
from tests.t5core import small_runs

RULE = PublishConfig(name="best", task="a")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of seven steps with every second one kept."""
    inputs = small_runs.inputs(small_runs.config(tmp_path_factory.mktemp("publish"), run={"name": "trained"}))
    small_runs.train(inputs)
    return inputs


@pytest.fixture
def evaluated(run):
    """A function that puts evaluations of losses by step in the place of those that are there."""

    def write(losses, *, settings=None, digest=None):
        directory = RunDirectory(run.run.uri)
        for step, loss in losses.items():
            ref = index.reference(directory.checkpoints_uri, step)
            directory.write_evaluation(
                Evaluation(
                    step=step,
                    checkpoint=ref.model_copy(update={"digest": digest or ref.digest}),
                    metrics={"a": {"loss": loss}},
                    seconds=0,
                    reused=False,
                    settings=settings or evaluate.settings_fingerprint(run),
                    uri="",
                )
            )

    yield write
    for file in RunDirectory(run.run.uri).evaluations():
        storage.path(RunDirectory(run.run.uri).evaluation_uri(file.step)).unlink()


def offered(run, *, at=7, rule=RULE):
    cursor = Cursor(checkpoint=index.reference(f"{run.run.uri}/checkpoints", at))
    return publish.candidate_of(run, cursor, rule)


def test_the_best_that_was_evaluated_is_offered(run, evaluated):
    evaluated({2: 5.0, 4: 3.0, 6: 4.0, 7: float("nan")})
    best = offered(run)
    assert (best.checkpoint.step, best.value, best.run_name) == (4, 3.0, "trained")
    assert best.measured_on == evaluate.settings_fingerprint(run)
    assert offered(run, rule=RULE.model_copy(update={"mode": "max"})).checkpoint.step == 2


def test_of_equal_ones_the_later(run, evaluated):
    evaluated({2: 3.0, 4: 3.0})
    assert offered(run).checkpoint.step == 4


def test_what_was_measured_otherwise_or_of_another_state_does_not_count(run, evaluated):
    evaluated({4: 3.0})
    evaluated({2: 1.0}, settings="other")
    evaluated({6: 1.0}, digest="other")
    assert offered(run).checkpoint.step == 4


def test_nothing_past_the_end_of_the_run_is_offered(run, evaluated):
    evaluated({2: 3.0, 6: 1.0})
    assert offered(run, at=4).checkpoint.step == 2


def test_without_evaluations_the_last_is_offered_and_not_published(run):
    assert (offered(run).checkpoint.step, offered(run).value) == (7, None)


def publishing_run(run, rule):
    config = run.run.config.model_copy(update={"publish": rule})
    return run.model_copy(update={"run": run.run.model_copy(update={"config": config})})


def test_the_decision_is_made_once_and_told_everywhere(run, evaluated, capsys):
    evaluated({4: 3.0, 7: 4.0})
    inputs = publishing_run(run, RULE)
    cursor = Cursor(checkpoint=index.reference(f"{run.run.uri}/checkpoints", 7))
    assert publish.publish(inputs, cursor) == cursor
    decision = publishing.recorded(run.run.uri)
    words = "best is step 4 of trained now (the first under this name, a/loss 3)"
    assert (decision.outcome, publishing.in_words(decision)) == ("published", words)
    assert f"publish: {words}" in capsys.readouterr().out
    assert publish.publish(inputs, cursor) == cursor
    assert publishing.history(run.run.config.run.root, "best") == [decision]

    ended = summary.write_summary(run.run.uri, status="completed", checkpoint=cursor.checkpoint)
    assert gather.gather(run.run.uri).summary["publication"]["candidate"]["checkpoint"]["step"] == 4
    assert any(line.startswith("  published    best is step 4 of trained now") for line in closing.closing_lines(ended))
    assert words in page.write_report(run.run.uri)


def test_a_run_that_publishes_nothing_decides_nothing(run):
    cursor = Cursor(checkpoint=index.reference(f"{run.run.uri}/checkpoints", 7))
    assert publish.publish(publishing_run(run, None), cursor) is cursor
