"""A checkpoint as a person names it: by a run, by its own folder, or by the name it was published under."""

import re
import shutil

import pytest

from t5core import errors, publishing, storage
from t5core.checkpoints import index, locating
from t5core.config.publish_schema import PublishConfig
from t5core.publishing import Candidate


@pytest.fixture
def run(copy):
    """A run directory with the steps 10 and 20, under a root of its own."""
    directory = copy.parent / "mine"
    directory.mkdir()
    copy.rename(directory / "checkpoints")
    return directory


def publish(root, run, step, *, digest=None):
    checkpoint = index.reference(str(run / "checkpoints"), step)
    checkpoint = checkpoint.model_copy(update={"digest": digest or checkpoint.digest})
    candidate = Candidate(run_name="mine", run_uri=str(run), checkpoint=checkpoint, value=1.0, measured_on="same")
    publishing.publish_if_better(PublishConfig(name="best", task="t"), candidate, root=str(root))


@pytest.mark.parametrize(
    ("spec", "step"), [("", 20), ("/", 20), ("/checkpoints", 20), ("/checkpoints/10", 10), ("/checkpoints/20/", 20)]
)
def test_a_run_or_a_folder_leads_to_its_step(run, spec, step):
    found = locating.locate(f"{run}{spec}", root="unused")
    assert found == index.reference(str(run / "checkpoints"), step)


def test_a_path_is_relative_to_where_one_stands(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert locating.locate("mine", root="unused").uri == str(run / "checkpoints/20")


def test_a_published_name_leads_to_what_it_points_to(run, tmp_path):
    publish(run.parent, run, 10)
    assert locating.locate("published:best", root=str(run.parent)).step == 10


def test_a_name_that_nothing_was_published_under_is_told_with_the_nearest(run):
    publish(run.parent, run, 10)
    with pytest.raises(errors.CheckpointError, match="unknown published name 'bset'; did you mean 'best'"):
        locating.locate("published:bset", root=str(run.parent))
    with pytest.raises(errors.CheckpointError, match="known: none"):
        locating.locate("published:best", root=str(run.parent / "elsewhere"))


def test_a_published_checkpoint_that_was_replaced_is_refused(run):
    publish(run.parent, run, 10, digest="0" * 64)
    with pytest.raises(errors.CheckpointError, match=r"points to .*/10 with digest 000000000000, but"):
        locating.locate("published:best", root=str(run.parent))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("/nowhere", "does not exist; name a run directory"),
        ("/checkpoints/30", "no such step; committed in"),
        ("/empty", "has no checkpoint; name a run directory"),
        ("/checkpoint_5", "is a checkpoint of T5X; convert it first"),
    ],
)
def test_what_is_no_checkpoint_is_told_in_one_line(run, spec, message):
    (run / "empty").mkdir()
    (run / "checkpoint_5").mkdir()
    with pytest.raises(errors.CheckpointError, match=message) as refusal:
        locating.locate(f"{run}{spec}", root="unused", setting="source.checkpoint")
    assert str(refusal.value).startswith(f"source.checkpoint='{run}{spec}'")
    assert "\n" not in str(refusal.value)


def test_damaged_ones_are_named(run):
    shutil.rmtree(run / "checkpoints/10")
    shutil.rmtree(run / "checkpoints/20/state")
    with pytest.raises(errors.CheckpointError, match=r"has no usable checkpoint \(damaged: 20\)"):
        locating.locate(str(run), root="unused")


def test_the_run_of_a_checkpoint_is_known_by_its_directory(run):
    found = locating.locate(str(run), root="unused")
    assert locating.run_of(found) is None
    info = {"name": "mine", "identity": "i", "seed": 0, "created": "now"}
    storage.write_json(run / "run.json", info)
    directory = locating.run_of(found)
    assert re.fullmatch(re.escape(str(run)), directory.uri)
    moved = found.model_copy(update={"uri": f"{run}/20"})
    assert locating.run_of(moved) is None
