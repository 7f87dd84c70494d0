"""Which failures say that a storage, the network or a peer was out of reach, so that another attempt may succeed."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from t5core import errors

# What a network file system or a socket reports when the other side is gone.
_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EREMOTEIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
# How tensorstore, JAX and gRPC begin their messages; Orbax hands them on.
_STATUSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED: Quota")
# How a collective of JAX ends when one of its processes is gone, whatever its status says.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "heartbeat timeout")


def is_outage(error: BaseException) -> bool:
    """Tells whether `error`, or an error that it was raised from, is an outage: another attempt may succeed.

    A file that is missing, a right that is missing and a full disk are none: they stay as they are.
    """
    while error is not None:
        if _is_one(error):
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def as_recoverable() -> Iterator[None]:
    """Turns an outage inside the block into a `RecoverableError` with its message; all else goes on as it is."""
    try:
        yield
    except errors.RecoverableError:
        raise
    except Exception as error:
        if not is_outage(error):
            raise
        raise errors.RecoverableError(describe(error)) from error


def describe(error: BaseException) -> str:
    """Returns the first line of what `error` says, with its kind where that is not one of ours."""
    said = str(error).strip().splitlines()
    if isinstance(error, errors.UserError | errors.IntegrityError) and said:
        return said[0]
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
