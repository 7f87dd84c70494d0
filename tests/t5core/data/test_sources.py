import json
import os

import pyarrow
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.data import corpus, files
from t5core.data.documents import HoldOut
from t5core.data.sources import TRAIN, VALIDATION, TaskSource


def task(*patterns, **settings):
    return TaskConfig(name="t", files=tuple(map(str, patterns)), **settings)


def texts(source, split):
    return [document.columns["text"] for document in source.documents(split)]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(count, prefix="line"):
    return "".join(f"{prefix} {number:03d}\n" for number in range(count))


def supervised(*patterns, **settings):
    templates = {"inputs": "{question}", "targets": "{answer}"} | settings
    return task(*patterns, objective="supervised", **templates)


def refusal(source, error=errors.DataError):
    """Returns the one line with which `source` is refused."""
    with pytest.raises(error) as caught:
        source().scan  # noqa: B018 - the look is what is tested
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestFormats:
    def test_text_lines_end_at_line_feeds_only(self, tmp_path):
        file = write(tmp_path / "a.txt", "\ufefffirst\r\nsecond\u2028still\x85second\n\n  \nlast")
        source = TaskSource(task(file, validation_fraction=0))
        assert texts(source, TRAIN) == ["first", "second\u2028still\x85second", "last"]
        assert source.scan.dropped[TRAIN] == {"blank": 2}

    @pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".csv", ".parquet"])
    def test_the_same_rows_in_every_format(self, tmp_path, suffix):
        rows = [{"question": f'q"{n}', "answer": f"ä{n}", "other": "x"} for n in range(3)]
        file = tmp_path / f"rows{suffix}"
        if suffix == ".jsonl":
            write(file, "".join(json.dumps(row) + "\n" for row in rows))
        elif suffix == ".parquet":
            parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        else:
            quoted = suffix == ".csv"
            cells = [["question", "answer", "other"], *([*row.values()] for row in rows)]
            if quoted:
                cells = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in cells]
            write(file, "".join(("," if quoted else "\t").join(row) + "\n" for row in cells))
        source = TaskSource(supervised(file, validation_fraction=0))
        assert [dict(document.columns) for document in source.documents(TRAIN)] == [
            {"question": row["question"], "answer": row["answer"]} for row in rows
        ]

    def test_numbers_become_text_and_null_is_blank(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '{"question": 1.5, "answer": true}\n{"question": "q", "answer": null}\n\n')
        source = TaskSource(supervised(file, validation_fraction=0))
        assert [dict(document.columns) for document in source.documents(TRAIN)] == [
            {"question": "1.5", "answer": "true"}
        ]
        assert source.scan.dropped[TRAIN] == {"blank": 2}

    def test_a_quoted_csv_field_may_span_lines(self, tmp_path):
        file = write(tmp_path / "a.csv", 'question,answer\n"two\nlines",yes\nb,no\n')
        found = list(TaskSource(supervised(file, validation_fraction=0)).documents(TRAIN))
        assert [document.columns["question"] for document in found] == ["two\nlines", "b"]
        assert [document.place for document in found] == [f"{file}:2", f"{file}:4"]

    def test_a_line_of_five_megabytes(self, tmp_path):
        file = write(tmp_path / "a.csv", f"text\n{'x' * 5_000_000}\nshort\n")
        assert [len(text) for text in texts(TaskSource(task(file, validation_fraction=0)), TRAIN)] == [5_000_000, 5]


class TestBadInput:
    def test_a_file_that_does_not_exist(self, tmp_path):
        message = refusal(lambda: TaskSource(task(tmp_path / "no*.txt")))
        assert message == f"task 't': no file matches {tmp_path}/no*.txt; check the path (run in {os.getcwd()})"

    def test_a_folder(self, tmp_path):
        message = refusal(lambda: TaskSource(task(tmp_path)))
        assert message == f"task 't': {tmp_path} is a folder; name its files, as in {tmp_path}/*.txt"

    def test_an_unknown_suffix(self, tmp_path):
        file = write(tmp_path / "a.doc", "x")
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}: cannot read .doc; use .txt, .jsonl, .tsv, .csv, .parquet"
        )

    @pytest.mark.parametrize("content", ["", "\n \n\t\n"])
    def test_an_empty_file(self, tmp_path, content):
        file = write(tmp_path / "a.txt", content)
        assert refusal(lambda: TaskSource(task(file))) == (
            f"task 't': there is no text in {file}; every document is blank"
        )

    def test_invalid_utf8(self, tmp_path):
        file = write(tmp_path / "a.txt", b"fine\nab\xff\n")
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}:2: byte 0xff at position 3 is not UTF-8; convert the file to UTF-8, or set the "
            "task's invalid_utf8 to replace or drop"
        )

    def test_broken_json(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": \n')
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}:2: not JSON (Expecting value at position 10); mend the line"
        )

    def test_json_that_is_no_object(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '["text"]\n')
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}:1: holds a list; write an object of columns in each line"
        )

    def test_half_a_surrogate_pair(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '{"text": "fine"}\n{"text": "half \\ud83c"}\n')
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}:2: column 'text' holds half a surrogate pair at position 6; write whole characters, or set the "
            "task's invalid_utf8 to replace or drop"
        )

    def test_a_nested_column(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '{"text": {"en": "a"}}\n')
        assert refusal(lambda: TaskSource(task(file))) == (f"{file}:1: column 'text' holds a dict; use text or numbers")

    @pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.parquet"])
    def test_a_missing_column_names_the_nearest(self, tmp_path, name):
        file = tmp_path / name
        if name == "a.parquet":
            parquet.write_table(pyarrow.table({"texts": ["a"], "id": ["1"]}), file)
            place = f"{file}"
        else:
            separator = {"a.tsv": "\t", "a.csv": ","}.get(name)
            write(file, f"texts{separator}id\na{separator}1\n" if separator else '{"texts": "a", "id": "1"}\n')
            place = f"{file}:1"
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{place}: unknown column 'text'; did you mean 'texts'? known: id, texts"
        )

    def test_a_row_with_too_few_fields(self, tmp_path):
        file = write(tmp_path / "a.tsv", 'text\tid\nan "open quote\t1\nb\n')
        assert refusal(lambda: TaskSource(task(file))) == (f"{file}:3: 1 fields, but the header names 2; mend the line")

    def test_an_open_quote_in_csv(self, tmp_path):
        file = write(tmp_path / "a.csv", 'text\na\n"open\nb\n')
        assert refusal(lambda: TaskSource(task(file))) == (
            f"{file}:3: unexpected end of data; is a quotation mark left open there?"
        )

    def test_a_parquet_file_that_is_none(self, tmp_path):
        file = write(tmp_path / "a.parquet", "no parquet at all")
        assert refusal(lambda: TaskSource(task(file))).startswith(f"{file} is not a Parquet file, or damaged (")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_without_permission(self, tmp_path):
        file = write(tmp_path / "a.txt", "x\n")
        file.chmod(0)
        assert refusal(lambda: TaskSource(task(file))) == (
            f"cannot read {file}: Permission denied; check your right to read it"
        )

    @pytest.mark.parametrize(
        ("template", "complaint"),
        [
            ("{question", "is not a template: expected '}' before end of string; write '{{' for a brace that is text"),
            ("{question!r}", "holds more than a column's name between braces; write {column}"),
            ("{question:>9}", "holds more than a column's name between braces; write {column}"),
            ("{}", "holds more than a column's name between braces; write {column}"),
        ],
    )
    def test_a_malformed_template(self, tmp_path, template, complaint):
        file = write(tmp_path / "a.tsv", "question\tanswer\na\tb\n")
        message = refusal(lambda: TaskSource(supervised(file, inputs=template)), errors.ConfigError)
        assert message == f"task 't': inputs={template!r} {complaint}"

    def test_a_builtin_lacks_the_column(self):
        message = refusal(lambda: TaskSource(TaskConfig(name="t", builtin="python_docstrings")))
        assert message == "task 't': unknown column 'text'; did you mean 'targets'? known: inputs, targets"


class TestGlobs:
    def test_a_file_that_two_patterns_match_counts_once(self, tmp_path):
        write(tmp_path / "a.txt", "a\n")
        write(tmp_path / "b.txt", "b\n")
        os.symlink(tmp_path / "a.txt", tmp_path / "c.txt")
        source = TaskSource(task(tmp_path / "*.txt", tmp_path / "a.*", tmp_path / "b.txt", validation_fraction=0))
        assert texts(source, TRAIN) == ["a", "b"]

    def test_patterns_keep_their_order(self, tmp_path):
        for name in "cab":
            write(tmp_path / f"{name}.txt", f"{name}\n")
        source = TaskSource(task(tmp_path / "c.txt", tmp_path / "[ab].txt", validation_fraction=0))
        assert texts(source, TRAIN) == ["c", "a", "b"]

    def test_a_validation_file_is_not_trained_on(self, tmp_path):
        write(tmp_path / "a.txt", "a\n")
        write(tmp_path / "v.txt", "v\n")
        source = TaskSource(task(tmp_path / "*.txt", validation_files=(str(tmp_path / "v.txt"),)))
        assert (texts(source, TRAIN), texts(source, VALIDATION)) == (["a"], ["v"])

    def test_every_file_is_for_validation(self, tmp_path):
        file = write(tmp_path / "a.txt", "a\n")
        message = refusal(lambda: TaskSource(task(file, validation_files=(str(file),))))
        assert message == "task 't': every file is one of validation_files; leave one to train on"


class TestSplit:
    def test_no_document_is_on_both_sides_and_none_is_lost(self, tmp_path):
        repeated = lines(400) + lines(100) + "line 007\n" * 5
        file = write(tmp_path / "a.txt", repeated)
        source = TaskSource(task(file, validation_fraction=0.1, max_validation_examples=None))
        train, held = texts(source, TRAIN), texts(source, VALIDATION)
        assert not set(train) & set(held)
        assert sorted(train + held) == sorted(repeated.splitlines())
        assert 20 <= len(set(held)) <= 60
        assert source.scan.documents == {TRAIN: len(train), VALIDATION: len(held)}

    def test_a_docstring_that_occurs_twice_falls_on_one_side_of_both_corpora(self):
        settings = {"validation_fraction": 0.3, "max_validation_examples": None}
        docs = TaskSource(TaskConfig(name="d", builtin="python_docs", **settings))
        rows = TaskSource(TaskConfig(name="r", builtin="python_docstrings", objective="supervised", **settings))
        trained = {document.key for source in (docs, rows) for document in source.documents(TRAIN)}
        held = {document.key for source in (docs, rows) for document in source.documents(VALIDATION)}
        assert trained
        assert held
        assert not trained & held
        keys = [document.key for document in corpus.documents("python_docstrings")]
        assert len(set(keys)) < len(keys), "some functions share a docstring, as posixpath and ntpath do"

    def test_sides_do_not_depend_on_the_rest_of_the_text(self, tmp_path):
        one = TaskSource(task(write(tmp_path / "one" / "a.txt", lines(300)), validation_fraction=0.1))
        more = TaskSource(
            task(write(tmp_path / "more" / "b.txt", lines(50, "new") + lines(300)), validation_fraction=0.1)
        )
        assert set(texts(one, VALIDATION)) <= set(texts(more, VALIDATION))

    def test_rows_with_the_same_inputs_stay_together(self, tmp_path):
        content = "question\tanswer\n" + "".join(f"q{n // 2}\ta{n}\n" for n in range(200))
        source = TaskSource(supervised(write(tmp_path / "a.tsv", content), validation_fraction=0.3))
        sides = [
            {document.columns["question"] for document in source.documents(split)} for split in (TRAIN, VALIDATION)
        ]
        assert all(sides)
        assert not sides[0] & sides[1]

    def test_a_small_text_still_holds_one_out(self, tmp_path):
        source = TaskSource(task(write(tmp_path / "a.txt", "a\nb\nc\nb\n")))
        held = texts(source, VALIDATION)
        assert len(set(held)) == 1
        assert source.scan.documents == {TRAIN: 4 - len(held), VALIDATION: len(held)}
        assert sorted(held + texts(source, TRAIN)) == ["a", "b", "b", "c"]

    def test_a_single_text_is_trained_on(self, tmp_path):
        source = TaskSource(task(write(tmp_path / "a.txt", "a\na\n")))
        assert source.scan.documents == {TRAIN: 2, VALIDATION: 0}

    def test_all_held_out(self, tmp_path):
        file = write(tmp_path / "a.txt", "b\n")
        assert HoldOut(threshold=int(0.999 * 2**64)).holds("b")
        assert refusal(lambda: TaskSource(task(file, validation_fraction=0.999))) == (
            f"task 't': nothing is left to train on in {file}, as all that it has is held out (1 document); "
            "add text or lower validation_fraction"
        )

    def test_held_out_documents_are_a_sample_up_to_the_limit(self, tmp_path):
        file = write(tmp_path / "a.txt", lines(1000))
        every = TaskSource(task(file, validation_fraction=0.2, max_validation_examples=None))
        some = TaskSource(task(file, validation_fraction=0.2, max_validation_examples=10))
        assert texts(some, VALIDATION) == texts(every, VALIDATION)[:10]
        assert texts(some, TRAIN) == texts(every, TRAIN)
        numbers = [int(text.split()[1]) for text in texts(some, VALIDATION)]
        assert max(numbers) > 500
        assert min(numbers) < 500

    def test_training_text_that_is_also_in_validation_files_is_left_out(self, tmp_path):
        train = write(tmp_path / "a.txt", "a\nb\nc\n")
        held = write(tmp_path / "v.txt", "b\nz\n")
        source = TaskSource(task(train, validation_files=(str(held),)))
        assert (texts(source, TRAIN), texts(source, VALIDATION)) == (["a", "c"], ["b", "z"])
        assert source.scan.dropped[TRAIN] == {"also in validation_files": 1}


class TestDigest:
    def test_it_follows_content_and_not_place(self, tmp_path):
        one = write(tmp_path / "one" / "a.txt", "a\n")
        other = write(tmp_path / "other" / "b.txt", "a\n")
        assert TaskSource(task(one)).digest() == TaskSource(task(other)).digest()
        write(one, "a\nb\n")
        assert TaskSource(task(one)).digest() != TaskSource(task(other)).digest()

    def test_the_format_counts(self, tmp_path):
        assert files.digest(str(write(tmp_path / "a.tsv", "x"))) != files.digest(str(write(tmp_path / "a.csv", "x")))

    def test_validation_files_count(self, tmp_path):
        train, held = write(tmp_path / "a.txt", "a\n"), write(tmp_path / "v.txt", "v\n")
        before = TaskSource(task(train, validation_files=(str(held),))).digest()
        write(held, "w\n")
        assert TaskSource(task(train, validation_files=(str(held),))).digest() != before
