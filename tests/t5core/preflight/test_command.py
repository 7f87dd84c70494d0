"""`python -m t5core.preflight`, called in this process."""

import json
import pathlib

import pytest
import yaml

from t5core import command_line, errors
from t5core.preflight.__main__ import main
from tests.t5core.preflight import runs
from tests.t5core.test_train_and_stages import settings_put_back


@pytest.fixture
def config(tmp_path):
    runs.write_text(tmp_path)
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(runs.settings(tmp_path)))
    return file


def test_a_run_that_can_work_is_shown_and_not_claimed(config, capsys):
    assert main(["--config", str(config), "--no-steps"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("preflight of run tiny: ")
    labels = [line.split()[0] for line in shown.splitlines()[1:] if line[2] != " "]
    assert labels[:7] == ["parameters", "memory", "checkpoints", "steps", "tokens", "rows", "truncated"]
    assert max(map(len, shown.splitlines())) <= 100
    assert not (config.parent / "runs").exists(), "a check must not take the directory that the run will want"


def test_steps_are_tried_on_this_machine(config, capsys):
    with settings_put_back():
        assert main(["--config", str(config)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "for 30 steps at" in shown
    assert "(as compiled here) for a step" in shown


def test_refusals_leave_with_1_and_each_is_told(config, capsys):
    overrides = json.dumps(["train.batch_size=4000", "data.tasks.1.files=[nowhere.tsv]"])
    assert main(["--config", str(config), "--overrides", overrides]) == 1
    assert "refused      task 'pairs': no file matches nowhere.tsv" in capsys.readouterr().out


def test_the_pool_of_the_cluster_is_judged_when_asked_for(config, capsys):
    overrides = json.dumps(["cluster.pool=tpu_v5e_8", "evaluate.batch_size=8"])
    assert main(["--config", str(config), "--cluster", "--overrides", overrides]) == 1
    assert "does not divide by the 8 devices of pool tpu_v5e_8" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ('["train.total_step=4"]', "did you mean 'train.total_steps'?"),
        ("train.total_steps=4", "is not a list; write"),
        ('["data.tasks.1.metrics=[exact_mach]"]', "did you mean 'exact_match'?"),
    ],
)
def test_a_setting_that_is_wrong_in_itself_is_one_line(config, overrides, message, capsys):
    with pytest.raises(SystemExit) as left:
        command_line.run(lambda: main(["--config", str(config), "--overrides", overrides]))
    assert left.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ")
    assert message in line


def test_the_directory_of_another_run_is_refused(config):
    taken = config.parent / "runs" / "tiny"
    taken.mkdir(parents=True)
    (taken / "holiday.jpg").touch()
    with pytest.raises(errors.RunDirectoryError, match=r"holiday\.jpg"):
        main(["--config", str(config), "--no-steps"])


def test_a_wrong_argument_is_one_line(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--confg", "x.yaml"])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_reader_that_leaves_early_ends_the_command_quietly(capfd):
    def broken() -> None:
        raise BrokenPipeError

    with pytest.raises(SystemExit) as left:
        command_line.run(broken)
    assert left.value.code == 0
    assert pathlib.Path("/dev/null").exists()
    assert capfd.readouterr().err == ""
