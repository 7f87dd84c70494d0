"""Figures of the model from shapes alone equal those of the model itself."""

import pathlib

import jax
import numpy as np
import pytest

from t5core import build
from t5core.checkpoints.record import Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.preflight import model
from tests.t5core.preflight import runs

PROVENANCE = Provenance(
    seed=0,
    config_fingerprint="c",
    dataset_fingerprint="d",
    vocabulary_fingerprint="v",
    schedule=SchedulePosition(total_steps=1, batch_size=1),
    action_state={},
)


def leaves(state):
    return [leaf for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes")]


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw"])
def test_parameters_state_and_checkpoint_are_those_of_the_real_ones(tmp_path, optimizer):
    """Of a megabyte or more: below that metadata outweigh the arrays, and depend on how the writes fell together."""
    overrides = ("model.emb_dim=256", "model.mlp_dim=1024", f"train.optimizer.name={optimizer}")
    run = runs.run_in(tmp_path, *overrides)
    figures = model.model_figures(run.config, rows=4)
    state = build.make_trainer(run.config, seed=0).initial_state()
    assert figures.parameters == sum(leaf.size for leaf in leaves(state.params))
    assert figures.state_bytes == sum(leaf.nbytes for leaf in leaves(state))

    random = np.random.default_rng(0)  # as after some steps: nothing is left of the zeros that take no space
    trained = state.replace(
        opt_state=jax.tree.map(lambda x: np.abs(random.normal(size=x.shape)).astype(x.dtype), state.opt_state)
    )
    with CheckpointStore(str(tmp_path / "checkpoints")) as store:
        store.save(1, trained.as_tree(), PROVENANCE, wait=True)
    files = [file for file in pathlib.Path(tmp_path / "checkpoints").rglob("*") if file.is_file()]
    assert figures.checkpoint_bytes == pytest.approx(sum(file.stat().st_size for file in files), rel=0.05)


def test_more_rows_need_more_memory_and_micro_batches_less(tmp_path):
    def step(*overrides, rows=8):
        return model.model_figures(runs.run_in(tmp_path, "train.batch_size=8", *overrides).config, rows=rows)

    few, many, parts = step(rows=8), step(rows=32), step("train.num_microbatches=4")
    assert few.step_bytes_low < many.step_bytes_low
    assert few.step_bytes_high < many.step_bytes_high
    assert parts.step_bytes_high < few.step_bytes_high
