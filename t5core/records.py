"""Records: models kept as one file of JSON each, in which NaN and the infinities come back as they were.

A digest of the rest stands in the file as well, so that a figure that has become another one is noticed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

from t5core import errors, storage
from t5core.config.base import StrictModel
from t5core.metrics import json_numbers

_Record = TypeVar("_Record", bound=StrictModel)
_DIGEST = "record_digest"


def write(uri: str, record: StrictModel) -> None:
    """Writes `record` to `uri`, as a whole or not at all."""
    content = json_numbers.encode(record.model_dump(mode="json"))
    storage.write_json(uri, {**content, _DIGEST: storage.fingerprint(content)})


def read(uri: str, model: type[_Record], *, otherwise: str | None = None) -> _Record | None:
    """Returns the record at `uri`, or None when there is none.

    Args:
      uri: of the record.
      model: what it is.
      otherwise: what it is said to be, and what to do, when it is no JSON or not a `model`; None: "is not a ...; delete
        it and run again".

    Raises:
      IntegrityError: what lies there is not a `model`, or not what was written.
    """
    said = otherwise or f"is not a {model.__name__} as it was written; delete it and run again"
    try:
        return model.model_validate(_checked(storage.read_json(uri), refusal=f"{uri} {said}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (errors.IntegrityError, pydantic.ValidationError) as error:
        if otherwise is None and isinstance(error, errors.IntegrityError):
            raise
        raise errors.IntegrityError(f"{uri} {said}") from error


def _checked(content: Any, *, refusal: str) -> Any:
    """Returns the content of a record without its digest; what was written without one passes."""
    if isinstance(content, dict) and content.pop(_DIGEST, None) not in (None, storage.fingerprint(content)):
        raise errors.IntegrityError(refusal)
    return content
