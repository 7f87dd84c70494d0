"""What is published is measured on a run's own data before it is beaten there."""

import math

import pytest

from t5core import build, incumbent, publishing, storage
from t5core.checkpoints import index, parameters
from t5core.config import yaml_text
from t5core.config.publish_schema import PublishConfig
from t5core.evaluation import checkpoint
from t5core.publishing import Candidate
from t5core.rundir import RunDirectory
from t5core.stages import evaluate, holding, initialise
from tests.t5core import stage_runs

RULE = PublishConfig(name="best", task="mixture")


def begun(root, *, publish=None):
    """Returns a run in `root` with its first checkpoint, its configuration written as a claim does."""
    tasks = [{"name": name, "files": ["x.txt"], "rate": 1.0} for name in ("a", "b")]
    data = {"tasks": tasks, "feature_lengths": stage_runs.LENGTHS}
    made = stage_runs.inputs_in(root, data=data, publish=publish and publish.model_dump())
    config = made.run.config.model_dump(mode="json")
    storage.write_text(RunDirectory(made.run.uri).config_uri, yaml_text.dump(config))
    try:
        return made, initialise.initialise(made).checkpoint
    finally:
        holding.release(made.run.uri)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A run whose first checkpoint is published, by a value of other data."""
    with stage_runs.settings_put_back():
        made, ref = begun(str(tmp_path_factory.mktemp("published")))
        yield Candidate(run_name="old", run_uri=made.run.uri, checkpoint=ref, value=1.0, measured_on="elsewhere")


def run_against(published, root):
    assert publishing.publish_if_better(RULE, published, root=root).outcome == "published"
    return begun(root, publish=RULE)


def test_it_is_measured_as_the_run_s_own_and_once(published, tmp_path, monkeypatch):
    made, first = run_against(published, str(tmp_path))
    found = incumbent.recorded(made.run.uri)
    assert (found.digest, found.settings) == (published.checkpoint.digest, evaluate.settings_fingerprint(made))
    # Both runs were drawn from one seed, so the other's parameters are this one's too.
    own = checkpoint.measure(made, parameters.read(first, build.trainer_of(made).abstract_state.params))
    assert math.isfinite(found.value)
    assert found.value == own["mixture"]["loss"]
    assert not storage.path(f"{made.run.uri}/metrics").exists(), "they are not this run's figures"
    monkeypatch.setattr(checkpoint, "measure", None)
    incumbent.measure(made, settings=found.settings)


@pytest.mark.parametrize("obstacle", ["model", "vocabulary", "gone"])
def test_what_cannot_be_measured_is_recorded_with_the_reason(published, tmp_path, monkeypatch, obstacle):
    monkeypatch.setattr(checkpoint, "measure", None)
    reason = "its model has emb_dim="
    if obstacle == "model":
        text = storage.path(RunDirectory(published.run_uri).config_uri).read_text()
        other = RunDirectory(str(tmp_path / "old"))
        size = stage_runs.tiny.SIZES["emb_dim"]
        storage.write_text(other.config_uri, text.replace(f"emb_dim: {size}", f"emb_dim: {2 * size}"))
        published = published.model_copy(update={"run_uri": other.uri})
    elif obstacle == "gone":
        ref = published.checkpoint.model_copy(update={"uri": str(tmp_path / "old" / "checkpoints" / "3")})
        monkeypatch.setattr(publishing.pins, "publish", lambda uri, step, name: None)
        published, reason = published.model_copy(update={"checkpoint": ref}), f"{ref.uri} is gone"
    else:
        record = index.read_record
        reason = "it was trained with vocabulary other, and this run with"

        def of_another_vocabulary(uri, step):
            found = record(uri, step)
            if uri != index.locate(published.checkpoint.uri)[0]:
                return found
            provenance = found.provenance.model_copy(update={"vocabulary_fingerprint": "other"})
            return found.model_copy(update={"provenance": provenance})

        monkeypatch.setattr(index, "read_record", of_another_vocabulary)
    made, _ = run_against(published, str(tmp_path))
    found = incumbent.recorded(made.run.uri)
    assert found.value is None
    assert found.obstacle.startswith(reason)


def test_nothing_is_measured_without_need(published, tmp_path):
    made, _ = begun(str(tmp_path / "nothing published"), publish=RULE)
    assert incumbent.recorded(made.run.uri) is None
    alike = published.model_copy(update={"measured_on": evaluate.settings_fingerprint(made)})
    same, _ = run_against(alike, str(tmp_path / "measured alike"))
    assert incumbent.recorded(same.run.uri) is None
