"""The preflight as a stage: recorded, refusing before any dataset is written, looked at again afterwards."""

import json

import pytest

from t5core import errors
from t5core.config.edges import RunInputs
from t5core.data import mixture
from t5core.preflight import pools, record
from t5core.report import page
from t5core.rundir import RunDirectory
from t5core.stages import preflight
from tests.t5core.preflight import runs


def claimed(folder, *overrides):
    run = runs.run_in(folder, *overrides)
    RunDirectory(run.uri).claim(run, identity=run.fingerprint, config_text="")
    return run


def test_a_run_goes_on_unchanged_and_its_figures_are_recorded(tmp_path):
    runs.write_text(tmp_path)
    run = claimed(tmp_path)
    assert preflight.preflight(run, on_pool=False) == run
    found = record.read(run.uri)
    assert found is not None
    assert found.devices == pools.this_machine()
    (stage,) = [stage for stage in RunDirectory(run.uri).stages() if stage.stage == "preflight"]
    assert "parameters, checkpoints of" in stage.reason


def test_a_refusal_fails_the_run_before_any_dataset(tmp_path, capsys):
    runs.write_text(tmp_path)
    run = claimed(tmp_path, "train.batch_size=6", "cluster.pool=tpu_v5e_8", "data.tasks.0.files=[nowhere.txt]")
    with pytest.raises(errors.ConfigError, match=r"^train.batch_size=6 does not divide by the 8 devices"):
        preflight.preflight(run, on_pool=True)
    told = capsys.readouterr().out
    assert "refused: task 'text': no file matches nowhere.txt" in told
    assert "does not divide by the 8 devices" not in told, "that is the error's own line"
    assert not (tmp_path / "runs" / "datasets").exists()
    summary = json.loads((tmp_path / "runs" / "tiny" / "summary.json").read_text())
    assert (summary["status"], summary["failure"]["where"]) == ("failed", "preflight")
    assert summary["failure"]["kind"] == "mistake"
    assert len(summary["preflight"]["refusals"]) == 2


def test_what_the_data_hold_stands_beside_what_was_expected(tmp_path):
    runs.write_text(tmp_path)
    run = claimed(tmp_path)
    preflight.preflight(run, on_pool=False)
    expected = record.read(run.uri).estimated
    vocabulary, tasks = runs.datasets_of(run)
    mixed = mixture.assemble_mixture(run, vocabulary=vocabulary, tasks=tasks)
    preflight.look_again(RunInputs(run=run, vocabulary=vocabulary, tasks=tasks, mixture=mixed))
    found = record.read(run.uri)
    assert found.estimated == expected
    assert found.exact is not None
    assert found.exact.rows == mixed.rows
    text = page.write_report(run.uri)
    for rows in (expected.rows, found.exact.rows):
        assert f">{rows}</td>" in text
    preflight.preflight(run, on_pool=False)
    assert record.read(run.uri).estimated == expected, "a second start forgets nothing"
