"""The forms of the command, and that help reads well."""

import subprocess

from tests.workflows.command_line import PYFLYTE, ROOT


def pyflyte(*arguments):
    return subprocess.run(
        [PYFLYTE, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin", "COLUMNS": "160"},
    )


def test_help_shows_the_workflow_and_no_schema():
    for arguments in (["--help"], ["pretrain", "--help"]):
        shown = pyflyte("run", "workflows/pretrain.py", *arguments)
        assert shown.returncode == 0
        text = " ".join(shown.stdout.split())
        assert "YAML file with the settings of the run; without it the demo recipe" in text
        assert 'settings put over it, as a JSON list of "section.key=value"' in text
        assert "additionalProperties" not in text


def test_other_commands_of_pyflyte_still_work():
    assert "pyflyte" in pyflyte("--help").stdout
    listed = pyflyte("run", "workflows/pretrain.py", "nothing")
    assert listed.returncode != 0
