"""Batch prediction stage by stage: order, independence, restarts, bad rows, and what is refused before compute."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from pyarrow import parquet

from t5core import errors
from t5core.checkpoints import locating, parameters
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.inference import predictor, sources
from t5core.stages import holding, infer
from tests.t5core.small_inference import (
    LENGTHS,
    VOCABULARY,
    config,
    finish,
    lines,
    refused,
    run,
    shared_predictors,
    trainer_of,
    write_rows,
)

SAMPLE = {"strategy": "sample", "temperature": 3.0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"))


def results(summary, *names):
    """Returns what came of each row: tokens decide texts, and sums over tokens differ in their last bits."""
    names = names or ("row", "prediction", "reached_eos", "inputs_truncated")
    return [tuple(line.get(name) for name in names) for line in lines(summary)]


def test_the_results_have_the_rows_in_their_order_with_their_fields(small, rows, tmp_path):
    summary = finish(config(tmp_path, small, rows))
    found, given = lines(summary), [json.loads(line) for line in rows.read_text().splitlines()]
    assert [{name: line[name] for name in given[0]} for line in found] == given
    assert [line["row"] for line in found] == list(range(23))
    assert [line["place"] for line in found] == [f"{rows}:{n}" for n in range(1, 24)]
    assert (summary.rows, summary.bad_rows, summary.shards, summary.status) == (23, 0, 3, "completed")
    assert len({line["score"] for line in found}) == 23, "no two rows are alike"
    stored = json.loads(pathlib.Path(summary.uri).read_text())
    assert stored["checkpoint"]["digest"] == summary.checkpoint.digest
    page = pathlib.Path(summary.report).read_text()
    assert summary.checkpoint.digest in page
    assert "row 0 of" in page


@pytest.mark.parametrize("decode", [SAMPLE, {"strategy": "beam", "beam_size": 3}], ids=["sample", "beam"])
def test_neither_batches_nor_shards_nor_neighbours_matter(small, rows, tmp_path, decode):
    whole = finish(config(tmp_path, small, rows, decode=decode, batch_size=24, shard_rows=100))
    cut = finish(config(tmp_path, small, rows, name="cut", decode=decode, batch_size=3, shard_rows=5))
    assert cut.shards == 5
    assert results(cut) == results(whole)
    scores = [results(summary, "score") for summary in (cut, whole)]
    np.testing.assert_allclose(*scores, rtol=1e-4)
    first = finish(config(tmp_path, small, rows, name="first", decode=decode, source={"max_rows": 2}))
    assert results(first) == results(whole)[:2]
    assert len(set(results(whole, "prediction"))) > 5, "predictions that are all alike would show nothing"


def test_another_seed_draws_other_samples(small, rows, tmp_path):
    one = finish(config(tmp_path, small, rows, decode=SAMPLE))
    other = finish(config(tmp_path, small, rows, name="other", decode={**SAMPLE, "seed": 1}))
    assert results(one, "prediction") != results(other, "prediction")


def test_several_predictions_come_best_first(small, rows, tmp_path):
    decode = {"strategy": "beam", "beam_size": 4, "num_decodes": 3}
    counts = []
    for line in lines(finish(config(tmp_path, small, rows, decode=decode))):
        scores = [one["score"] for one in line["predictions"]]
        counts.append(len(scores))
        assert scores == sorted(scores, reverse=True)
        assert min(scores) > -1e3, "beams that ended without a text are none"
        assert line["predictions"][0] == {name: line[name] for name in ("prediction", "score", "reached_eos")}
    assert max(counts) == 3


def encoded(texts, length):
    ids = [[*VOCABULARY.encode(text)[: length - 1], 1] for text in texts]
    return np.array([[*row, *[0] * (length - len(row))] for row in ids], np.int32)


def targets_of(tokens):
    return {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_loss_weights": (tokens > 0).astype(np.int32),
    }


def small_model(small):
    return load.load(str(small / "config.yaml"), PretrainConfig).model


def small_params(small, trainer):
    return parameters.read(locating.locate(str(small), root=""), trainer.abstract_state.params)


def test_scores_are_the_models_own(small, rows, tmp_path):
    summary = finish(config(tmp_path, small, rows, mode="score", source={"targets": "{want}!"}))
    trainer = trainer_of(small_model(small))
    given = [json.loads(line) for line in rows.read_text().splitlines()]
    targets = encoded([f"{row['want']}!" for row in given], LENGTHS["targets"])
    inputs = {"encoder_input_tokens": encoded([row["text"] for row in given], LENGTHS["inputs"])}
    expected = trainer.model.score_batch(small_params(small, trainer), {**inputs, **targets_of(targets)})
    np.testing.assert_allclose([line["score"] for line in lines(summary)], expected, rtol=1e-5)
    assert [line["target_tokens"] for line in lines(summary)] == (targets > 0).sum(axis=1).tolist()


@pytest.mark.parametrize("decode", [{}, SAMPLE], ids=["greedy", "sample"])
def test_a_prediction_scores_as_the_model_scores_its_tokens(small, decode):
    trainer = trainer_of(small_model(small), **decode)
    params = small_params(small, trainer)
    inputs = {"encoder_input_tokens": encoded([f"row {i}" for i in range(4)], LENGTHS["inputs"])}
    nothing = np.zeros((4, LENGTHS["targets"]), np.int32)
    batch = {**inputs, "decoder_input_tokens": nothing, "decoder_target_tokens": nothing}
    decodes, aux = trainer.inference_step("predict_batch_with_aux", params, batch, jax.random.PRNGKey(0))
    batch = {**inputs, **targets_of(np.asarray(decodes)[:, 0])}
    np.testing.assert_allclose(aux["scores"][:, 0], trainer.model.score_batch(params, batch), rtol=1e-4)


def test_parquet_has_what_the_lines_have(small, rows, tmp_path):
    mixed = tmp_path / "mixed.jsonl"
    fields = [
        {"text": "a", "number": 1, "list": [1, {"x": None}], "flag": True, "either": "x"},
        {"text": "b", "number": 2.5, "either": 7, "late": None},
        {"text": "", "number": float("nan")},
        {"text": "c", "number": 2**60, "flag": None, "late": "here"},
    ]
    mixed.write_text("".join(json.dumps(row) + "\n" for row in fields))
    summary = finish(config(tmp_path, small, mixed, shard_rows=2))
    table = parquet.read_table(summary.parquet)
    names = {name: None for line in lines(summary) for name in line}
    assert table.column_names == list(names)
    texts = ("list", "either")
    for line, stored in zip(lines(summary), table.to_pylist(), strict=True):
        for name in names:
            expected = line.get(name)
            if expected is not None and name in texts:
                expected = json.dumps(expected)
            if expected == "NaN":
                assert np.isnan(stored[name])
                continue
            assert stored[name] == expected, name
            assert isinstance(stored[name], float) or type(stored[name]) is type(expected)


def test_a_second_start_takes_what_is_done(small, rows, tmp_path, capsys, monkeypatch):
    first = finish(config(tmp_path, small, rows, decode=SAMPLE))
    monkeypatch.setattr(predictor, "predictor_of", None)  # nothing is predicted
    again = finish(config(tmp_path, small, rows, decode=SAMPLE, batch_size=9))
    assert (first.reused_shards, again.reused_shards) == (0, 3)
    assert lines(again) == lines(first)
    assert "rows 8 to 16: reused (same checkpoint, rows and settings)" in capsys.readouterr().out


def test_a_job_that_died_goes_on_at_the_shard_that_it_was_in(small, rows, tmp_path, monkeypatch):
    whole = finish(config(tmp_path, small, rows, name="whole", decode=SAMPLE))
    original, seen = sources.examples, []

    def dies(request):
        for example in original(request):
            seen.append(example.number)
            if example.number == 13 and len(seen) < 20:
                raise KeyboardInterrupt
            yield example

    monkeypatch.setattr(sources, "examples", dies)
    with pytest.raises(KeyboardInterrupt):
        finish(config(tmp_path, small, rows, decode=SAMPLE))
    assert not (tmp_path / "out/predictions.jsonl").exists()
    first, seen[:] = list(seen), [0] * 20
    again = finish(config(tmp_path, small, rows, decode=SAMPLE))
    assert first[-1] == 13
    assert seen[20:] == list(range(8, 23))
    assert (again.reused_shards, lines(again)) == (1, lines(whole))


def test_rows_that_came_or_went_are_said(small, rows, tmp_path, capsys):
    for count, reason in (
        (6, "not done yet"),
        (8, "it has more rows than before"),
        (5, "it has fewer rows than before"),
    ):
        finish(config(tmp_path, small, rows, source={"max_rows": count}))
        assert f"({reason}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decode": {"strategy": "sample"}}, "settings changed"),
        ({"source": {"inputs": "say {text}"}}, "settings changed"),
        ({"checkpoint": "other"}, "checkpoint changed"),
    ],
    ids=["decode", "template", "checkpoint"],
)
def test_what_changed_is_said(small, rows, tmp_path, capsys, change, reason):
    finish(config(tmp_path, small, rows, source={"max_rows": 8}))
    if "checkpoint" in change:
        change = {"checkpoint": str(run(tmp_path, name="other", scale=1.5))}
    changed = config(tmp_path, change.pop("checkpoint", small), rows, **{"source": {"max_rows": 8}, **change})
    capsys.readouterr()
    summary = finish(changed, ["source.max_rows=8"])
    assert (summary.reused_shards, summary.shards) == (0, 1)
    assert f"({reason}" in capsys.readouterr().out
    assert len(list((tmp_path / "out/shards").iterdir())) == 2, "the old shard is gone"


def test_rows_that_were_added_leave_the_shards_before_them(small, tmp_path):
    file = write_rows(tmp_path, 16)
    finish(config(tmp_path, small, file))
    write_rows(tmp_path, 20)
    assert [finish(config(tmp_path, small, file)).reused_shards for _ in range(2)] == [2, 3]


def test_a_shard_whose_lines_were_altered_is_done_again(small, rows, tmp_path, capsys):
    first = finish(config(tmp_path, small, rows))
    [shard] = (tmp_path / "out/shards").glob("000000008-*.jsonl")
    shard.write_text(shard.read_text().replace("row 9", "row X"))
    again = finish(config(tmp_path, small, rows))
    assert (again.reused_shards, lines(again)) == (2, lines(first))
    assert "its lines were changed" in capsys.readouterr().out
    shard.with_suffix(".json").write_text("[]")
    again = finish(config(tmp_path, small, rows))
    assert (again.reused_shards, lines(again)) == (2, lines(first))
    assert "its record is damaged" in capsys.readouterr().out


def test_rows_that_change_between_the_plan_and_the_shard_are_refused(small, tmp_path):
    file = write_rows(tmp_path, 16)
    with shared_predictors():
        job = infer.resolve(config(tmp_path, small, file), [])
        requests = infer.plan(job)
        file.write_text(file.read_text().replace("row 9", "row X"))
        infer.work_through(requests[0])
        with pytest.raises(errors.DataError, match=r"rows 8 to 16 of .* have changed since they were counted"):
            infer.work_through(requests[1])
        holding.release(job.uri)
    told = json.loads((tmp_path / "out/summary.json").read_text())
    assert (told["status"], told["failure"]["where"]) == ("failed", "rows 8 to 16")
    assert "Failed in rows 8 to 16" in (tmp_path / "out/report.html").read_text()


BAD = (
    b'{"text": "one"}\n\nnot json\n{"other": 1}\n{"text": [1]}\n{"text": "\xff"}\n{"text": " "}\n'
    b'{"text": "x", "score": 1}\n'
)


def test_bad_rows_become_records_with_their_place(small, tmp_path, rows):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(BAD + b'{"text": "last", "n": 1}')
    summary = finish(config(tmp_path, small, file, shard_rows=4))
    found = lines(summary)
    assert [line.get("error", "").split(" (")[0] for line in found] == [
        "",
        "a blank line",
        "not JSON",
        "unknown column 'text'; known: other",
        "column 'text' holds a list; use text or numbers",
        "byte 0xff at position 11 is not UTF-8",
        "nothing to read: text blank",
        "the field 'score' has a name of the results; rename it",
        "",
    ]
    assert [line["place"] for line in found] == [f"{file}:{n}" for n in range(1, 10)]
    assert all(("prediction" in line) != ("error" in line) for line in found)
    assert found[3]["other"] == 1, "what could be read of a bad row stays"
    assert (summary.rows, summary.bad_rows, summary.status) == (9, 7, "completed")
    good = tmp_path / "good.jsonl"
    good.write_text('{"text": "one"}\n{"text": "last", "n": 1}\n')
    alone = finish(config(tmp_path, small, good, name="good"))
    assert results(alone, "text", "prediction") == [results(summary, "text", "prediction")[i] for i in (0, 8)]
    assert "unusable" in pathlib.Path(summary.report).read_text()


def test_too_many_bad_rows_fail_the_job(small, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(BAD)
    message = refused(config(tmp_path, small, file, max_bad_rows=3))
    assert message.startswith(f"more rows are unusable than max_bad_rows=3 allows: {file}:2: a blank line")
    message = refused(config(tmp_path, small, file, name="cut", max_bad_rows=5, shard_rows=4))
    assert message == f"7 of 8 rows cannot be used, more than max_bad_rows=5; the first: {file}:2: a blank line"
    assert len((tmp_path / "cut/predictions.jsonl").read_text().splitlines()) == 8, "the results are there"
    assert finish(config(tmp_path, small, file, name="cut", max_bad_rows=7, shard_rows=4)).reused_shards == 2


def test_a_job_without_one_good_row_fails(small, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\n[]\n")
    message = refused(config(tmp_path, small, file))
    assert message == f"not one of 2 rows can be used; the first: {file}:1: a blank line"
    assert json.loads((tmp_path / "out/summary.json").read_text())["status"] == "failed"


def test_inputs_are_cut_as_in_training_and_long_targets_are_refused(small, tmp_path):
    file = tmp_path / "long.jsonl"
    texts = ["x" * 23, "x" * 24, "x" * 23 + "different"]
    file.write_text("".join(json.dumps({"text": text, "want": text[:11] + text[23:24]}) + "\n" for text in texts))
    summary = finish(config(tmp_path, small, file))
    found = lines(summary)
    assert [line["inputs_truncated"] for line in found] == [False, True, True]
    assert len({line["prediction"] for line in found}) == 1
    assert json.loads(pathlib.Path(summary.uri).read_text())["inputs_truncated"] == 2
    scored = lines(finish(config(tmp_path, small, file, name="s", mode="score", source={"targets": "{want}"})))
    assert [line.get("error") for line in scored] == [
        None, *["the targets are 12 tokens long, above 11; raise feature_lengths.targets"] * 2,
    ]  # fmt: skip


def test_a_decoder_alone_predicts_behind_its_inputs_and_scores_without_any(tmp_path, rows):
    prefix = run(tmp_path, name="prefix", family="decoder_only")
    summary = finish(config(tmp_path, prefix, rows))
    assert (summary.rows, summary.bad_rows) == (23, 0)
    assert len({line["score"] for line in lines(summary)}) == 23
    alone = run(tmp_path, name="alone", family="decoder_only", lengths={"targets": 16})
    assert "nothing to predict from; set mode: score" in refused(config(tmp_path, alone, rows, name="p"))
    scoring = {"mode": "score", "name": "s"}
    source = {"targets": "{want}"}
    assert "has no effect on a model that reads targets alone" in refused(
        config(tmp_path, alone, rows, source=source, **scoring)
    )
    scored = lines(finish(config(tmp_path, alone, rows, source={**source, "inputs": None}, **scoring)))
    assert len({line["score"] for line in scored}) == 23


def test_what_cannot_work_is_refused_before_anything_is_written(small, rows, tmp_path):
    def message(**settings):
        return refused(config(tmp_path, settings.pop("checkpoint", small), settings.pop("file", rows), **settings))

    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "unknown column of" in message(source={"inputs": "{txt}"})
    assert "did you mean 'text'?" in message(source={"inputs": "{txt}"})
    assert "no file matches" in message(file=tmp_path / "nothing.jsonl")
    assert "does not exist" in message(checkpoint=tmp_path / "nowhere")
    assert "was trained with vocabulary" in message(vocabulary={"kind": "bytes", "extra_ids": 5})
    assert "has vocab_size=384, and 2176 was asked for; mend model.vocab_size" in message(model={})
    assert "holds more than a column's name" in message(source={"inputs": "{text:>5}"})
    assert not (tmp_path / "out").exists()
    assert "there are no rows in" in message(file=empty)


def test_a_table_without_the_column_is_refused_whichever_file_it_is(small, tmp_path):
    (tmp_path / "a.tsv").write_text("text\tid\nx\t1\n")
    (tmp_path / "b.tsv").write_text("txt\tid\nx\t1\n")
    message = refused(config(tmp_path, small, tmp_path / "*.tsv"))
    assert f"unknown column of {tmp_path}/b.tsv 'text'" in message
    (tmp_path / "b.tsv").write_text("text\trow\nx\t1\n")
    assert "b.tsv: the field 'row' has a name of the results" in refused(config(tmp_path, small, tmp_path / "*.tsv"))


def test_the_folder_of_a_run_is_not_written_over(small, rows, tmp_path):
    message = refused(config(small.parent, small, rows, name="small"), kind=errors.RunDirectoryError)
    assert "holds no predictions; choose another run.name" in message


def test_a_checkpoint_outside_a_run_has_to_be_told_its_model(small, rows, tmp_path):
    lonely = tmp_path / "lonely"
    shutil.copytree(small / "checkpoints", lonely)
    assert "model is missing" in refused(config(tmp_path, lonely, rows))
    told = {
        "model": small_model(small).model_dump(),
        "vocabulary": {"kind": "bytes", "extra_ids": 0},
    }
    assert "feature_lengths is missing" in refused(config(tmp_path, lonely, rows, **told))
    alone = finish(config(tmp_path, lonely, rows, feature_lengths=LENGTHS, **told))
    assert lines(alone) == lines(finish(config(tmp_path, small, rows, name="with-run")))


def test_the_builtin_rows_are_those_that_training_holds_out(small, rows, tmp_path):
    source = {"files": [], "builtin": "python_docstrings", "inputs": "{inputs}", "max_rows": 3}
    found = lines(finish(config(tmp_path, small, rows, source=source)))
    assert len(found) == 3
    assert all({"inputs", "targets", "prediction"} <= set(line) for line in found)
