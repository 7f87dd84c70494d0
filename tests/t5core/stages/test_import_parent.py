"""What other software wrote is imported once, by content; what can be started from stays where it is."""

import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from t5core import errors, sharing
from t5core.checkpoints import index
from t5core.importers import own, t5x
from t5core.lock import RunLock
from t5core.stages import import_parent
from t5core.starting import restore
from tests.t5core import small_runs
from tests.t5core.importers import making

DIES_WHILE_IT_IMPORTS = """
import pathlib, sys, time
from t5core.importers import own
from t5core.stages import import_parent
from tests.t5core.stages import test_import_parent

def write(folder, *_):
    begun = pathlib.Path(folder) / "0.orbax-checkpoint-tmp"
    begun.mkdir(parents=True)
    (begun / "array").write_text("half of it")
    time.sleep(600)

own.write = write
test_import_parent.imported(test_import_parent.config(pathlib.Path(sys.argv[1]), sys.argv[2]))
"""


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
    assert "gone from" not in capsys.readouterr().out
    shutil.rmtree(folder)
    assert imported(config(root, source)) == place
    assert re.search(rf"import: done \(.*; made on [\d-]+, and gone from {folder}\)", capsys.readouterr().out)


def test_what_another_run_is_importing_is_waited_for_and_taken(tmp_path, monkeypatch, capsys):
    source, root = making.saved(tmp_path / "hf"), tmp_path / "runs"
    place = imported(config(root, source))
    folder = index.locate(place)[0]
    name = folder.rpartition("/")[2]
    shutil.move(folder, tmp_path / "aside")
    other = RunLock(f"{root}/made/imported-{name}.lock", owner="another run")
    other.acquire()

    def wait(seconds):
        shutil.move(tmp_path / "aside", folder)
        other.release()

    monkeypatch.setattr(sharing.time, "sleep", wait)
    monkeypatch.setattr(own, "write", lambda *_: pytest.fail("imported twice"))
    capsys.readouterr()
    assert imported(config(root, source)) == place
    said = capsys.readouterr().out
    assert said.index(f"imported-{name} is being made by another run: waiting for it") < said.index("import: reused")


def test_an_import_whose_run_was_killed_in_the_middle_is_made_by_the_one_that_waits(tmp_path, monkeypatch):
    source, root = making.saved(tmp_path / "hf"), tmp_path / "runs"
    first = subprocess.Popen([sys.executable, "-c", DIES_WHILE_IT_IMPORTS, str(root), str(source)], text=True)
    while not list(root.glob("imported/*/*")):
        assert first.poll() is None, "it has to be in the middle"
        time.sleep(0.02)
    assert len(list(root.glob("made/imported-*.lock"))) == 1

    def wait(seconds):
        first.kill()
        first.wait()

    monkeypatch.setattr(sharing.time, "sleep", wait)
    folder, step = index.locate(imported(config(root, source)))
    assert index.committed_steps(folder) == (step,)


def test_a_run_that_was_begun_does_not_need_the_source_any_more(tmp_path):
    source, root = making.saved(tmp_path / "hf"), tmp_path / "runs"
    place = imported(config(root, source))
    run = small_runs.inputs(import_parent.import_parent(config(root, source), [])).run
    pathlib.Path(run.uri, "metrics").mkdir()  # what training leaves
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
