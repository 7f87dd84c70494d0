"""Metrics of a task: on the raw targets, not on what is left of them in tokens."""

import pytest

from t5core import errors
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.data.vocabulary import ByteVocabulary
from t5core.evaluation import task_metrics
from tests.t5core.data import making

LONG = "a target that is far longer than eight tokens are"
TEXTS = [
    {"inputs_pretokenized": "i", "targets_pretokenized": LONG},
    {"inputs_pretokenized": "j", "targets_pretokenized": "kurz\nund «gut» {}"},
]


@pytest.fixture
def task(tmp_path):
    settings = {
        "name": "t",
        "files": ["x.tsv"],
        "objective": "supervised",
        "metrics": ["sequence_accuracy", "edit_similarity"],
    }
    data = load.validate({"data": {"tasks": [settings]}}, PretrainConfig, origin="test").data
    rows = making.examples(2)
    uri = making.task_dataset(str(tmp_path), "t", rows, validation=rows, texts=TEXTS).uri
    return lambda predictions: task_metrics.score(data, "t", uri, predictions)


def test_a_target_that_was_cut_in_tokens_counts_in_full(task):
    assert task([text["targets_pretokenized"] for text in TEXTS]) == {"sequence_accuracy": 100, "edit_similarity": 100}
    cut = ByteVocabulary(extra_ids=0)
    first_tokens = cut.decode(cut.encode(LONG)[:7])
    found = task([first_tokens, TEXTS[1]["targets_pretokenized"]])
    assert found["sequence_accuracy"] == 50
    assert found["edit_similarity"] == pytest.approx(50 * (1 + len(first_tokens) / len(LONG)))


def test_fewer_predictions_are_scored_on_as_many_examples(task):
    assert task([LONG])["sequence_accuracy"] == 100
    with pytest.raises(errors.IntegrityError, match="holds 2 examples, but there are 3 predictions"):
        task([LONG] * 3)
