"""Rows that cannot be read: refused with their place, or dropped and counted by reason, as the task says."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.config.data_schema import TaskConfig
from t5core.config.edges import TaskRequest
from t5core.data import inspection, materialise, pieces, store
from t5core.data.sources import TRAIN, TaskSource
from t5core.preflight import sample
from tests.t5core.data.task_runs import made, request_of, rows_of, run_of

# What each file holds, the texts that are kept, and what is dropped: how often, and the line of the first.
CASES = {
    "a.jsonl": (
        [
            '{"text": "one"}',
            '{"text": ',
            '{"txt": "no such column"}',
            '["text"]',
            "[" * 100_000,
            '{"text": {"en": "nested"}}',
            '{"text": "two"}',
            '{"id": 3}',
            '{"text": "three"}',
        ],
        ["one", "two", "three"],
        {
            "not JSON": (2, 2),
            "a column is missing": (2, 3),
            "no JSON object": (1, 4),
            "neither text nor number": (1, 6),
        },
    ),
    "a.tsv": (
        ["text\tid", "one\t1", "no id", 'an "open quote\t2', "a\tb\tc", "", "two\t3"],
        ["one", 'an "open quote', "two"],
        {"another number of fields": (2, 3)},
    ),
    "a.csv": (
        ["text,id", "one,1", "no id", '"two, and\na line",2', "a,b,c", "", "three,3"],
        ["one", "two, and\na line", "three"],
        {"another number of fields": (2, 3)},
    ),
}
names = pytest.mark.parametrize("name", CASES)


def write(folder, name):
    file = folder / name
    file.write_text("\n".join(CASES[name][0]) + "\n")
    return file


def settings(*files, **more):
    return {"name": "t", "files": list(map(str, files)), "validation_fraction": 0, "malformed_rows": "drop", **more}


def source(*files, **more):
    return TaskSource(TaskConfig.model_validate(settings(*files, **more)))


def refusal(look):
    with pytest.raises(errors.UserError) as caught:
        look().scan  # noqa: B018 - the look is what is tested
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts(found):
    return [document.columns["text"] for document in found.documents(TRAIN)]


@names
def test_they_are_dropped_and_counted_by_reason(tmp_path, name):
    found = source(write(tmp_path, name))
    _, kept, dropped = CASES[name]
    assert texts(found) == kept
    counted = {reason: count for reason, count in found.scan.dropped[TRAIN].items() if reason != "blank"}
    assert counted == {f"malformed ({reason})": count for reason, (count, _) in dropped.items()}
    first = {reason: place for reason, place in found.scan.first[TRAIN].items() if reason != "blank"}
    assert first == {f"malformed ({reason})": f"{tmp_path}/{name}:{line}" for reason, (_, line) in dropped.items()}


@names
def test_the_first_is_an_error_without_the_policy(tmp_path, name):
    file = write(tmp_path, name)
    line = min(line for _, line in CASES[name][2].values())
    assert refusal(lambda: source(file, malformed_rows="error")).startswith(f"{file}:{line}: ")


def test_bytes_that_are_not_utf8_are_no_malformed_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": "tw\xff"}\n{"text"\n')
    assert "byte 0xff at position 13 is not UTF-8" in refusal(lambda: source(tmp_path / "a.jsonl"))
    found = source(tmp_path / "a.jsonl", invalid_utf8="drop")
    assert texts(found) == ["one"]
    assert found.scan.dropped[TRAIN] == {"invalid UTF-8": 1, "malformed (not JSON)": 1}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text,id", "one,1", '"two,2', "three,3"], "a.csv:3: unexpected end of data; is a quotation mark left open"),
        (
            ["text,id", '"one,1', 'two",2', 'three "and" four,4', '"five" six,6'],
            "a.csv:5: ',' expected after '\"'; is a ",
        ),
        # The mark that is left open swallows a good row before the next one, and so it may with any number of them.
        (
            ["text,id", '"one,1', "two,2", 'three"', "four,4"],
            "a.csv:2: 1 fields on 3 lines, but the header names 2; is ",
        ),
    ],
)
def test_an_open_quotation_mark_is_an_error_as_nobody_knows_what_it_swallows(tmp_path, lines, message):
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    assert message in refusal(lambda: source(tmp_path / "a.csv"))


class TestAFileThatCannotBeReadAtAll:
    @pytest.fixture
    def middle(self, tmp_path):
        for name in ("a", "c"):
            write(tmp_path, "a.jsonl").rename(tmp_path / f"{name}.jsonl")
        return tmp_path / "b.jsonl"

    def test_rows_of_something_else(self, middle, tmp_path):
        middle.write_text("text\none\n\ntwo\n")
        assert refusal(lambda: source(tmp_path / "*.jsonl")) == (
            f"not one row of {middle} can be read, the first: {middle}:1: not JSON (Expecting value at position 1); "
            "mend the line"
        )

    def test_a_misspelt_column(self, middle, tmp_path):
        middle.write_text('{"texts": "one"}\n{"texts": "two"}\n')
        assert f"{middle}:1: unknown column 'text'; did you mean 'texts'?" in refusal(
            lambda: source(tmp_path / "*.jsonl")
        )

    def test_a_header_without_the_column(self, tmp_path):
        (tmp_path / "a.tsv").write_text("txt\tid\none\t1\n")
        assert refusal(lambda: source(tmp_path / "a.tsv")).startswith(f"{tmp_path}/a.tsv:1: unknown column 'text'")

    def test_damaged_parquet_and_a_column_of_another_type(self, middle, tmp_path):
        (tmp_path / "d.parquet").write_bytes(b"PAR1")
        assert f"{tmp_path}/d.parquet is not a Parquet file" in refusal(lambda: source(tmp_path / "[acd].*"))
        parquet.write_table(pyarrow.table({"text": [{"en": "nested"}]}), tmp_path / "d.parquet")
        assert f"{tmp_path}/d.parquet:1: column 'text' holds a dict" in refusal(lambda: source(tmp_path / "[acd].*"))

    def test_a_link_to_nothing(self, middle, tmp_path):
        middle.symlink_to(tmp_path / "gone.jsonl")
        assert refusal(lambda: source(tmp_path / "*.jsonl")) == (
            f"cannot read {middle}: it is gone; check that it is there"
        )


@pytest.mark.parametrize(
    "entry",
    [
        {"files": ["a.txt"]},
        {"files": ["a.parquet"], "validation_files": ["V.TXT"]},
        {"builtin": "python_docs"},
        {"cache": "folder"},
        {},
    ],
)
def test_where_no_row_can_be_malformed_it_has_no_effect(entry):
    with pytest.raises(ValueError, match=r"task 't': malformed_rows='drop' has no effect (on \.txt and|without files)"):
        TaskConfig.model_validate({"name": "t", "malformed_rows": "drop", **entry})


def test_where_a_pattern_matches_nothing_that_can_be_malformed_it_has_no_effect(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    assert f"malformed_rows='drop' has no effect on {tmp_path}/a.txt and the like" in refusal(
        lambda: source(tmp_path / "*")
    )
    write(tmp_path, "a.jsonl")
    assert texts(source(tmp_path / "*")) == ["one", "two", "three", "one"]


def test_the_documents_are_the_same_however_files_are_cut(tmp_path, monkeypatch):
    lines = [json.dumps({"text": f"document {n}"}) if n % 3 else f"row {n} is no JSON" for n in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    whole = source(tmp_path / "a.jsonl")
    assert len(whole.pieces) == 1
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    cut = source(tmp_path / "a.jsonl")
    assert len(cut.pieces) > 5
    assert cut.scan == whole.scan
    apart = [found for piece in cut.pieces for found in cut.numbered(TRAIN, piece=piece)]
    assert apart == list(whole.numbered(TRAIN))
    assert [number for number, _ in apart] == [n for n in range(200) if n % 3]


def test_the_manifest_has_them_however_the_work_is_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    lines = [json.dumps({"text": f"document {n}"}) if n % 3 else f"row {n} is no JSON" for n in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    entry = settings(tmp_path / "a.jsonl")
    one, two = (
        made(tmp_path / f"{workers}", [entry], allow_missing_split=True, workers=workers, shares=shares)
        for workers, shares in ((1, 1), (2, 3))
    )
    assert one.fingerprint == two.fingerprint
    assert all((rows_of(one)[side] == rows_of(two)[side]).all() for side in rows_of(one))
    told = f"67 dropped: malformed (not JSON) (first: {tmp_path}/a.jsonl:1)"
    assert store.read_manifest(one.uri).splits["train"].remarks == (told,)
    shown = " ".join("\n".join(inspection.manifest_lines(one.uri)).split())
    assert "malformed (not JSON): 67" in shown
    assert f"t train malformed (not JSON) {tmp_path}/a.jsonl:1" in shown


def test_the_policy_makes_another_dataset(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_text("text\none\ntwo\nthree\n")
    entry = settings(tmp_path / "a.tsv")
    first = made(tmp_path, [entry], allow_missing_split=True)
    monkeypatch.setattr(materialise.gathering, "gather", lambda *args, **kwargs: None)
    monkeypatch.setattr(materialise.manifest, "reference", lambda uri, manifest, *, reused, reason: reason)
    run = run_of(tmp_path, [{**entry, "malformed_rows": "error"}], allow_missing_split=True)
    request = TaskRequest(run=run, vocabulary=request_of(run).vocabulary, task="t")
    assert materialise.materialise_task(request) == f"filters changed since fingerprint {first.fingerprint}"


@names
def test_the_look_ahead_takes_what_is_kept(tmp_path, name):
    task = TaskConfig.model_validate(settings(write(tmp_path, name)))
    assert [found["text"] for found in sample._of_heads(task, task.files).documents] == CASES[name][1]
