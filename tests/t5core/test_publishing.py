"""Publishing if better: a pointer that moves as a whole, a history that forgets nothing, and nothing deleted."""

import math
import re

import pytest

from t5core import errors, publishing, sharing, storage
from t5core.checkpoints import pins
from t5core.config.edges import CheckpointRef
from t5core.config.publish_schema import PublishConfig
from t5core.lock import RunLock
from t5core.publishing import Candidate, Remeasured

NAME = "best"


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    """What was kept from deletion; there are no checkpoints here."""
    kept = []
    monkeypatch.setattr(pins, "publish", lambda uri, step, name: kept.append((uri, step, name)))
    return kept


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def candidate(run, value, *, step=10, measured_on="same"):
    uri = f"/runs/{run}/checkpoints/{step}"
    checkpoint = CheckpointRef(uri=uri, step=step, digest=f"{run}{step}")
    return Candidate(run_name=run, run_uri=f"/runs/{run}", checkpoint=checkpoint, value=value, measured_on=measured_on)


def offer(root, run, value, *, step=10, measured_on="same", remeasured=None, **rule):
    config = PublishConfig(**{"name": NAME, "task": "t", "metric": "loss", **rule})
    what = candidate(run, value, step=step, measured_on=measured_on)
    return publishing.publish_if_better(config, what, root=root, remeasured=remeasured)


def points_to(root):
    return publishing.current(root, NAME).candidate.run_name


def test_the_first_is_published(root):
    assert publishing.current(root, NAME) is None
    decision = offer(root, "a", 3.0)
    assert (decision.outcome, decision.reason) == ("published", "the first under this name, t/loss 3")
    assert publishing.current(root, NAME) == decision


@pytest.mark.parametrize(
    ("mode", "value", "margin", "moves"),
    [
        ("min", 2.9, 0.0, True),
        ("min", 3.0, 0.0, False),
        ("min", 3.1, 0.0, False),
        ("min", 2.5, 0.5, False),  # by the margin itself is not by more
        ("min", 2.25, 0.5, True),
        ("max", 3.1, 0.0, True),
        ("max", 2.9, 0.0, False),
        ("max", 3.5, 0.5, False),
    ],
)
def test_a_better_one_takes_the_place(root, mode, value, margin, moves):
    offer(root, "a", 3.0, mode=mode)
    decision = offer(root, "b", value, mode=mode, margin=margin)
    assert points_to(root) == ("b" if moves else "a")
    assert decision.outcome == ("published" if moves else "kept")
    assert decision.incumbent.run_name == "a"
    assert f"t/loss {value:.6g} against 3 of a" in decision.reason


def test_losers_stay_in_the_history_with_the_reason(root):
    for run, value in [("a", 3.0), ("b", 4.0), ("c", 2.0)]:
        offer(root, run, value)
    assert [(d.candidate.run_name, d.outcome) for d in publishing.history(root, NAME)] == [
        ("a", "published"), ("b", "kept"), ("c", "published"),
    ]  # fmt: skip
    assert publishing.history(root, NAME)[1].reason == "t/loss 4 against 3 of a: not better"


def test_the_same_candidate_again_gets_the_same_answer(root):
    first, lost = offer(root, "a", 3.0), offer(root, "b", 4.0)
    assert offer(root, "a", 3.0) == first
    assert offer(root, "b", 4.0) == lost
    assert len(publishing.history(root, NAME)) == 2


def test_a_kill_between_the_pointer_and_the_history_leaves_no_gap(root):
    decision = offer(root, "a", 3.0)
    for file in storage.path(f"{root}/published/{NAME}/history").iterdir():
        file.unlink()
    assert offer(root, "a", 3.0) == decision
    assert publishing.history(root, NAME) == [decision]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_published(root, value):
    assert offer(root, "a", value).outcome == "kept"
    assert publishing.current(root, NAME) is None
    assert offer(root, "b", 3.0).outcome == "published"


def test_values_measured_on_other_data_do_not_compare(root):
    offer(root, "a", 3.0)
    decision = offer(root, "b", 1.0, measured_on="other")
    assert (decision.outcome, decision.reason) == ("kept", "a was measured on same, this on other")


def test_the_incumbent_s_value_on_the_same_data_decides(root):
    offer(root, "a", 3.0)
    again = Remeasured(digest="a10", settings="other", value=1.5)
    assert offer(root, "b", 2.0, measured_on="other", remeasured=again).outcome == "kept"
    worse = again.model_copy(update={"value": 2.5})
    assert offer(root, "d", 2.0, measured_on="third", remeasured=worse).outcome == "kept", "it was measured otherwise"
    stale = worse.model_copy(update={"digest": "another"})
    assert offer(root, "e", 2.0, measured_on="other", remeasured=stale).outcome == "kept", "it is of another one"
    decision = offer(root, "c", 2.0, measured_on="other", remeasured=worse)
    assert decision.outcome == "published"
    assert "t/loss 2 against 2.5 of a" in decision.reason


def test_an_incumbent_that_cannot_be_measured_stays_with_the_reason(root):
    offer(root, "a", 3.0)
    unlike = Remeasured(digest="a10", settings="other", value=None, obstacle="its model has emb_dim=8")
    decision = offer(root, "b", 2.0, measured_on="other", remeasured=unlike)
    assert decision.outcome == "kept"
    assert decision.reason == "a cannot be measured on this run's data: its model has emb_dim=8"


def test_what_was_not_evaluated_is_not_published(root):
    assert offer(root, "a", None).reason == "it was not evaluated"
    assert publishing.current(root, NAME) is None


def test_a_decision_in_words_names_winner_and_loser(root):
    words = [publishing.in_words(offer(root, run, value)) for run, value in [("a", 3.0), ("b", 4.0), ("c", 2.0)]]
    assert words == [
        "best is step 10 of a now (the first under this name, t/loss 3)",
        "best stays step 10 of a; step 10 of b is not published (t/loss 4 against 3 of a: not better)",
        "best is step 10 of c now (t/loss 2 against 3 of a: better); step 10 of a, which had the name, is kept",
    ]


def test_the_published_checkpoint_itself_is_no_news(root):
    offer(root, "a", 3.0)
    decision = offer(root, "a", 2.0)
    assert (decision.outcome, decision.reason) == ("kept", "it is the published checkpoint itself")


def test_what_is_published_is_never_deleted(root, pinned):
    offer(root, "a", 3.0, step=10)
    offer(root, "b", 4.0, step=10)
    offer(root, "a", 2.0, step=20)
    assert pinned == [("/runs/a/checkpoints", 10, "best-10"), ("/runs/a/checkpoints", 20, "best-20")]


def test_another_metric_under_the_same_name_is_refused(root):
    offer(root, "a", 3.0)
    with pytest.raises(errors.ConfigError, match="'best' is judged by t/loss, not by t/accuracy") as refusal:
        offer(root, "b", 4.0, metric="accuracy")
    with pytest.raises(errors.ConfigError, match="judged by t/loss"):  # before anything is trained, too
        publishing.check(PublishConfig(name=NAME, task="t", metric="accuracy"), root=root)
    assert "\n" not in str(refusal.value)
    assert points_to(root) == "a"


def test_of_two_at_once_the_second_waits_and_is_judged_by_what_the_first_published(root, monkeypatch, capsys):
    first = RunLock(f"{root}/published/{NAME}/lock.json", owner="flyte:other")
    first.acquire()

    def wait(seconds):
        assert publishing.current(root, NAME) is None
        first.release()
        offer(root, "b", 2.0)

    monkeypatch.setattr(sharing.time, "sleep", wait)
    decision = offer(root, "a", 3.0)
    assert "  another run is being judged for 'best': waiting for it" in capsys.readouterr().out
    assert (decision.outcome, decision.incumbent.run_name) == ("kept", "b")
    assert points_to(root) == "b"


def test_a_damaged_pointer_is_named(root):
    offer(root, "a", 3.0)
    for damaged in ('{"run": "x"}', '{"candidate": {"run_n'):
        storage.write_text(f"{root}/published/{NAME}/current.json", damaged)
        with pytest.raises(errors.IntegrityError, match=re.escape("current.json is no record of a publication; bring")):
            offer(root, "b", 2.0)


def test_a_name_is_no_path():
    with pytest.raises(ValueError, match="'a/b' cannot name a file"):
        PublishConfig(name="a/b", task="t")
