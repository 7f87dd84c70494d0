"""The base of every configuration model, and one-line descriptions of what a user got wrong in one."""

from __future__ import annotations

import types
import typing
from typing import Any

import pydantic

from t5core import errors


class StrictModel(pydantic.BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True)


def describe(error: pydantic.ValidationError, root: type[pydantic.BaseModel]) -> str:
    """Returns the first mistake in `error` as one line with the key, what was given and what to do."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields_at(root, detail["loc"][:-1])
        guess = errors.nearest(str(detail["loc"][-1]), known) or _elsewhere(root, str(detail["loc"][-1]))
        hint = f"did you mean {_sibling(key, guess)!r}?" if guess else f"known keys there: {', '.join(known)}"
        return f"unknown key {key!r} (value {_short(detail['input'])}); {hint}"
    if detail["type"] == "missing":
        return f"missing key {key!r}; give it a value"
    if detail["type"] == "value_error":
        message = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return f"{key}: {message}" if key else message
    return f"{key}={_short(detail['input'])} is not valid: {detail['msg']}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sibling(key: str, name: str) -> str:
    if "." in name:
        return name
    return ".".join([*key.split(".")[:-1], name])


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Returns the model inside Optional, tuple and union annotations, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, list, dict, typing.Annotated):
        return next((m for m in map(_model_in, typing.get_args(annotation)) if m is not None), None)
    return None


def _fields_at(root: type[pydantic.BaseModel], location: tuple[Any, ...]) -> list[str]:
    model = root
    for part in location:
        field = model.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field else None
        model = inner or model
    return sorted(model.model_fields)


def dotted_keys(root: type[pydantic.BaseModel], prefix: str = "") -> list[str]:
    """Returns every key of `root` in dotted form, sections included."""
    keys = []
    for name, field in root.model_fields.items():
        keys.append(prefix + name)
        inner = _model_in(field.annotation)
        if inner is not None and typing.get_origin(field.annotation) not in (tuple, list):
            keys.extend(dotted_keys(inner, f"{prefix}{name}."))
    return keys


def _elsewhere(root: type[pydantic.BaseModel], name: str) -> str | None:
    """Finds a key of that very name in another section, or one that is close."""
    by_leaf = {key.rsplit(".", 1)[-1]: key for key in reversed(dotted_keys(root))}
    guess = errors.nearest(name, by_leaf)
    return by_leaf[guess] if guess else None
