"""Cases for eight devices, of which meshes of one, two and eight are made; `test_topologies.py` runs them."""

import itertools

import jax
import numpy as np
import pytest

from t5core import trees
from t5core.checkpoints import digest
from t5core.checkpoints.store import CheckpointStore
from t5core.config.schema import ModelConfig
from t5core.config.train_schema import LearningRateConfig, LossConfig, OptimizerConfig
from t5core.models.build import build_model
from t5core.optim.build import build_optimizer
from t5core.optim.schedule import learning_rate_schedule
from t5core.partitioning import Partitioner
from t5core.trainer import Trainer
from tests.t5core import tiny
from tests.t5core.checkpoints.states import PROVENANCE

MESHES = [(1, 1), (2, 1), (8, 2)]  # devices, and how many of them share a copy of the model


def trainer(devices, partitions):
    return Trainer(
        model=build_model(ModelConfig(**tiny.SIZES), LossConfig()),
        optimizer=build_optimizer(OptimizerConfig(arguments={"beta1": 0.9})),
        partitioner=Partitioner(partitions, devices=jax.devices()[:devices]),
        learning_rate_fn=learning_rate_schedule(LearningRateConfig()),
        seed=0,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The same numbers, laid out over each mesh and saved from there."""
    numbers = jax.device_get(trainer(1, 1).initial_state().as_tree())
    folders = {}
    for mesh in MESHES:
        wanted = trainer(*mesh).abstract_state.as_tree()
        state = jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), numbers, wanted)
        folders[mesh] = str(tmp_path_factory.mktemp("mesh"))
        with CheckpointStore(folders[mesh]) as store:
            store.save(0, state, PROVENANCE)
    return numbers, folders


@pytest.mark.parametrize(("there", "here"), itertools.product(MESHES, MESHES))
def test_a_checkpoint_of_any_mesh_restores_on_any_other_exactly(saved, there, here):
    numbers, folders = saved
    wanted = trainer(*here).abstract_state.as_tree()
    with CheckpointStore(folders[there]) as store:
        restored = store.restore(wanted)
        params = store.restore_params(wanted["params"], step=0)
    assert restored.record.digest == digest.state_digest(digest.leaf_digests(numbers))
    jax.tree.map(np.testing.assert_array_equal, restored.state, numbers)
    jax.tree.map(np.testing.assert_array_equal, params.state["params"], numbers["params"])
    places = trees.flatten(wanted)
    for path, leaf in trees.flatten(restored.state).items():
        assert leaf.sharding.is_equivalent_to(places[path].sharding, leaf.ndim), path


def test_a_model_in_parts_is_really_cut():
    shardings = jax.tree.leaves(trainer(8, 2).state_shardings.params)
    assert any("model" in str(sharding.spec) for sharding in shardings)
