"""Filters of a task: what they leave, and that every drop is counted under its reason with its first place."""

import pydantic
import pytest

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.config.preprocessing_schema import FilterConfig
from t5core.data import filters, store
from t5core.data.sources import TRAIN, VALIDATION, TaskSource
from tests.t5core.data.task_runs import made, rows_of


def task(file, *entries, **settings):
    return TaskConfig(name="t", files=[str(file)], filters=list(entries), **{"validation_fraction": 0, **settings})


def kept(file, *entries, **settings):
    return [document.columns["text"] for document in TaskSource(task(file, *entries, **settings)).documents(TRAIN)]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(12)))
    return tmp_path / "a.txt"


@pytest.mark.parametrize(
    ("entry", "numbers"),
    [
        ({"min_characters": 7}, [10, 11]),
        ({"max_characters": 6}, range(10)),
        ({"must_match": r"[13]$"}, [1, 3, 11]),
        ({"must_not_match": "^line 1"}, [0, *range(2, 10)]),
        ({"function": f"{__package__}.filtering.is_even"}, [0, 2, 4, 6, 8, 10]),
        ({"function": f"{__package__}.filtering.all_are_even"}, [0, 2, 4, 6, 8, 10]),
        ({"min_characters": 7, "column": "text"}, [10, 11]),
    ],
)
def test_a_criterion_leaves_what_meets_it_and_counts_the_rest(file, entry, numbers):
    assert kept(file, entry) == [f"line {number}" for number in numbers]
    scan, reason = TaskSource(task(file, entry)).scan, FilterConfig(**entry).reason
    assert scan.dropped[TRAIN] == {reason: 12 - len(numbers)}
    assert scan.documents[TRAIN] == len(numbers)
    first = next(number for number in range(12) if number not in numbers)
    assert scan.first[TRAIN] == {reason: f"{file}:{first + 1}"}


def test_a_drop_is_counted_under_the_first_filter_that_it_fails(file):
    entries = [{"must_match": "line", "name": "all"}, {"min_characters": 7, "name": "short"}, {"must_match": "11"}]
    assert TaskSource(task(file, *entries)).scan.dropped[TRAIN] == {"short": 10, "must_match=11": 1}


def test_every_column_that_is_read_has_to_pass_unless_one_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text("inputs\ttargets\nlonger\tx\nlonger\tlonger\nx\tlonger\n")
    settings = {"objective": "supervised"}

    def left(**entry):
        source = TaskSource(task(tmp_path / "a.tsv", {"min_characters": 3, **entry}, **settings))
        return [tuple(document.columns.values()) for document in source.documents(TRAIN)]

    assert left() == [("longer", "longer")]
    assert left(column="targets") == [("longer", "longer"), ("x", "longer")]


def test_validation_is_filtered_as_well(file):
    found = TaskSource(task(file, {"function": f"{__package__}.filtering.is_even"}, validation_fraction=0.5)).scan
    assert found.documents[TRAIN] + found.documents[VALIDATION] == 6


def test_nothing_is_left(file):
    with pytest.raises(errors.DataError) as caught:
        TaskSource(task(file, {"min_characters": 100})).scan  # noqa: B018 - the look is what is tested
    assert str(caught.value) == (
        f"task 't': nothing is left to train on in {file}: 12 dropped: min_characters=100; "
        "look at its text and its filters"
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "a filter has one criterion, this one has none; write one of min_characters, max_characters, min_tokens"),
        ({"min_tokens": 1, "max_tokens": 2}, "a filter has one criterion, this one has min_tokens, max_tokens; write"),
        ({"must_match": "("}, "must_match='(' is not a regular expression: missing ), unterminated subpattern"),
        (
            {"function": "a.b", "column": "text"},
            "column='text' has no effect on a function, which gets the columns that it names",
        ),
        ({"min_tokens": 1, "column": "text"}, "column='text' is not a feature; tokens are counted in 'inputs' or"),
    ],
)
def test_what_is_no_filter(entry, message):
    with pytest.raises(pydantic.ValidationError) as caught:
        FilterConfig(**entry)
    assert str(caught.value.errors()[0]["ctx"]["error"]).startswith(message)


def test_a_function_gets_the_columns_that_it_names(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nsame\tsame\nother\tsame\n")
    settings = {"objective": "supervised", "inputs": "{label}", "targets": "{text}"}
    entry = {"function": f"{__package__}.filtering.of_others"}
    assert kept(tmp_path / "a.tsv", entry, **settings) == ["other"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"min_characters": 1, "column": "texts"},
            "task 't': filter 'texts: min_characters=1': unknown column 'texts'; did you mean 'text'? known: text",
        ),
        (
            {"function": "no_such_module.keep"},
            "task 't': filter function='no_such_module.keep' cannot be imported: No module named 'no_such_module'; "
            "give module.function, importable where the run is",
        ),
        (
            {"function": f"{__package__}.filtering.is_ever"},
            f"task 't': filter function='{__package__}.filtering.is_ever': unknown name in {__package__}.filtering "
            "'is_ever'; did you mean 'is_even'? known: all_are_even, is_even, of_others",
        ),
        (
            {"function": f"{__package__}.filtering.of_others"},
            f"task 't': filter function='{__package__}.filtering.of_others' takes 'label', which is no column that is "
            "read; give a function of text, or of **columns",
        ),
        (
            {"function": "importlib.invalidate_caches"},
            "task 't': filter function='importlib.invalidate_caches' takes no column; give a function of text, or of "
            "**columns",
        ),
    ],
)
def test_a_filter_that_cannot_work(file, entry, message):
    with pytest.raises(errors.ConfigError) as caught:
        TaskSource(task(file, entry))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": [{"min_tokens": 1}]}, "task 't': filters have no effect on a SeqIO task; put "),
        ({"cache": "c", "filters": [{"min_characters": 1}]}, "task 't': filter 'min_characters=1' has no effect on a "),
        ({"cache": "c", "files": ["a.txt"]}, "task 't' names both files and cache='c'; keep one"),
        ({"files": ["a.txt"], "use_cached": True}, "task 't': use_cached has no effect on a task with a source here;"),
        ({"builtin": "python_docs", "invalid_utf8": "drop"}, "task 't': invalid_utf8='drop' has no effect without "),
        (
            {"files": ["a.txt"], "denoisers": [{"noise": "suffix", "noise_density": 0.5}]},
            "task 't' has denoisers, which have no effect on objective 'span_corruption'; use 'ul2'",
        ),
    ],
)
def test_settings_without_effect(settings, message):
    with pytest.raises(pydantic.ValidationError) as caught:
        TaskConfig(name="t", **settings)
    assert str(caught.value.errors()[0]["ctx"]["error"]).startswith(message)


def test_the_fingerprint_follows_criteria_and_code_but_not_names(file):
    plain = filters.fingerprint(task(file, {"min_characters": 1}))
    assert filters.fingerprint(task(file, {"min_characters": 1, "name": "n"})) == plain
    assert filters.fingerprint(task(file, {"min_characters": 2})) != plain
    counting = task(file, {"min_characters": 1}, {"min_tokens": 3})
    assert filters.fingerprint(counting) != plain
    assert filters.fingerprint(counting, tokens=False) == plain


@pytest.mark.xdist_group("seqio")
def test_token_filters_count_in_the_manifest(tmp_path):
    (tmp_path / "a.txt").write_text("abc\nabcdef\nabcdefghi\n" * 4)
    entries = [{"min_tokens": 4}, {"max_tokens": 8, "name": "long"}]
    dataset = made(
        tmp_path,
        [{"name": "t", "files": [f"{tmp_path}/a.txt"], "filters": entries, "validation_fraction": 0}],
        allow_missing_split=True,
        passes=2,
    )
    record = store.read_manifest(dataset.uri).splits["train"]
    assert record.dropped == {"min_tokens=4": 8, "long": 8}
    assert len(rows_of(dataset)["targets"]) == 8
    assert record.first == {"min_tokens=4": f"{tmp_path}/a.txt:1", "long": f"{tmp_path}/a.txt:3"}
    assert record.remarks == (
        f"8 dropped: long (first: {tmp_path}/a.txt:3)",
        f"8 dropped: min_tokens=4 (first: {tmp_path}/a.txt:1)",
    )
