"""Settings keep type and value on every way through Flyte: whole numbers beyond float, tiny rates, enums, unions."""

from __future__ import annotations

import ast
import json
import os
import subprocess

import pytest
from flyteidl.core import literals_pb2
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

from t5core.config import yaml_text
from t5core.config.edges import CheckpointRef, Cursor, Evaluation
from t5core.config.schema import PretrainConfig
from tests.packaging.package import PYFLYTE, ROOT
from tests.tasks import probe

BIG = 2**53 + 1
TEXT = f"""
run: {{seed: null}}
model: {{mlp_activations: [silu, linear], family: decoder_only}}
data:
  feature_lengths: {{targets: {BIG}}}
  tasks: [{{name: a, files: [a.txt], rate: 2e-6, objective: lm, max_validation_examples: null}}]
train:
  total_steps: {BIG}
  keep_checkpoints: {BIG}
  learning_rate: {{base_learning_rate: 1e-5, min_learning_rate: 2e-6, decay_factor: 1e10}}
  loss: {{loss_normalizing_factor: 1e10}}
  optimizer:
    arguments: {{whole: {BIG}, small: 1e-05, flag: true, nothing: null, text: "1e-05", round: 2.0, one: 1}}
"""
EXPECTED = {
    "run.seed": None,
    "model.mlp_activations": ["silu", "linear"],
    "model.family": "decoder_only",
    "data.feature_lengths": {"targets": BIG},
    "train.total_steps": BIG,
    "train.keep_checkpoints": BIG,
    "train.learning_rate.base_learning_rate": 1e-5,
    "train.learning_rate.min_learning_rate": 2e-6,
    "train.learning_rate.decay_factor": 1e10,
    "train.loss.loss_normalizing_factor": 1e10,
    "train.optimizer.arguments": {
        "whole": BIG,
        "small": 1e-5,
        "flag": True,
        "nothing": None,
        "text": "1e-05",
        "round": 2.0,
        "one": 1,
    },
}
ALONE = (BIG, 1e-5, BIG, {"targets": BIG})


def settings():
    return PretrainConfig.model_validate(yaml_text.parse(TEXT, origin="test"))


def assert_same(found, expected):
    """Compares type and value at every depth: 1 is neither 1.0 nor True here."""
    assert repr(found) == repr(expected)


def assert_as_written(dumped):
    for key, expected in EXPECTED.items():
        value = dumped
        for part in key.split("."):
            value = value[part]
        assert_same(value, expected)
    assert_same(dumped["data"]["tasks"][0]["rate"], 2e-6)
    assert_same(dumped["data"]["tasks"][0]["max_validation_examples"], None)


def through_protobuf(value):
    """Returns what the next pod reads of a task's output."""
    context, kind = FlyteContextManager.current_context(), type(value)
    sent = TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()
    received = Literal.from_flyte_idl(literals_pb2.Literal.FromString(sent.SerializeToString()))
    return TypeEngine.to_python_value(context, received, kind)


def test_the_file_is_read_as_it_is_meant():
    assert_as_written(settings().model_dump())


def test_settings_travel_from_pod_to_pod():
    assert_as_written(through_protobuf(settings()).model_dump())


def test_what_actions_remember_travels_too():
    state = {"a": {"best": 1.0, "count": BIG, "steps": [1, 2.5, None], "worst": float("inf"), "on": True}}
    cursor = Cursor(checkpoint=CheckpointRef(uri="u", step=BIG, digest="d"), action_state=state)
    for received in (through_protobuf(cursor), probe.keep(cursor=cursor)):
        assert_same(received.action_state, state)
        assert_same(received.checkpoint.step, BIG)


def test_a_metric_that_is_no_number_reaches_the_actions():
    metrics = {"a": {"loss": float("nan"), "worst": float("inf"), "best": float("-inf"), "accuracy": 0.5}}
    checkpoint = CheckpointRef(uri="u", step=1, digest="d")
    sent = Evaluation(step=1, checkpoint=checkpoint, metrics=metrics, seconds=0.1, reused=False, uri="e")
    assert_same(through_protobuf(sent).metrics, metrics)


def test_settings_are_stored_as_they_are():
    again = PretrainConfig.model_validate(
        yaml_text.parse(yaml_text.dump(settings().model_dump(mode="json")), origin="x")
    )
    assert_as_written(again.model_dump())


def test_settings_and_their_attributes_travel_through_a_workflow(monkeypatch, tmp_path):
    monkeypatch.setenv("PROBE_FILE", str(tmp_path / "probe"))
    config, alone = ast.literal_eval(probe.probe(config=settings()))
    assert_as_written(config)
    assert_same(alone, ALONE)


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_settings_travel_from_the_command_line(tmp_path, form):
    file = tmp_path / "settings.yaml"
    file.write_text(TEXT)
    given = str(file) if form == "yaml" else json.dumps(yaml_text.parse(TEXT, origin="test"))
    environment = {**os.environ, "PROBE_FILE": str(tmp_path / "probe"), "PYTHONPATH": str(ROOT)}
    command = [PYFLYTE, "run", "tests/tasks/probe.py", "--config", given]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    config, alone = ast.literal_eval((tmp_path / "probe").read_text())
    assert_as_written(config)
    assert_same(alone, ALONE)


def test_a_whole_number_given_as_text_is_one():
    config = PretrainConfig.model_validate(
        {**settings().model_dump(), "train": {"total_steps": "7", "segment_steps": "3"}}
    )
    assert_same((config.train.total_steps, config.train.segment_steps), (7, 3))
