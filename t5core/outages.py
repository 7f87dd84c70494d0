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
# JAX, tensorstore and gRPC raise plain errors: the status comes first in the message, and Orbax hands that on.
_STATUSES = ("UNAVAILABLE:", "DEADLINE_EXCEEDED:", "ABORTED:")
# What a collective of JAX ends with when another process is gone, under whatever status.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "the JAX distributed service detected")


def is_outage(error: BaseException | None) -> bool:
    """Tells whether `error`, or one that it was raised from, is an outage.

    A file or a right that is missing and a full disk are none: another attempt would find the same.
    """
    while error is not None:
        if _is_one(error):
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def as_recoverable() -> Iterator[None]:
    """Turns an outage inside the block into a RecoverableError of one line; all else goes on as it is."""
    try:
        yield
    except errors.RecoverableError:
        raise
    except Exception as error:
        if not is_outage(error):
            raise
        raise recoverable(error) from error


def recoverable(error: BaseException) -> errors.RecoverableError:
    """Returns an outage as the kind that is worth another attempt, with the first line of what it said."""
    if isinstance(error, errors.RecoverableError):
        return error
    said = (str(error).strip() or "no more was said").splitlines()[0]
    kind = "" if isinstance(error, errors.UserError | errors.IntegrityError) else f"{type(error).__name__}: "
    return errors.RecoverableError(f"{kind}{said}; run again to go on from what is committed")


def _is_one(error: BaseException) -> bool:
    if isinstance(error, errors.RecoverableError | ConnectionError | TimeoutError):
        return True
    if isinstance(error, errors.UserError | errors.IntegrityError):
        return False
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    if isinstance(error, RuntimeError | ValueError):
        text = str(error)
        return text.startswith(_STATUSES) or any(mark in text for mark in _LOST_PEER)
    return type(error).__module__ != "builtins" and _is_of_a_client(error)


def _is_of_a_client(error: BaseException) -> bool:
    """Tells whether a client of an object store gave up: each library has kinds of its own."""
    from botocore import exceptions as botocore
    from gcsfs.retry import is_retriable
    from google.api_core import exceptions as google
    from google.auth import exceptions as auth

    gave_up = (
        auth.TransportError,
        botocore.ConnectionError,
        botocore.HTTPClientError,
        google.RetryError,
        google.ServerError,
        google.TooManyRequests,
    )
    return isinstance(error, gave_up) or is_retriable(error)
