"""A run that starts from another run's checkpoint: what it takes, what it says of it, and what it refuses."""

import jax
import numpy as np
import pytest

from t5core import errors, training, trees
from t5core.checkpoints import index
from t5core.checkpoints.native_store import NativeCheckpointStore
from t5core.checkpoints.record import ImportSource
from t5core.checkpoints.store import CheckpointStore
from t5core.config import load
from t5core.report import gather, lineage, summary
from t5core.rundir import RunDirectory
from t5core.stages import data, holding, initialise, resolve
from t5core.starting import init_from
from tests.t5core import small_runs


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of seven steps with every second one kept."""
    inputs = small_runs.inputs(small_runs.config(tmp_path_factory.mktemp("parent"), run={"name": "parent"}))
    small_runs.train(inputs)
    return inputs


def checkpoint(parent, step=4):
    return f"{parent.run.uri}/checkpoints/{step}"


def state(inputs, step):
    with CheckpointStore(RunDirectory(inputs.run.uri).checkpoints_uri) as store:
        restored = store.restore(small_runs.shared_trainer(inputs).abstract_state.as_tree(), step=step).state
    return {path: np.asarray(leaf) for path, leaf in trees.flatten(jax.device_get(restored)).items()}


def forked(parent, name, *, start=None, model=None, data=None, **train):
    """Returns the settings of a run that starts from step 4 of the parent, beside it."""
    init = {"checkpoint": checkpoint(parent), **(start or {})}
    return small_runs.config(
        parent.run.config.run.root, run={"name": name, "init_from": init}, model=model, data=data, **train
    )


def begun(config):
    """Checks and initialises a run; returns its inputs and the checkpoint that it begins with."""
    resolve.check(config)
    inputs = small_runs.inputs(config)
    try:
        with small_runs.settings_put_back():
            return inputs, initialise.initialise(inputs).checkpoint
    finally:
        holding.release(inputs.run.uri)


def test_with_the_same_settings_and_data_a_fork_ends_where_its_parent_ends(parent):
    inputs, first = begun(forked(parent, "same", start={"restore_dataset": True}, segment_steps=2))
    assert (first.step, first.digest) == (4, small_runs.record(parent.run, 4).digest)
    assert small_runs.segments(inputs.run) == [6, 7]
    assert small_runs.train(inputs) == small_runs.record(parent.run, 7).digest


def test_the_data_begin_at_their_beginning_unless_they_are_gone_on_with(parent, monkeypatch):
    read = []

    class Reading(training.BatchReader):
        def batch(self, step, **options):
            read.append(step)
            return super().batch(step, **options)

    monkeypatch.setattr(training, "BatchReader", Reading)
    for name, start, batches in (
        ("fresh data", {}, [0, 1, 2]),
        ("gone on", {"restore_dataset": True}, [4, 5, 6]),
        ("restarted", {"step": "restart"}, [0, 1, 2, 3, 4, 5, 6]),
    ):
        read.clear()
        inputs = small_runs.inputs(forked(parent, name.replace(" ", "-"), start=start))
        small_runs.train(inputs)
        assert sorted(set(read)) == batches, name


def test_a_run_that_was_cut_goes_on_in_the_data_that_it_began(parent):
    digests = {
        small_runs.train(small_runs.inputs(forked(parent, f"cut-{steps}", segment_steps=steps))) for steps in (1, 100)
    }
    assert len(digests) == 1
    assert small_runs.record(load.resolve(forked(parent, "cut-1")), 7).provenance.schedule.data_start == 4


def test_parameters_alone_begin_with_a_new_optimiser(parent):
    inputs, first = begun(forked(parent, "params", start={"optimizer_state": False, "step": "restart"}))
    assert first.step == 0
    there, here = state(parent, 4), state(inputs, 0)
    drawn = trees.flatten(jax.device_get(small_runs.shared_trainer(inputs).initial_state().as_tree()))
    for path, leaf in here.items():
        expected = there[path] if path.startswith("params/") else drawn[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=path)


def test_another_optimiser_needs_parameters_alone(parent):
    adam = {"optimizer": {"name": "adamw"}}
    with pytest.raises(errors.CheckpointError) as failure:
        resolve.check(forked(parent, "adam", **adam))
    assert str(failure.value).startswith(f"checkpoint 4 in {parent.run.uri}/checkpoints does not fit: opt_state/")
    assert "set run.init_from.optimizer_state: false" in str(failure.value)
    inputs, first = begun(forked(parent, "adam", start={"optimizer_state": False}, **adam))
    assert first.step == 4
    assert small_runs.train(inputs)


def test_the_parent_is_told_in_every_record_the_summary_and_the_lineage(parent):
    inputs = small_runs.inputs(forked(parent, "told", learning_rate={"base_learning_rate": 0.5, "warmup_steps": 1}))
    small_runs.train(inputs)
    expected = {
        "uri": checkpoint(parent),
        "step": 4,
        "digest": small_runs.record(parent.run, 4).digest,
        "run": "parent",
        "config_fingerprint": parent.run.fingerprint,
    }
    for step in (4, 6, 7):
        assert small_runs.record(inputs.run, step).provenance.parent.model_dump() == expected
    summary.write_summary(inputs.run.uri, status="completed")
    found = gather.gather(inputs.run.uri)
    assert found.summary["parent"] == expected
    (stage,) = found.stages_of("initialise")
    assert (
        stage.reason
        == f"from step 4 of run 'parent' (digest {expected['digest'][:12]}, config {parent.run.fingerprint})"
    )
    link = next(link for link in lineage.lineage_of(found, {}) if link.what == "parent")
    assert (link.which, link.fingerprint) == (expected["uri"], expected["digest"])
    assert small_runs.record(inputs.run, 7).digest != small_runs.record(parent.run, 7).digest


def test_a_run_that_has_begun_needs_its_parent_no_more_and_takes_no_other(parent, tmp_path):
    copy = small_runs.inputs(small_runs.config(tmp_path, run={"name": "copy"}, total_steps=2))
    small_runs.train(copy)
    config = small_runs.config(
        tmp_path, run={"name": "fork", "init_from": {"checkpoint": f"{copy.run.uri}/checkpoints/2"}}
    )
    begun(config)
    index.step_path(f"{copy.run.uri}/checkpoints", 2).rmtree()
    resolve.check(config)
    small_runs.train(small_runs.inputs(config))
    for other in ({"checkpoint": f"{copy.run.uri}/checkpoints/0"}, None):
        changed = config.model_copy(
            update={"run": small_runs.config(tmp_path, run={"name": "fork", "init_from": other}).run}
        )
        with pytest.raises(errors.RunDirectoryError, match=r"belongs to run .*run.init_from(.checkpoint)? is "):
            small_runs.inputs(changed)


def test_a_native_checkpoint_of_t5x_is_a_parent_without_a_name(parent, tmp_path):
    with CheckpointStore(f"{parent.run.uri}/checkpoints") as store, NativeCheckpointStore(str(tmp_path)) as native:
        restored = store.restore(small_runs.shared_trainer(parent).abstract_state.as_tree(), step=4)
        native.save(4, restored.state, restored.record.provenance)
    (tmp_path / "checkpoint_4.json").unlink()
    inputs, first = begun(forked(parent, "native", start={"checkpoint": f"{tmp_path}/checkpoint_4"}))
    assert first.digest == restored.record.digest
    told = small_runs.record(inputs.run, 4).provenance.parent
    assert (told.uri, told.run, told.digest) == (f"{tmp_path}/checkpoint_4", "", "")
    deeper = forked(parent, "deep", start={"checkpoint": f"{tmp_path}/checkpoint_4"}, model={"num_encoder_layers": 2})
    with pytest.raises(
        errors.CheckpointError, match=r"params/encoder/layers_1/.* is missing in it.*model: {preset: parent}"
    ):
        resolve.check(deeper)


def test_an_imported_checkpoint_says_itself_of_which_model_it_is(parent, tmp_path):
    model = parent.run.config.model.architecture()
    source = ImportSource(format="huggingface", uri="hf", digest="d", architecture=model)
    with CheckpointStore(f"{parent.run.uri}/checkpoints") as store, CheckpointStore(str(tmp_path)) as imported:
        restored = store.restore(small_runs.shared_trainer(parent).abstract_state.as_tree(), step=4)
        provenance = restored.record.provenance.model_copy(update={"imported_from": source})
        imported.save(4, restored.state, provenance)
    start = {"checkpoint": f"{tmp_path}/4"}
    resolve.check(forked(parent, "from-elsewhere", start=start))
    other = forked(parent, "from-elsewhere", start=start, model={"mlp_activations": ["silu", "linear"]})
    with pytest.raises(errors.CheckpointError, match="is of a model with mlp_activations="):
        resolve.check(other)


def test_parameters_that_the_checkpoint_lacks_are_drawn_when_they_are_listed(parent):
    deeper = {"num_decoder_layers": 2}
    missing = {"missing": [r"decoder/layers_1/.*"]}
    inputs, first = begun(forked(parent, "deeper", start=missing, model=deeper))
    there, here = state(parent, 4), state(inputs, 4)
    drawn = trees.flatten(jax.device_get(small_runs.shared_trainer(inputs).initial_state().as_tree()))
    new = [path for path in here if "decoder/layers_1/" in path]
    assert len(new) > 5
    for path, leaf in here.items():
        np.testing.assert_array_equal(leaf, drawn[path] if path in new else there[path], err_msg=path)
    assert first.step == 4


REFUSED = {
    "no such step": (
        {"start": {"checkpoint": "{parent}/checkpoints/3"}},
        "is no checkpoint; .*steps there: 2, 4, 6, 7",
    ),
    "another size": (
        {"model": {"mlp_dim": 32}},
        r"params/decoder/layers_0/mlp/wi_0/kernel is \[8, 16\] in it and \[8, 32\]",
    ),
    "deeper": ({"model": {"num_decoder_layers": 2}}, "list the parameter in run.init_from.missing"),
    "shallower": (
        {
            "model": {"num_encoder_layers": 2, "num_decoder_layers": 1},
            "start": {"missing": ["encoder/layers_1/.*", "x"]},
        },
        "run.init_from.missing: 'x' matches nothing that checkpoint 4 in .* lacks",
    ),
    "another vocabulary": (
        {"data": {"vocabulary": {"kind": "bytes", "extra_ids": 100}}},
        "was trained with vocabulary .*; set data.vocabulary.kind: parent, which takes that one, or run.init_from",
    ),
    "another activation": (
        {"model": {"mlp_activations": ["silu", "linear"]}},
        r"is of a model with mlp_activations=\('gelu', 'linear'\), and this run has \('silu', 'linear'\)",
    ),
    "more than the model has": (
        {"model": {"logits_via_embedding": True}},
        "is of a model with logits_via_embedding=False, and this run has True",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_does_not_fit_is_one_line_before_anything_is_computed(parent, monkeypatch, name):
    changes, message = REFUSED[name]
    start = {
        k: v.format(parent=parent.run.uri) if isinstance(v, str) else v for k, v in changes.get("start", {}).items()
    }
    monkeypatch.setattr(CheckpointStore, "__init__", lambda *_, **__: pytest.fail("arrays are read"))
    with pytest.raises(errors.CheckpointError, match=message) as failure:
        resolve.check(forked(parent, "refused", **{**changes, "start": start}))
    assert "\n" not in str(failure.value)


def test_less_than_the_checkpoint_holds_is_taken_only_if_that_is_said(parent):
    shallow = small_runs.inputs(
        small_runs.config(
            parent.run.config.run.root, run={"name": "two"}, model={"num_encoder_layers": 2}, total_steps=2
        )
    )
    small_runs.train(shallow)
    start = {"checkpoint": checkpoint(shallow, 2)}
    with pytest.raises(
        errors.CheckpointError, match=r"encoder/layers_1/.* is not in the model .*run.init_from.strict: f"
    ):
        resolve.check(forked(parent, "one", start=start))
    inputs, first = begun(forked(parent, "one", start={**start, "strict": False}))
    assert first.step == 2
    assert set(state(inputs, 2)) == set(state(parent, 2))


def test_a_vocabulary_that_is_known_later_is_compared_before_training(parent):
    other = small_runs.VOCABULARY.model_copy(update={"fingerprint": "other"})
    config = forked(parent, "later")
    with pytest.raises(errors.CheckpointError, match=r"and this run has other; set data.vocabulary.kind: parent"):
        init_from.check_vocabulary(config, load.resolve(config).uri, other)
    init_from.check_vocabulary(forked(parent, "any", start={"vocabulary": "any"}), "nowhere", other)
    assert "init_from" in data.verify_vocabulary.__code__.co_names


def test_data_that_are_not_the_parent_s_are_not_gone_on_with(parent):
    inputs = small_runs.inputs(forked(parent, "batch", start={"restore_dataset": True}, batch_size=2))
    with pytest.raises(errors.CheckpointError, match=r"in batches of 4, and this run has .* in batches of 2; set rest"):
        small_runs.train(inputs)


def test_damage_to_the_parent_is_found_and_left_where_it_is(parent, tmp_path):
    copy = small_runs.inputs(small_runs.config(tmp_path, run={"name": "copy"}, total_steps=2))
    small_runs.train(copy)
    folder = index.step_path(f"{copy.run.uri}/checkpoints", 2)
    damaged = folder / "state" / "_METADATA"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    inputs = small_runs.inputs(
        small_runs.config(tmp_path, run={"name": "fork", "init_from": {"checkpoint": str(folder)}})
    )
    with pytest.raises(errors.CheckpointError, match=r"checkpoint 2 cannot be used in .*_METADATA has"):
        small_runs.train(inputs)
    assert folder.exists()
    assert index.latest(f"{inputs.run.uri}/checkpoints") is None, "never a silent start from the seed"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"checkpoint": "/"}, "run.init_from.checkpoint: '/' names no checkpoint; give a run directory"),
        (
            {"checkpoint": "a/1", "restore_dataset": True, "step": "restart"},
            "run.init_from: restore_dataset: true goes",
        ),
        ({"checkpoint": "a/7"}, "train.total_steps=7 is not above step 7, at which run.init_from starts; raise it"),
        ({"checkpoint": "a/1", "missing": ["("]}, "run.init_from.missing: '(' is no regular expression"),
        ({"checkpoint": "a/1", "optimiser_state": False}, "did you mean 'run.init_from.optimizer_state'?"),
    ],
)
def test_settings_that_cannot_work_are_refused(start, message):
    with pytest.raises(errors.ConfigError) as failure:
        small_runs.config("runs", run={"init_from": start})
    assert message in str(failure.value)
