"""Checkpoints of this project, read without the run that they are of, and written for what was imported."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from t5core import errors, storage, trees
from t5core.checkpoints import index, locating, pins
from t5core.checkpoints.record import CheckpointRecord, ImportSource, Provenance, SchedulePosition
from t5core.checkpoints.store import CheckpointStore
from t5core.config import load
from t5core.config.edges import CheckpointRef
from t5core.config.presets import Architecture
from t5core.config.schema import PretrainConfig
from t5core.importers import contents
from t5core.importers.contents import Contents, TensorMapping
from t5core.rundir import RunDirectory


def reference(uri: str) -> CheckpointRef:
    """Returns the checkpoint that `uri` means: the folder of its step, or the last one of a run or a folder of steps.

    Raises:
      CheckpointError: there is none.
    """
    return locating.locate(uri, root="", setting="source.uri")


def read(uri: str, *, optimizer_state: str = "keep", model: Architecture | None = None) -> Contents:
    """Returns the state of the checkpoint that `uri` means, verified by its digests.

    Args:
      uri: see `reference`.
      optimizer_state: 'keep' or 'drop'.
      model: the architecture that it has to have; None takes what its record or its run says.

    Raises:
      CheckpointError: there is no such checkpoint, it is damaged, of another model, or nothing says of which.
    """
    folder, step = index.locate(reference(uri).uri)
    record = index.read_record(folder, step)
    architecture = _architecture(folder, record, model)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes: dict[str, Any] = {
        path: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype), sharding=device)
        for path, leaf in record.leaves.items()
    }
    with pins.reading(folder, step), CheckpointStore(folder) as store:
        restored = store.restore({"opt_state": {}, **trees.unflatten(shapes)}, step=step)
    state = jax.device_get(restored.state)
    params = {path: np.asarray(leaf) for path, leaf in trees.flatten(state["params"]).items()}
    place = str(index.step_path(folder, step))
    contents.require_shapes({path: leaf.shape for path, leaf in params.items()}, architecture, source=place)
    mapping = [
        TensorMapping(source=f"params/{path}", name=path, shape=list(leaf.shape), dtype=leaf.dtype.name)
        for path, leaf in params.items()
    ]
    return Contents(
        architecture=architecture,
        step=step,
        params={path: contents.as_float32(leaf, name=f"{place}: {path}") for path, leaf in params.items()},
        opt_state=state["opt_state"] if optimizer_state == "keep" else {},
        mapping=tuple(mapping),
        notes=("the optimiser's state was left out, as asked",) if optimizer_state == "drop" else (),
    )


def _architecture(folder: str, record: CheckpointRecord, model: Architecture | None) -> Architecture:
    """Returns what the checkpoint says it is of, or the run around it, or else what was asked for."""
    known = None if record.provenance.imported_from is None else record.provenance.imported_from.architecture
    config = RunDirectory(str(storage.path(folder).parent)).config_uri
    if known is None and storage.path(config).exists():
        known = load.load(config, PretrainConfig).model.architecture()
    if known is None and model is None:
        raise errors.CheckpointError(
            f"nothing at {folder} says of which model its checkpoints are; give source.model, as its run had it"
        )
    if known is None or model is None:
        return known or model  # pyright: ignore[reportReturnType] - one of them is there
    contents.require_same_architecture(known, model, source=folder)
    return known


def write(folder: str, found: Contents, source: ImportSource) -> CheckpointRef:
    """Commits an imported state to the folder `folder` and returns it; one that is there already is nothing to do.

    Raises:
      CheckpointError: no space or no right to write, or the step exists with another state.
    """
    provenance = Provenance(
        seed=0,
        config_fingerprint="",
        dataset_fingerprint="",
        vocabulary_fingerprint="",
        schedule=SchedulePosition(total_steps=found.step, batch_size=0),
        imported_from=source,
    )
    with CheckpointStore(folder) as store:
        store.save(found.step, found.as_tree(), provenance, wait=True)
    return index.reference(folder, found.step)
