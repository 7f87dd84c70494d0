"""Records: models kept as one file of JSON each, in which NaN and the infinities come back as they were."""

from __future__ import annotations

from typing import TypeVar

import pydantic

from t5core import errors, storage
from t5core.config.base import StrictModel
from t5core.metrics import json_numbers

_Record = TypeVar("_Record", bound=StrictModel)


def write(uri: str, record: StrictModel) -> None:
    """Writes `record` to `uri`, as a whole or not at all."""
    storage.write_json(uri, json_numbers.encode(record.model_dump(mode="json")))


def read(uri: str, model: type[_Record], *, otherwise: str | None = None) -> _Record | None:
    """Returns the record at `uri`, or None when there is none.

    Args:
      uri: of the record.
      model: what it is.
      otherwise: what it is said to be, and what to do, when it is no JSON or not a `model`; None: "is not a ...; delete
        it and run again".

    Raises:
      IntegrityError: what lies there is not a `model`.
    """
    try:
        return model.model_validate(storage.read_json(uri))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (errors.IntegrityError, pydantic.ValidationError) as error:
        if otherwise is None and isinstance(error, errors.IntegrityError):
            raise
        said = otherwise or f"is not a {model.__name__}; delete it and run again"
        raise errors.IntegrityError(f"{uri} {said}") from error
