"""What other software wrote is imported once, by content; what can be started from stays where it is."""

import shutil

import pytest

from t5core import errors
from t5core.checkpoints import index
from t5core.importers import t5x
from t5core.stages import import_parent
from t5core.starting import restore
from tests.t5core import small_runs
from tests.t5core.importers import making


def config(root, checkpoint, **run):
    init = {"checkpoint": str(checkpoint), "step": "restart"}
    return small_runs.config(root, run={"name": "tuned", "init_from": init, **run})


def imported(settings, *overrides):
    return import_parent.import_parent(settings, list(overrides)).run.init_from.checkpoint


def test_a_model_of_hugging_face_is_imported_once(tmp_path, capsys):
    source, root = making.saved(tmp_path / "hf"), tmp_path / "runs"
    place = imported(config(root, source))
    folder, step = index.locate(place)
    record = index.read_record(folder, step)
    assert place.startswith(f"{root}/imported/")
    assert (step, record.provenance.imported_from.uri) == (0, str(source))
    assert "import: done (huggingface" in capsys.readouterr().out
    shutil.copytree(source, tmp_path / "copy")
    assert imported(config(root, tmp_path / "copy")) == place, "the content counts"
    assert "import: reused" in capsys.readouterr().out
    other = making.saved(tmp_path / "other", making.made(emb_dim=8))
    assert imported(config(root, other)) != place


def test_a_run_that_was_begun_does_not_need_the_source_any_more(tmp_path):
    source, root = making.saved(tmp_path / "hf"), tmp_path / "runs"
    place = imported(config(root, source))
    small_runs.inputs(import_parent.import_parent(config(root, source), []))
    shutil.rmtree(source)
    assert imported(config(root, source)) == place


def test_layers_that_t5x_has_stacked_are_imported_and_others_are_not(tmp_path):
    found = making.made(step=3)
    plain = t5x.write(str(tmp_path / "plain"), found)
    stacked = t5x.write(str(tmp_path / "stacked"), found, layout="scanned")
    assert imported(config(tmp_path / "runs", plain)) == plain
    place = imported(config(tmp_path / "runs", stacked))
    assert place.startswith(f"{tmp_path}/runs/imported/")
    state, _ = restore.shapes(restore.specific(place, setting="x"))
    assert "layers_2" in state["params"]["decoder"]


def test_overrides_count_and_are_told(tmp_path, capsys):
    source = making.saved(tmp_path / "hf")
    place = imported(config(tmp_path / "runs", "nowhere"), f"run.init_from.checkpoint={source}")
    assert place.startswith(f"{tmp_path}/runs/imported/")
    assert f"run.init_from.checkpoint={source} (from overrides" in capsys.readouterr().out


def test_fine_tuning_needs_a_checkpoint(tmp_path):
    with pytest.raises(errors.ConfigError) as failure:
        import_parent.import_parent(small_runs.config(tmp_path), [])
    assert str(failure.value) == (
        "run.init_from is not set, and fine-tuning starts from a checkpoint; set run.init_from.checkpoint, or train "
        "from nothing with workflows/pretrain.py"
    )


def test_without_the_demo_the_way_to_it_is_told(tmp_path):
    with pytest.raises(errors.CheckpointError, match=r"demo' does not exist; .*`make pretrain` trains runs/demo"):
        imported(config(tmp_path / "runs", tmp_path / "demo"))
