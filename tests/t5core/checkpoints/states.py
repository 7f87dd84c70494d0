"""States, checkpoints of them and damage to those: what the tests of checkpoints work on."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from t5core.checkpoints import seal
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore

PROVENANCE = Provenance(
    seed=7,
    config_fingerprint="config",
    dataset_fingerprint="dataset",
    vocabulary_fingerprint="vocabulary",
    schedule=SchedulePosition(total_steps=100, batch_size=4),
    action_state={"early_stopping": {"history": [1.5, float("inf")]}},
)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: dict
    opt_state: dict


def state_at(step):
    """Returns the state after `step` updates, from nothing."""
    kernel = jnp.asarray(np.random.default_rng(step).standard_normal((40, 60)), jnp.float32)
    return State(
        step=jnp.int32(step),
        params={"encoder": {"kernel": kernel}, "scale": jnp.full((5,), step, jnp.bfloat16)},
        opt_state={"param_states": {"encoder": {"kernel": {"v_row": jnp.arange(40.0) + step, "m": jnp.zeros(1)}}}},
    )


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


ABSTRACT = abstract(state_at(0))


def assert_is(restored, step):
    assert restored.record.step == step
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(step))


def save_steps(folder, *steps, **options):
    with CheckpointStore(str(folder), **options) as store:
        for step in steps:
            store.save(step, state_at(step), PROVENANCE)


def restore(folder, **options):
    with CheckpointStore(str(folder)) as store:
        return store.restore(ABSTRACT, **options)


def damage(path, how):
    content = bytearray(path.read_bytes())
    # Orbax finishes two files after the seal: the time in them may be anything, only their beginning is checked.
    place = 5 if path.name in (seal.COMMIT_FILE, seal.METADATA_FILE) else len(content) // 2
    if how == "flip":
        content[place] ^= 1
    elif how == "zero":
        content[place:] = bytes(len(content) - place)
    elif how == "truncate":
        del content[place:]
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(content)
