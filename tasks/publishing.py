"""The tasks around a training that starts from what others have made, and makes something for others."""

from __future__ import annotations

from t5core.config.edges import Cursor, RunInputs
from t5core.config.schema import PretrainConfig
from tasks import failures, owner, profiles


@profiles.data_task()
def import_parent(config: PretrainConfig, overrides: list[str]) -> PretrainConfig:
    """Settles which checkpoint the run starts from, and imports one that other software wrote."""
    from t5core.stages import import_parent as stage

    with failures.retry_what_helps():
        return stage.import_parent(config, overrides)


@profiles.light_task()
def publish(inputs: RunInputs, cursor: Cursor) -> Cursor:
    """Gives the run's best checkpoint the name that it is published under, if it is better than what has it."""
    from t5core.stages import publish as stage

    with failures.retry_what_helps():
        return stage.publish(inputs, cursor, owner=owner.current())
