"""What is expected of the data, against what SeqIO and the mixture make of the same text."""

import pytest

from t5core.config.edges import TaskRequest
from t5core.data import materialise, mixture, vocabulary_training
from t5core.data.vocabulary import ByteVocabulary
from t5core.preflight import data, sample
from t5core.preflight.record import DataFigures
from tests.t5core.preflight import runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    runs.write_text(folder)
    return folder


def expected(run) -> DataFigures:
    samples = {task.name: sample.sample(task) for task in run.config.data.tasks}
    return data.estimated(run, samples, ByteVocabulary(extra_ids=100), basis="bytes")


def counted(run) -> DataFigures:
    vocabulary = vocabulary_training.build_vocabulary(run).reference
    tasks = [
        materialise.materialise_task(TaskRequest(run=run, vocabulary=vocabulary, task=task.name))
        for task in run.config.data.tasks
    ]
    found = data.counted(tasks, mixture.assemble_mixture(run, vocabulary=vocabulary, tasks=tasks))
    assert found is not None
    return found


OBJECTIVES = {
    "span_corruption": (),
    "prefix_lm": ("data.tasks.0.objective=prefix_lm",),
    "lm": ("data.tasks.0.objective=lm", "model.family=decoder_only"),
    "unpacked, twice": ("data.pack=false", "data.passes=2", "data.tasks.0.rate=3", "data.tasks.1.rate=1"),
}


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_an_estimate_from_all_of_the_text_is_what_the_data_hold(folder, objective):
    run = runs.run_in(folder, *OBJECTIVES[objective])
    estimate, exact = expected(run), counted(run)
    assert (estimate.is_exact, exact.is_exact) == (False, True)
    assert estimate.examples == exact.examples
    assert estimate.rows == pytest.approx(exact.rows, rel=0.06)
    assert estimate.truncated == exact.truncated
    assert exact.truncated["pairs"]["targets"] > 0.1, "the text is meant to have some that are too long"
    for name, share in exact.efficiency.items():
        assert estimate.efficiency[name] == pytest.approx(share, abs=0.06)
        assert estimate.tokens[name] == pytest.approx(exact.tokens[name], rel=0.03)


def test_a_part_of_a_large_text_stands_for_all_of_it(tmp_path, monkeypatch):
    runs.write_text(tmp_path, documents=3000)
    task = runs.run_in(tmp_path, "data.tasks.0.validation_fraction=0.1").config.data.tasks[0]
    whole = sample.sample(task)
    assert whole.is_whole
    monkeypatch.setattr(sample, "SMALL_BYTES", 1)
    monkeypatch.setattr(sample, "_HEAD_BYTES", 1 << 14)
    monkeypatch.setattr(sample, "CHARACTERS", 1 << 14)
    part = sample.sample(task)
    assert not part.is_counted
    assert len(part.documents) < whole.total / 2
    assert part.total == pytest.approx(whole.total, rel=0.1)


def test_a_table_of_parquet_says_how_many_rows_it_has(tmp_path, monkeypatch):
    import pandas as pd

    runs.write_text(tmp_path)
    pd.DataFrame({"text": [f"row {i}" for i in range(500)]}).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(sample, "SMALL_BYTES", 1)
    run = runs.run_in(tmp_path, f"data.tasks.0.files=[{tmp_path}/rows.parquet]")
    assert sample.sample(run.config.data.tasks[0]).total == 450
