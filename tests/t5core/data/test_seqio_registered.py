"""SeqIO tasks of the user's own module, from materialisation to metrics."""

import numpy as np
import pytest

from t5core import errors, storage
from t5core.config.edges import RunInputs
from t5core.data import store, worker
from t5core.data.vocabulary_training import build_vocabulary
from t5core.evaluation import identity, task_metrics
from tests.t5core.data.task_runs import made, raw, rows_of, run_of

pytestmark = pytest.mark.xdist_group("seqio")

MODULE = f"{__package__}.registered_tasks"
PROBE = f"{__package__}.seqio_probe"


def make(root, name, *, module=MODULE, **settings):
    return made(root, [{"name": name}], module=module, **settings)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make(tmp_path_factory.mktemp("good"), "registered_good")


def test_its_examples_are_kept(good):
    assert good.rows == 40
    assert [example["number"] for example in raw(good)] == list(range(6))
    assert raw(good)[2] == {
        "inputs_pretokenized": "validation question 2",
        "targets_pretokenized": "ANSWER 2 ☃ ☃ ☃",
        "answers": ["yes 2", "no 2"],
        "number": 2,
    }


def test_it_is_reused_while_data_and_code_stay(good):
    again = make(good.uri.rsplit("/", 2)[0], "registered_good")
    assert again.reused
    assert again.uri == good.uri


def test_its_own_metrics(good):
    config = run_of("x", [{"name": "registered_good", "metrics": ["sequence_accuracy"]}], module=MODULE).config.data
    predictions = [f"answer {n} ☃ ☃ ☃" for n in range(4)]
    found = task_metrics.score(config, "registered_good", good.uri, predictions)
    assert found == {"agreement": 1.0, "sequence_accuracy": 0.0}


METRIC_MODULES = {
    "edited_tasks": f"""
import edited_metrics, edited_postprocessors
from {MODULE} import add

add("registered_edited", metric_fns=[edited_metrics.shared], postprocess_fn=edited_postprocessors.lower)
""",
    "edited_metrics": """
def shared(targets, predictions):
    return {"shared": sum(t == p for t, p in zip(targets, predictions))}
""",
    "edited_postprocessors": """
def lower(text, example=None, is_target=False):
    return text.lower()
""",
}


@pytest.mark.parametrize(
    ("module", "old", "new", "counts"),
    [
        ("edited_metrics", "t == p", "t != p", True),
        ("edited_metrics", "def shared", "# how many agree\ndef shared", False),
        ("edited_postprocessors", "lower()", "upper()", True),
        ("edited_postprocessors", "    return", '    """Returns it in small letters."""\n    return', False),
    ],
)
def test_the_code_of_its_metrics_counts_for_an_evaluation(tmp_path, monkeypatch, module, old, new, counts):
    def described(target, *arguments):
        assert target == "t5core.evaluation.seqio_metrics:describe_metrics"
        return call(f"{PROBE}:metrics_described_anew", str(tmp_path), list(METRIC_MODULES), *arguments)

    call = worker.call
    monkeypatch.setattr(worker, "call", described)
    run = run_of(tmp_path, [{"name": "registered_edited"}], module="edited_tasks")
    inputs = RunInputs.model_construct(run=run, vocabulary=build_vocabulary(run).reference, tasks=[])
    for name, source in METRIC_MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    before = identity.parts(inputs)
    assert identity.parts(inputs) == before
    changed = METRIC_MODULES[module].replace(old, new)
    assert changed != METRIC_MODULES[module]
    (tmp_path / f"{module}.py").write_text(changed)
    after = identity.parts(inputs)
    assert [part for part in after if after[part] != before[part]] == ["metrics"] * counts


def test_metrics_of_scores_are_refused(good):
    config = run_of("x", [{"name": "registered_scored"}], module=MODULE).config.data
    with pytest.raises(errors.ConfigError, match="has a metric function of scores or auxiliary values; only"):
        task_metrics.score(config, "registered_scored", good.uri, ["a"])


def test_noise_differs_between_passes_and_repeats_with_the_seed(tmp_path):
    one = make(tmp_path / "one", "registered_noisy", passes=2)
    two = make(tmp_path / "two", "registered_noisy", passes=2)
    rows = rows_of(one)["inputs"]
    assert not np.array_equal(rows[:40], rows[40:])
    assert np.array_equal(rows, rows_of(two)["inputs"])
    other = make(tmp_path / "one", "registered_noisy", passes=2, seed=5)
    assert other.reason == f"seed changed since fingerprint {one.fingerprint}"
    assert not np.array_equal(rows, rows_of(other)["inputs"])


def test_our_preprocessors_serve_in_it(tmp_path):
    dataset = make(tmp_path, "registered_span_corruption")
    assert all((row >= 259).any() for row in rows_of(dataset)["inputs"])


def test_a_missing_validation_split_may_be_allowed(tmp_path):
    dataset = make(tmp_path, "registered_without_validation", allow_missing_split=True)
    assert sorted(store.read_manifest(dataset.uri).splits) == ["train"]


def test_an_empty_validation_split_may_be_allowed(tmp_path):
    dataset = make(tmp_path, "registered_empty_validation", allow_missing_split=True)
    assert sorted(store.read_manifest(dataset.uri).splits) == ["train"]


def test_its_own_filters_are_counted_by_reason(tmp_path):
    record = store.read_manifest(make(tmp_path, "registered_counted").uri).splits
    # "train question N" is 16 bytes long for N < 10, and a multiple of four is seen first.
    assert record["train"].dropped == {"divisible by four": 10, "short": 7}
    assert record["train"].rows == 40 - 17
    assert record["validation"].dropped == {"divisible by four": 2}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "registered_god",
            errors.ConfigError,
            "unknown SeqIO task or mixture 'registered_god'; did you mean 'registered_good'? known: registered_",
        ),
        (
            "registered_mixture",
            errors.ConfigError,
            "'registered_mixture' is a SeqIO mixture, not a task; name one of its tasks: registered_good, "
            "registered_noisy",
        ),
        (
            "registered_without_validation",
            errors.DataError,
            "task 'registered_without_validation' has no validation split, only test, train; add it, or set "
            "data.allow_missing_split=true",
        ),
        (
            "registered_without_train",
            errors.DataError,
            "task 'registered_without_train' has no train split, only validation; add it",
        ),
        (
            "registered_other_vocabulary",
            errors.ConfigError,
            "SeqIO task 'registered_other_vocabulary' writes inputs with a bytes vocabulary of 266 ids, 7 of them "
            "extra (",
        ),
        (
            "registered_pass_through",
            errors.ConfigError,
            "SeqIO task 'registered_pass_through': inputs has a PassThroughVocabulary, which is not supported; "
            "use a SentencePieceVocabulary or a ByteVocabulary",
        ),
        (
            "registered_filtered",
            errors.DataError,
            "task 'registered_filtered' gives no training examples from the 40 in its source; "
            "look at its text and its filters",
        ),
        ("registered_failing", AttributeError, ""),
        (
            "registered_empty_validation",
            errors.DataError,
            "task 'registered_empty_validation': its validation split gives no examples; mend its text or filters",
        ),
        (
            "registered_required",
            errors.ConfigError,
            "SeqIO task 'registered_required' requires a SeqIO cache; set use_cached and data.seqio_cache_dirs, or ",
        ),
    ],
)
def test_what_cannot_be_used(tmp_path, name, error, message):
    with pytest.raises(error) as caught:
        make(tmp_path, name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "datasets").exists() or not list((tmp_path / "datasets").iterdir())


def test_a_module_that_cannot_be_imported(tmp_path):
    with pytest.raises(errors.ConfigError) as caught:
        make(tmp_path, "any", module="no_such_module")
    assert str(caught.value) == (
        "data.module='no_such_module' cannot be imported: No module named 'no_such_module'; "
        "check its name and PYTHONPATH"
    )


def test_the_files_of_a_source_count_by_content(tmp_path):
    storage.write_text(tmp_path / "a.txt", "a\n")
    before = worker.call(f"{PROBE}:data_of_files", f"{tmp_path}/*.txt")
    assert worker.call(f"{PROBE}:data_of_files", f"{tmp_path}/*.txt") == before
    storage.write_text(tmp_path / "a.txt", "b\n")
    assert worker.call(f"{PROBE}:data_of_files", f"{tmp_path}/*.txt") != before
