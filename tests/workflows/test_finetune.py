"""Fine-tuning as a user starts it: the first is published, a worse one is kept and named, again is all reused."""

import json

import pytest

from t5core import publishing
from t5core.config import load
from t5core.config.schema import PretrainConfig
from t5core.rundir import RunDirectory
from t5core.stages import holding
from tests.t5core.stage_runs import settings_put_back
from tests.workflows import command_line
from workflows.finetune import finetune

pytestmark = pytest.mark.e2e


def overrides(finished, name, *more):
    start = {"checkpoint": str(finished.directory), "step": "restart"}
    return [
        f"run.name={name}",
        f"run.init_from={json.dumps(start)}",
        "data.vocabulary={kind: parent}",
        "publish={name: best, task: copy}",
        "train.total_steps=8",
        *more,
    ]


def tuned(finished, name, *more):
    """Runs the workflow in this process."""
    config = load.load(str(finished.config), PretrainConfig)
    with settings_put_back():
        try:
            finetune(config=config, overrides=overrides(finished, name, *more))
        finally:
            holding.release(str(finished.root / name))
    return command_line.summary(finished.root, name)


def test_the_better_is_published_and_the_worse_is_kept(finished, capsys):
    done = command_line.run(
        "--config", str(finished.config), "--overrides", json.dumps(overrides(finished, "first")), workflow="finetune"
    )
    assert done.code == 0, done.text
    first, parent = command_line.summary(finished.root, "first"), command_line.summary(finished.root)
    assert first["parent"]["digest"] == parent["state_digest"]
    assert first["vocabulary"]["fingerprint"] == parent["vocabulary"]["fingerprint"]
    assert first["publication"]["outcome"] == "published"
    assert "run workflows/finetune.py --config" in done.text, "what goes on from here is the workflow that began it"
    assert "published    best is step" in done.text

    worse = tuned(finished, "worse", "train.learning_rate.base_learning_rate=1e-9")
    decision = publishing.history(str(finished.root), "best")[-1]
    assert worse["publication"]["outcome"] == "kept"
    assert (decision.candidate.run_name, decision.incumbent.run_name) == ("worse", "first")
    assert publishing.current(str(finished.root), "best").candidate.run_name == "first"

    capsys.readouterr()
    again = tuned(finished, "first")
    printed = capsys.readouterr().out
    assert again["state_digest"] == first["state_digest"]
    for stage in ("vocabulary", "materialise copy", "assemble", "segment to 4", "segment to 8", "evaluate step 8"):
        assert f"{stage}: reused" in printed
    assert again["publication"] == first["publication"]
    assert len(publishing.history(str(finished.root), "best")) == 2


def test_without_the_run_to_start_from_the_way_to_it_is_told(tmp_path):
    settings = json.dumps([f"run.root={tmp_path}", f"run.init_from.checkpoint={tmp_path}/demo"])
    done = command_line.run("--overrides", settings, workflow="finetune")
    assert done.code == 1, done.text
    assert "does not exist; name a run directory" in done.error
    assert "`make pretrain` trains runs/demo" in done.error
    assert not RunDirectory(str(tmp_path / "finetune")).info()
