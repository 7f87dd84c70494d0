"""The conversion as a DAG, in this process, and its settings on pyflyte's command line."""

import pytest

from t5core import errors
from t5core.config.convert_schema import ConvertConfig
from t5core.importers import formats
from tests.t5core.importers.making import HUGGINGFACE
from workflows import convert, pyflyte_plugin


def test_the_dag_converts_and_reports(tmp_path):
    overrides = [f"run.root={tmp_path}", f"source.uri={HUGGINGFACE}", "destination.format=t5flow"]
    summary = convert.convert(overrides=overrides)
    assert (summary.status, summary.tensors, summary.largest_logits_difference) == ("equal", 52, 0.0)
    assert formats.detect(summary.checkpoint) == "t5flow"
    names = {path.name for path in (tmp_path / "convert").iterdir()}
    assert {"summary.json", "report.html", "parity.json", "parity.txt", "conversion.json", "checkpoints"} <= names


def test_a_file_of_settings_is_read_as_those_of_its_workflow(tmp_path):
    settings = tmp_path / "mine.yaml"
    settings.write_text("destination: {format: t5x, layout: scanned}")
    inlined = pyflyte_plugin._inline_config(["--config", str(settings)], ConvertConfig)
    config = ConvertConfig.model_validate_json(inlined[1])
    assert (config.destination.format, config.destination.layout) == ("t5x", "scanned")
    settings.write_text("train: {total_steps: 3}")
    with pytest.raises(errors.ConfigError, match="unknown key 'train'"):
        pyflyte_plugin._inline_config(["--config", str(settings)], ConvertConfig)


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_a_file_may_be_mended_by_the_overrides_beside_it(tmp_path, form):
    settings = tmp_path / "mine.yaml"
    settings.write_text("{destination: {format: t5y, layout: scanned}}")
    mending = '["destination.format=t5x"]'
    args = {
        "apart": ["--config", str(settings), "--overrides", mending],
        "joined": [f"--overrides={mending}", f"--config={settings}"],
    }[form]
    inlined = pyflyte_plugin._inline_config(args, ConvertConfig)
    (config,) = [arg.removeprefix("--config=") for arg in inlined if "destination" in arg and "{" in arg]
    assert ConvertConfig.model_validate_json(config).destination.format == "t5x"
    assert [arg for arg in inlined if mending in arg], "and they count as before"
    others = ["--config", str(settings), "--overrides", '["destination.layout=scanned"]']
    with pytest.raises(errors.ConfigError, match=f"^{settings}: destination.format='t5y' is not valid"):
        pyflyte_plugin._inline_config(others, ConvertConfig)


@pytest.mark.parametrize("given", ["no list", "{}", '"x=1"', "[1]", '{"train.total_steps": 20}'])
def test_overrides_that_are_no_list_of_settings_are_one_line(given):
    with pytest.raises(errors.ConfigError) as raised:
        pyflyte_plugin._inline_config(["--overrides", given], ConvertConfig)
    assert str(raised.value) == (
        f"--overrides takes a JSON list of settings, such as '[\"train.total_steps=40\"]', not {given}"
    )
