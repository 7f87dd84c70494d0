"""Which failures Flyte may retry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flytekit.exceptions.user import FlyteRecoverableException

from t5core import errors, storage


@contextlib.contextmanager
def retry_what_helps() -> Iterator[None]:
    """Turns failures that another attempt may survive into Flyte's recoverable kind; all others pass through."""
    try:
        yield
    except errors.RecoverableError as error:
        raise FlyteRecoverableException(str(error)) from error
    except Exception as error:
        if not storage.is_outage(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FlyteRecoverableException(f"the storage does not answer: {reason}; run again") from error
