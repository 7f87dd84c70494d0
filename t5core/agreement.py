"""What all processes of a run have to agree on: decided by one of them, or counted over all, and never half known.

A failure is told to the others before it is raised. A process that raised at once would leave them waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5core import errors

_DONE, _FAILED = 0, 1


def is_primary() -> bool:
    """Tells whether this is the process that writes what is written once."""
    return jax.process_index() == 0


def primary_decides(decide: Callable[[], int]) -> int:
    """Returns on every process what `decide` answers on the first, which alone runs it; also a barrier.

    Args:
      decide: gives an integer of 32 bits.

    Raises:
      RecoverableError: `decide` failed on the first process, which raises the failure itself.
    """
    if jax.process_count() == 1:
        return int(decide())
    answer, failure = (_DONE, 0), None
    if is_primary():
        try:
            answer = (_DONE, int(decide()))
        except Exception as error:
            answer, failure = (_FAILED, 0), error  # raised below: the others are waiting for an answer
    status, value = multihost_utils.broadcast_one_to_all(np.array(answer, np.int32))
    if failure is not None:
        raise failure
    if status == _FAILED:
        raise errors.RecoverableError("the first process failed; see its message")
    return int(value)


def from_primary(number: int) -> int:
    """Returns on every process the number that the first one gives; it has 32 bits."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def numbers_of_primary(compute: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Returns on every process the numbers by name that `compute` gives on the first, which alone runs it.

    Raises:
      RecoverableError: as `primary_decides`.
    """
    found = b""

    def size() -> int:
        nonlocal found
        found = json.dumps(dict(compute())).encode()
        return len(found)

    length = primary_decides(size)
    if jax.process_count() > 1:
        sent = np.frombuffer(found, np.uint8) if is_primary() else np.zeros(length, np.uint8)
        found = np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8).tobytes()
    return json.loads(found)


def on_primary(act: Callable[[], object]) -> None:
    """Runs `act` on the first process; returns on every process when it is done.

    Raises:
      RecoverableError: as `primary_decides`.
    """

    def decide() -> int:
        act()
        return _DONE

    primary_decides(decide)


def counts(mine: int) -> Sequence[int]:
    """Returns the number that each process gives, by process."""
    if jax.process_count() == 1:
        return [mine]
    return multihost_utils.process_allgather(np.int32(mine)).tolist()
