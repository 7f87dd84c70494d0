"""The evaluation as a DAG, in this process, as it starts without any argument."""

from __future__ import annotations

from t5core import storage
from tests.t5core import trained_runs
from workflows import evaluate


def test_without_arguments_it_evaluates_the_checkpoints_of_the_demo_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    inputs = trained_runs.trained(tmp_path / "runs")
    with trained_runs.materialised(*inputs.tasks):
        first = evaluate.evaluate()
        again = evaluate.evaluate(overrides=["run.name=again"])
    assert (first.status, first.checkpoints, first.reused) == ("completed", 2, 0)
    assert (again.status, again.checkpoints, again.reused) == ("completed", 2, 2)
    assert [row["step"] for row in storage.read_json(first.table)] == [2, 4]
    assert [row["metrics"] for row in storage.read_json(first.table)] == [
        row["metrics"] for row in storage.read_json(again.table)
    ]
    names = {path.name for path in (tmp_path / "runs" / "evaluate").iterdir()}
    assert {"config.yaml", "summary.json", "report.html", "table.json", "table.csv"} <= names
    said = capsys.readouterr().out
    assert "evaluation evaluate: 2 measured, 0 reused" in said
    assert "evaluate step 4: reused (same checkpoint, data, settings and code)" in said
