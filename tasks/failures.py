"""Which failures Flyte may retry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flytekit.exceptions.user import FlyteRecoverableException

from t5core import errors, outages


@contextlib.contextmanager
def retry_what_helps() -> Iterator[None]:
    """Turns failures that another attempt may survive into Flyte's recoverable kind; all others pass through."""
    try:
        with outages.as_recoverable():
            yield
    except errors.RecoverableError as error:
        raise FlyteRecoverableException(str(error)) from error
