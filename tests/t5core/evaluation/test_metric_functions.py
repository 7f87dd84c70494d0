import pytest

from t5core import errors
from t5core.evaluation import metric_functions
from t5core.evaluation.metric_functions import METRICS, compute, metric_function

NAMES = sorted(METRICS)


def value(name, target, prediction):
    (found,) = metric_function(name)([target], [prediction]).values()
    return found


def count_of_letters(targets, predictions):
    return {"letters": sum(map(len, predictions))}


def same_name(targets, predictions):
    return {"token_f1": 0.0}


def of_scores(targets, scores):
    return {}


@pytest.mark.parametrize("name", NAMES)
def test_each_gives_one_value_under_its_own_name(name):
    assert list(metric_function(name)(["a b"], ["a b"])) == [name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["The cat sat on the mat.", "ä ☃ 漢字", "x", "1 2 3"])
def test_equal_texts_score_100(name, text):
    assert value(name, text, text) == pytest.approx(100.0)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_common_scores_0(name):
    assert value(name, "abc def", "xyz uvw") == pytest.approx(0.0, abs=15.0)
    assert value(name, "abc", "") == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_two_empty_texts_agree(name):
    assert value(name, "", "") == 100.0


@pytest.mark.parametrize("name", NAMES)
def test_no_examples_is_no_division_by_zero(name):
    assert list(metric_function(name)([], []).values()) == [0.0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "chrf"])
def test_examples_count_alike(name):
    targets, predictions = ["a b c", "d e", "f"], ["a b x", "d e", "g"]
    apart = [value(name, target, prediction) for target, prediction in zip(targets, predictions, strict=True)]
    (together,) = metric_function(name)(targets, predictions).values()
    assert together == pytest.approx(sum(apart) / 3)


@pytest.mark.parametrize(
    ("name", "target", "prediction", "expected"),
    [
        ("sequence_accuracy", "Yes.", " Yes. ", 100.0),
        ("sequence_accuracy", "Yes.", "yes.", 0.0),
        ("exact_match", "The answer: Yes!", "answer yes", 100.0),
        ("exact_match", "yes", "yes indeed", 0.0),
        ("token_f1", "one two three", "three two", 100 * 2 * (1 * 2 / 3) / (1 + 2 / 3)),
        ("token_f1", "one one", "one", 100 * 2 * (1 * 1 / 2) / (1 + 1 / 2)),
        ("edit_similarity", "kitten", "sitting", 100 * (1 - 3 / 7)),
        ("rouge_l", "police killed the gunman", "police kill the gunman", 75.0),
        ("rouge_l", "police killed the gunman", "the gunman kill police", 50.0),
        ("chrf", "ab", "ac", 25.0),
    ],
)
def test_values_by_hand(name, target, prediction, expected):
    assert value(name, target, prediction) == pytest.approx(expected)


def test_chrf_weighs_recall_more_than_precision():
    assert value("chrf", "abcdefgh", "abcdefghxxxx") > value("chrf", "abcdefghxxxx", "abcdefgh")


def test_a_user_s_own_function_by_its_path():
    path = f"{__name__}.count_of_letters"
    assert compute(["token_f1", path], targets=["a"], predictions=["a"]) == {"token_f1": 100.0, "letters": 1.0}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "token_f",
            f"unknown metric 'token_f'; did you mean 'token_f1'? known: {', '.join(NAMES)}; or give module.function",
        ),
        (
            "no_such_module.f",
            "metric 'no_such_module.f' cannot be imported: No module named 'no_such_module'; give module.function, "
            "importable where the run is",
        ),
        (
            "string.capword",
            "metric 'string.capword': unknown name in string 'capword'; did you mean 'capwords'? known: Formatter, "
            "Template, ascii_letters, ascii_lowercase, ascii_uppercase, capwords, digits, hexdigits, octdigits, "
            "printable, punctuation, whitespace",
        ),
        (
            f"{__name__}.of_scores",
            f"metric '{__name__}.of_scores' takes (targets, scores); make it a function of (targets, predictions)",
        ),
    ],
)
def test_unknown_metrics(name, message):
    with pytest.raises(errors.ConfigError) as caught:
        metric_functions.metric_function(name)
    assert str(caught.value) == message


def test_two_values_of_one_name():
    path = f"{__name__}.same_name"
    with pytest.raises(errors.ConfigError) as caught:
        compute(["token_f1", path], targets=["a"], predictions=["a"])
    assert str(caught.value) == f"metric {path!r} gives 'token_f1', and so does another metric; remove one"
