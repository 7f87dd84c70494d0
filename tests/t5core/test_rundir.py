"""The run directory: whose it is, and what the stages leave in it."""

import json
import math
import os
import subprocess
import sys

import pytest
import yaml

from t5core import errors
from t5core.config.edges import CheckpointRef, Cursor, Evaluation, ResolvedRun, SegmentRecord
from t5core.config.schema import PretrainConfig
from t5core.rundir import RunDirectory, StageRecord

TASK = {"name": "docs", "builtin": "python_docs"}


def resolved(folder, **train):
    config = PretrainConfig.model_validate(
        {"run": {"name": "demo"}, "data": {"tasks": [TASK]}, "train": {"batch_size": 8, **train}}
    )
    return ResolvedRun(uri=str(folder), config=config, fingerprint="fingerprint")


def claim(folder, identity="one", may_differ=(), **train):
    run = resolved(folder, **train)
    text = yaml.safe_dump(run.config.model_dump(mode="json"))
    return RunDirectory(run.uri).claim(run, identity=identity, config_text=text, may_differ=may_differ)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "demo"


def checkpoint(folder, step):
    return CheckpointRef(uri=f"{folder}/checkpoints/{step}", step=step, digest=f"digest {step}")


def test_a_run_remembers_the_workflow_that_began_it(folder):
    run = resolved(folder)
    for workflow in ("finetune", "pretrain"):
        info = RunDirectory(run.uri).claim(run, identity="one", config_text="{}", workflow=workflow)
        assert info.workflow == "finetune"


def segment(folder, start, end):
    return SegmentRecord(
        start=start,
        end=end,
        seconds=1.5,
        trained_steps=end - start,
        reused=False,
        parent=checkpoint(folder, start),
        checkpoint=checkpoint(folder, end),
    )


def evaluation(folder, step, loss):
    return Evaluation(
        step=step,
        checkpoint=checkpoint(folder, step),
        metrics={"docs": {"loss": loss, "accuracy": 0.25}},
        seconds=2.0,
        reused=False,
        uri=f"{folder}/records/evaluation-{step:08d}.json",
    )


def begun(folder, **train):
    """Claims the directory for a run that has trained a segment."""
    claim(folder, **train)
    RunDirectory(str(folder)).write_segment(segment(folder, 0, 5))


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_claim_makes_the_directory_and_the_next_finds_it(folder):
    first = claim(folder)
    assert sorted(os.listdir(folder)) == ["config.yaml", "run.json"]
    assert (first.name, first.identity, first.seed) == ("demo", "one", 0)
    before = content(folder)
    assert claim(folder) == first == RunDirectory(str(folder)).info()
    assert content(folder) == before


def test_a_later_claim_of_the_same_run_brings_the_configuration_up_to_date(folder):
    first = claim(folder, total_steps=10)
    assert claim(folder, total_steps=20) == first
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["total_steps"] == 20


def test_another_run_is_refused_naming_both_and_what_differs_and_nothing_is_touched(folder):
    begun(folder, total_steps=10)
    before = content(folder)
    with pytest.raises(errors.RunDirectoryError) as refusal:
        claim(folder, identity="two", may_differ={"train.total_steps"}, batch_size=16, total_steps=20)
    assert str(refusal.value) == (
        f"{folder} belongs to run one, not to two: train.batch_size is 8 there and 16 here; "
        f"choose another run.name, or set it back"
    )
    assert content(folder) == before


@pytest.mark.parametrize("left", ["checkpoints/5.damaged-1/", "metrics/train/", "records/evaluation-00000005.json"])
def test_whatever_training_left_keeps_the_directory_with_its_run(folder, left):
    claim(folder)
    assert not RunDirectory(str(folder)).is_begun()
    place = folder / left
    (place if left.endswith("/") else place.parent).mkdir(parents=True)
    if not left.endswith("/"):
        place.write_text("{}")
    assert RunDirectory(str(folder)).is_begun()
    with pytest.raises(errors.RunDirectoryError, match="belongs to run one, not to two"):
        claim(folder, identity="two")


def test_a_run_that_never_began_is_taken_over_and_nothing_of_it_stays(folder):
    claim(folder, batch_size=8)
    directory = RunDirectory(str(folder))
    directory.write_stage(
        StageRecord(stage="resolve", reused=False, reason="new", seconds=0.1, fingerprint="one", uri=str(folder))
    )
    for name in ("summary.json", "report.html", "lock.json"):
        (folder / name).write_text("of before")
    directory.check_identity("one")
    assert claim(folder, identity="two", batch_size=16) == directory.info()
    info = directory.info()
    assert info is not None
    assert info.identity == "two"
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["batch_size"] == 16
    assert sorted(os.listdir(folder)) == ["config.yaml", "lock.json", "run.json"], "the lock is the holder's"
    with pytest.raises(errors.RunDirectoryError, match=r"demo is that of run two by now, .*choose another run.name"):
        directory.check_identity("one")


def test_a_take_over_that_was_killed_leaves_a_directory_that_either_run_can_have(folder, monkeypatch):
    for survivor in ("one", "two"):
        claim(folder, identity="one", batch_size=8)
        with monkeypatch.context() as killed:
            killed.setattr("t5core.records.write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                claim(folder, identity="two", batch_size=16)
        size = {"one": 8, "two": 16}[survivor]
        assert claim(folder, identity=survivor, batch_size=size).identity == survivor
        assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["batch_size"] == size


def test_of_many_differences_the_first_are_named(folder):
    begun(folder)
    changes = {"batch_size": 16, "total_steps": 3, "segment_steps": 3, "checkpoint_period": 3, "eval_period": 3}
    with pytest.raises(errors.RunDirectoryError, match=r"eval_period is 250 there and 3 here \(and 2 more\); choose"):
        claim(folder, identity="two", **changes)


def test_differences_inside_lists_are_named_by_place(folder):
    begun(folder)
    run = resolved(folder)
    data = run.config.data.model_copy(update={"tasks": [run.config.data.tasks[0].model_copy(update={"rate": 2.0})]})
    other = run.model_copy(update={"config": run.config.model_copy(update={"data": data})})
    with pytest.raises(errors.RunDirectoryError, match=r"data\.tasks\.0\.rate is None there and 2\.0 here"):
        RunDirectory(run.uri).claim(other, identity="two", config_text="")


def test_a_configuration_that_is_no_text_any_more_is_written_anew_and_named_to_others(folder):
    begun(folder, total_steps=10)
    (folder / "config.yaml").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(errors.IntegrityError, match=r"config.yaml is not YAML; delete it and run again"):
        claim(folder, identity="two")
    claim(folder, total_steps=10)
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["total_steps"] == 10


@pytest.mark.parametrize("damaged", ['{"name": "de', "[]", "\xff"])
def test_who_made_a_directory_is_not_to_be_deleted_when_it_is_damaged(folder, damaged):
    claim(folder)
    (folder / "run.json").write_text(damaged, encoding="latin-1")
    with pytest.raises(
        errors.IntegrityError, match=r"run.json does not say whose run this is; bring it back from a co"
    ):
        claim(folder)


def test_a_directory_that_no_run_made_is_refused_and_left_alone(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(
        errors.RunDirectoryError, match=r"demo is not empty \(thesis.tex\) and belongs to no run; choose"
    ):
        claim(folder)
    assert os.listdir(folder) == ["thesis.tex"]


def test_a_claim_that_was_killed_half_way_is_made_again(folder):
    folder.mkdir(parents=True)
    for left in ("config.yaml", "lock.json", ".run.json.1234abcd.tmp"):
        (folder / left).write_text("")
    assert claim(folder).identity == "one"


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(errors.RunDirectoryError, match=r"cannot write .*config.yaml: .*; free space or"):
        claim(tmp_path / "runs" / "demo")


def test_records_come_back_as_they_were_written(folder):
    run = RunDirectory(str(folder))
    assert run.segment(10) is None
    assert run.segments() == run.evaluations() == run.stages() == []
    run.write_segment(segment(folder, 10, 20))
    run.write_segment(segment(folder, 0, 10))
    assert run.segment(10) == segment(folder, 0, 10)
    assert run.segments() == [segment(folder, 0, 10), segment(folder, 10, 20)]
    stages = [
        StageRecord(stage="materialise", name=name, reused=True, reason="same", seconds=0.5, fingerprint="f", uri="/d")
        for name in ("docs", "signatures")
    ]
    for stage in (*stages, stages[0].model_copy(update={"stage": "assemble", "name": ""})):
        run.write_stage(stage)
    assert [(stage.stage, stage.name) for stage in run.stages()] == [
        ("assemble", ""),
        ("materialise", "docs"),
        ("materialise", "signatures"),
    ]
    assert sorted(os.listdir(folder / "records")) == [
        "segment-00000010.json",
        "segment-00000020.json",
        "stage-assemble.json",
        "stage-materialise-docs.json",
        "stage-materialise-signatures.json",
    ]


def test_metrics_of_evaluations_survive_with_nan_in_strict_json(folder):
    run = RunDirectory(str(folder))
    run.write_evaluation(evaluation(folder, 10, math.nan))
    run.write_evaluation(evaluation(folder, 20, 1.5))

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads((folder / "records" / "evaluation-00000010.json").read_text(), parse_constant=refuse)
    assert run.evaluation(20) == evaluation(folder, 20, 1.5)
    assert math.isnan(run.evaluation(10).metrics["docs"]["loss"])


def test_cursors_remember_numbers_that_json_has_no_word_for(folder):
    run = RunDirectory(str(folder))
    assert run.cursors() == []
    state = {"early_stopping": {"best": math.inf, "history": [1.5, -math.inf]}}
    written = [Cursor(checkpoint=checkpoint(folder, step), action_state=state) for step in (20, 10)]
    for cursor in written:
        run.write_cursor(cursor)
    assert run.cursors() == written[::-1]


def test_what_was_moved_names_its_checkpoints_by_where_they_lie_now(folder, tmp_path):
    run = RunDirectory(str(folder))
    run.write_segment(segment(folder, 0, 10))
    run.write_evaluation(evaluation(folder, 10, 1.5))
    run.write_cursor(Cursor(checkpoint=checkpoint(folder, 10)))
    place = tmp_path / "elsewhere"
    folder.rename(place)
    moved = RunDirectory(str(place))
    assert moved.segment(10) == segment(place, 0, 10)
    assert moved.segments() == [segment(place, 0, 10)]
    assert moved.evaluation(10) == evaluation(place, 10, 1.5)
    assert moved.evaluations() == [evaluation(place, 10, 1.5)]
    assert moved.cursors() == [Cursor(checkpoint=checkpoint(place, 10))]


def test_a_damaged_record_is_named(folder):
    run = RunDirectory(str(folder))
    run.write_segment(segment(folder, 0, 10))
    path = folder / "records" / "segment-00000010.json"
    path.write_text(path.read_text().replace('"end"', '"and"'))
    with pytest.raises(
        errors.IntegrityError, match=r"segment-00000010.json is not a SegmentRecord as it was written; delete"
    ):
        run.segments()


def test_the_layout(folder):
    run = RunDirectory(f"{folder}/")
    assert run.metrics_uri("train") == f"{folder}/metrics/train"
    assert run.metrics_uri("inference_eval", "docs") == f"{folder}/metrics/inference_eval/docs"
    assert run.predictions_uri("docs", 20) == f"{folder}/predictions/docs-00000020.jsonl"
    assert run.checkpoints_uri == f"{folder}/checkpoints"


def test_run_directories_and_locks_need_neither_jax_nor_numpy():
    code = "import sys, t5core.rundir, t5core.lock; assert not {'jax', 'numpy', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
