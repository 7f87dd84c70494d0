"""The examples of a SeqIO task as the rows of a job; TensorFlow stays in the worker."""

import sys

import pytest

from t5core.data import worker
from tests.t5core import small_inference
from tests.t5core.small_inference import config, finish, lines, refused

pytestmark = pytest.mark.xdist_group("seqio")
TASK = {"files": [], "inputs": "{inputs}", "module": "tests.t5core.data.registered_tasks"}
BYTES = {"vocabulary": {"kind": "bytes", "extra_ids": 125}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose vocabulary is that of the task."""
    root = tmp_path_factory.mktemp("seqio")
    return small_inference.run(root, lengths={"inputs": 48, "targets": 32}, fingerprint="")


@pytest.fixture(scope="module", autouse=True)
def stopped():
    yield
    worker.stop()


def job(root, run, task, **settings):
    source = {**TASK, "task": task, "split": settings.pop("split", "validation")}
    return config(root, run, "", source=source, **BYTES, **settings)


def test_the_examples_are_scored_in_their_order_with_what_they_hold(run, tmp_path):
    had_tensorflow = "tensorflow" in sys.modules  # of another test in this process
    summary = finish(job(tmp_path, run, "registered_good", mode="score", shard_rows=4))
    found = lines(summary)
    assert (summary.rows, summary.bad_rows, summary.shards) == (6, 0, 2)
    assert [line["number"] for line in found] == list(range(6))
    assert found[3]["answers"] == ["yes 3", "no 3"]
    assert found[3]["inputs_pretokenized"] == "validation question 3"
    assert found[3]["place"] == "registered_good/validation:3"
    assert len({line["score"] for line in found}) == 6
    assert finish(job(tmp_path, run, "registered_good", mode="score", shard_rows=4)).reused_shards == 2
    predicted = lines(finish(job(tmp_path, run, "registered_good", name="predicted")))
    assert all(isinstance(line["prediction"], str) for line in predicted)
    assert ("tensorflow" in sys.modules) == had_tensorflow, "it stays in the worker"


def test_what_does_not_fit_is_refused(run, tmp_path):
    assert "'registered_god'; did you mean 'registered_good'" in refused(job(tmp_path, run, "registered_god"))
    message = refused(job(tmp_path, run, "registered_good", name="b", split="tset"))
    assert "source.split: unknown split of registered_good 'tset'" in message
    message = refused(job(tmp_path, run, "registered_other_vocabulary", name="c"))
    assert "SeqIO task 'registered_other_vocabulary' writes" in message
