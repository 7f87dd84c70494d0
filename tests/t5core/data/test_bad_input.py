"""What a user's files can hold, from there to rows: an error with its place, or a count; never a hang or silence."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.config.edges import TaskRequest
from t5core.data import files, plain_rows, store
from t5core.data.converters import converter_for
from t5core.data.mixture import assemble_mixture
from t5core.data.reader import BatchReader
from t5core.data.sources import TRAIN
from t5core.data.vocabulary import load_vocabulary
from t5core.evaluation import task_metrics
from tests.t5core.data.task_runs import made, raw, request_of, rows_of, run_of
from tests.t5core.data.test_materialise import content
from tests.t5core.data.test_sources import TaskSource, refusal, supervised, task, texts, write

EOS = 1
seqio = pytest.mark.xdist_group("seqio")


class TestFiles:
    def test_nul_is_a_character(self, tmp_path):
        for suffix, header in ((".txt", ""), (".tsv", "text\n"), (".csv", "text\n")):
            file = write(tmp_path / f"a{suffix}", f"{header}a\0b\nc\n")
            assert texts(TaskSource(task(file, validation_fraction=0)), TRAIN) == ["a\0b", "c"]

    def test_a_line_of_fifty_megabytes(self, tmp_path):
        file = write(tmp_path / "a.txt", b"x" * 50_000_000 + b"\nshort\n")
        assert [len(row.columns["text"]) for row in plain_rows.read(files.Piece(str(file)), columns=["text"])] == [
            50_000_000,
            5,
        ]

    def test_crlf_bom_and_line_separators_in_a_table(self, tmp_path):
        file = write(tmp_path / "a.tsv", "\ufefftext\tid\r\na\u2028b\t1\r\n\r\nc\x85d\t2\r\n")
        source = TaskSource(task(file, validation_fraction=0))
        assert texts(source, TRAIN) == ["a\u2028b", "c\x85d"]
        assert source.scan.dropped[TRAIN] == {"blank": 1}
        assert source.scan.first[TRAIN] == {"blank": f"{file}:3"}

    def test_an_open_quote_in_a_tsv_is_text(self, tmp_path):
        file = write(tmp_path / "a.tsv", 'question\tanswer\nsay "hi\tyes\nb\t"no\n')
        found = TaskSource(supervised(file, validation_fraction=0)).documents(TRAIN)
        assert [document.columns["question"] for document in found] == ['say "hi', "b"]

    def test_a_number_that_json_cannot_read(self, tmp_path):
        file = write(tmp_path / "a.jsonl", '{"text": ' + "9" * 5000 + "}\n")
        assert refusal(lambda: TaskSource(task(file))).startswith(f"{file}:1: JSON that cannot be read (")


class TestGlobs:
    """A file in the middle that cannot be read stops the task; the message names it."""

    @pytest.fixture
    def middle(self, tmp_path):
        for name in ("a", "c"):
            write(tmp_path / f"{name}.txt", f"{name}\n")
        return tmp_path / "b.txt"

    def test_a_link_to_nothing(self, middle, tmp_path):
        middle.symlink_to(tmp_path / "gone.txt")
        assert refusal(lambda: TaskSource(task(tmp_path / "*.txt"))) == (
            f"cannot read {middle}: it is gone; check that it is there"
        )

    def test_a_folder(self, middle, tmp_path):
        middle.mkdir()
        assert refusal(lambda: TaskSource(task(tmp_path / "*.txt"))) == (
            f"task 't': {tmp_path}/*.txt matches the folder {middle}; name its files too, as in {middle}/*, or fewer"
        )

    def test_bytes_of_something_else(self, middle, tmp_path):
        middle.write_bytes(b"\x89PNG\r\n\x1a\n")
        assert refusal(lambda: TaskSource(task(tmp_path / "*.txt"))).startswith(
            f"{middle}:1: byte 0x89 at position 1 is not UTF-8; "
        )

    def test_a_parquet_file_cut_short_or_changed(self, tmp_path):
        for name in ("a", "b", "c"):
            parquet.write_table(
                pyarrow.table({"text": [f"{name} {n}" for n in range(500)]}), tmp_path / f"{name}.parquet"
            )
        whole = (tmp_path / "b.parquet").read_bytes()
        for damaged in (whole[:-20], whole[:100] + bytes(len(whole) // 2 - 100) + whole[len(whole) // 2 :]):
            (tmp_path / "b.parquet").write_bytes(damaged)
            message = refusal(lambda: TaskSource(task(tmp_path / "*.parquet")))
            assert f"{tmp_path}/b.parquet" in message

    def test_the_system_refuses(self, middle, tmp_path, monkeypatch):
        write(middle, "b\n")
        original = open

        def refused(file, *args, **kwargs):
            if str(file) == str(middle):
                raise PermissionError(13, "Permission denied")
            return original(file, *args, **kwargs)

        monkeypatch.setattr("builtins.open", refused)
        assert refusal(lambda: TaskSource(task(tmp_path / "*.txt"))) == (
            f"cannot read {middle}: Permission denied; check your right to read it"
        )


@seqio
class TestRows:
    def test_eos_stays_on_a_target_that_is_cut_and_the_count_is_told(self, tmp_path):
        write(tmp_path / "a.tsv", f"inputs\ttargets\na\t{'x' * 20}\nb\tyyy\n")
        settings = {"objective": "supervised", "validation_fraction": 0}
        dataset = made(
            tmp_path,
            [{"name": "t", "files": [f"{tmp_path}/a.tsv"], **settings}],
            feature_lengths={"inputs": 8, "targets": 8},
            allow_missing_split=True,
        )
        x, y = ord("x") + 3, ord("y") + 3
        assert [content(row) for row in rows_of(dataset)["targets"]] == [[*[x] * 7, EOS], [y, y, y, EOS]]
        assert store.read_manifest(dataset.uri).splits["train"].remarks == ("1 of 2 targets truncated",)

    def test_raw_strings_come_through_whatever_is_beside_them(self, tmp_path):
        answers = ["a", "a much longer string", 'open "quote', "{braces} \\n", "tab\there", "l\u2028s", "é e\u0301 🎉"]
        lines = [json.dumps({"q": f"q{n}", "a": answer}) for n, answer in enumerate(answers)]
        for name in ("a", "v"):
            write(tmp_path / f"{name}.jsonl", "\n".join([*lines, json.dumps({"q": name, "a": name})]) + "\n")
        source = {"files": [f"{tmp_path}/a.jsonl"], "validation_files": [f"{tmp_path}/v.jsonl"]}
        write(tmp_path / "a.jsonl", '{"q": "other", "a": "other"}\n')
        templates = {"objective": "supervised", "inputs": "{q}", "targets": "{a}", "metrics": ["sequence_accuracy"]}
        run = run_of(tmp_path, [{"name": "t", **source, **templates}])
        dataset = made(tmp_path, [{"name": "t", **source, **templates}])
        assert [example["targets_pretokenized"] for example in raw(dataset)] == [*answers, "v"]
        assert task_metrics.score(run.config.data, "t", dataset.uri, [*answers, "v"]) == {"sequence_accuracy": 100.0}

    def test_invalid_bytes_are_in_the_manifest(self, tmp_path):
        write(tmp_path / "a.txt", b"one\ntw\xff\nthree\n\nfo\xfer\n")
        source = {"name": "t", "files": [f"{tmp_path}/a.txt"], "validation_fraction": 0}
        remarks = {}
        for policy in ("replace", "drop"):
            dataset = made(tmp_path, [{**source, "invalid_utf8": policy}], allow_missing_split=True)
            remarks[policy] = store.read_manifest(dataset.uri).splits["train"].remarks
        blank = f"1 dropped: blank (first: {tmp_path}/a.txt:4)"
        assert remarks == {
            "replace": (blank, f"2 with invalid UTF-8 replaced (first: {tmp_path}/a.txt:2)"),
            "drop": (blank, f"2 dropped: invalid UTF-8 (first: {tmp_path}/a.txt:2)"),
        }

    def test_validation_files_without_text(self, tmp_path):
        write(tmp_path / "a.txt", "one\ntwo\n")
        write(tmp_path / "v.txt", "\n \n")
        source = {"name": "t", "files": [f"{tmp_path}/a.txt"], "validation_files": [f"{tmp_path}/v.txt"]}
        with pytest.raises(errors.DataError) as caught:
            made(tmp_path, [source])
        assert str(caught.value) == (
            "task 't': its validation_files give no documents, 2 dropped: blank; mend them, or set "
            "data.allow_missing_split=true"
        )
        dataset = made(tmp_path, [source], allow_missing_split=True)
        assert sorted(store.read_manifest(dataset.uri).splits) == ["train"]

    def test_a_task_that_loses_its_validation_files(self, tmp_path):
        for name in ("a", "v"):
            write(tmp_path / f"{name}.txt", f"{name}\n")
        source = {"name": "t", "files": [f"{tmp_path}/a.txt"], "validation_files": [f"{tmp_path}/v.txt"]}
        made(tmp_path, [source])
        (tmp_path / "v.txt").unlink()
        with pytest.raises(errors.DataError, match=f"^task 't': no file matches {tmp_path}/v.txt; check the path"):
            made(tmp_path, [source])

    def test_everything_filtered_out_gives_counts(self, tmp_path):
        write(tmp_path / "a.txt", "one\ntwo\nthree\n")
        source = {"name": "t", "files": [f"{tmp_path}/a.txt"], "validation_fraction": 0}
        with pytest.raises(errors.DataError) as caught:
            made(tmp_path, [{**source, "filters": [{"min_tokens": 50}]}], allow_missing_split=True)
        assert str(caught.value) == (
            "task 't' gives no training examples from the 3 in its source, 3 dropped: min_tokens=50; "
            "look at its text and its filters"
        )

    def test_one_file_serves_any_number_of_hosts(self, tmp_path):
        write(tmp_path / "a.txt", "".join(f"example {n:03d}\n" for n in range(24)))
        source = {"name": "t", "files": [f"{tmp_path}/a.txt"], "objective": "prefix_lm", "validation_fraction": 0}
        run = run_of(tmp_path, [source], pack=False, allow_missing_split=True, train={"batch_size": 8})
        request = request_of(run)
        tokens = made(tmp_path, [source], pack=False, allow_missing_split=True)
        mixture = assemble_mixture(run, vocabulary=request.vocabulary, tasks=[tokens])
        converter = converter_for("encoder_decoder", run.config.data.feature_lengths)
        reader = BatchReader(mixture.uri, batch_size=8, converter=converter)
        vocabulary, seen = load_vocabulary(request.vocabulary), []
        for step in range(3):
            whole = reader.batch(step)
            for hosts in (1, 2, 4):
                size = 8 // hosts
                for host in range(hosts):
                    rows = slice(host * size, (host + 1) * size)
                    part = reader.batch(step, rows=rows)
                    assert all((part[name] == values[rows]).all() for name, values in whole.items())
            for inputs, targets in zip(whole["encoder_input_tokens"], whole["decoder_target_tokens"], strict=True):
                seen.append(vocabulary.decode(inputs) + vocabulary.decode(targets))
        assert sorted(seen) == [f"example {n:03d}" for n in range(24)]


@seqio
def test_every_setting_that_decides_the_rows_makes_another_dataset(tmp_path, monkeypatch):
    """Vocabulary, number of sentinels, a preprocessor's argument, lengths, filters and policy, each on its own."""
    write(tmp_path / "a.txt", "".join(f"some text {n}\n" for n in range(20)))
    source = {"name": "t", "files": [f"{tmp_path}/a.txt"]}
    first = made(tmp_path, [source])
    from t5core.data import materialise

    monkeypatch.setattr(materialise.gathering, "gather", lambda *args, **kwargs: None)
    monkeypatch.setattr(materialise.manifest, "reference", lambda uri, manifest, *, reused, reason: reason)

    def reason(entry=source, **changes):
        run = run_of(tmp_path, [entry], **changes)
        request = request_of(run)
        return materialise.materialise_task(TaskRequest(run=run, vocabulary=request.vocabulary, task="t"))

    def changed(what):
        return f"{what} changed since fingerprint {first.fingerprint}"

    assert made(tmp_path, [source]) == f"fingerprint {first.fingerprint} unchanged"
    assert reason(vocabulary={"kind": "bytes", "extra_ids": 124}) == changed("vocabulary")
    assert reason({**source, "mean_noise_span_length": 2.0}) == changed("objective")
    assert reason({**source, "objective": "ul2"}) == changed("objective")
    assert reason(feature_lengths={"inputs": 47, "targets": 32}) == changed("feature_lengths")
    assert reason({**source, "filters": [{"min_characters": 1}]}) == changed("filters")
    assert reason({**source, "invalid_utf8": "drop"}) == changed("filters")
