"""The base of every configuration model, and one-line descriptions of what a user got wrong in one."""

from __future__ import annotations

import functools
import re
import types
import typing
from typing import Any

import pydantic

from t5core import errors


class StrictModel(pydantic.BaseModel):
    """A frozen model that refuses keys it does not know."""

    # JSON has no word for NaN and the infinities; by default they would travel between tasks as null.
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True, ser_json_inf_nan="strings")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, settings: Any) -> Any:
        """Refuses what pydantic would take for 1: `keep_checkpoints: yes` would keep one, and not all."""
        given = settings if isinstance(settings, dict) else {}
        wrong = next((name for name in given if isinstance(given[name], bool) and name in _numbers_of(cls)), None)
        if wrong is not None:
            raise ValueError(f"{wrong}={str(given[wrong]).lower()} is no number; give one")
        return settings


@functools.cache
def _numbers_of(model: type[pydantic.BaseModel]) -> frozenset[str]:
    """Returns the fields of `model` that take a number and neither true nor false."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if {int, float} & (kinds := _kinds(field.annotation)) and bool not in kinds
    )


def _kinds(annotation: Any) -> set[Any]:
    """Returns the plain types that an annotation allows; those inside of lists and dicts are none of them."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return {kind for inner in typing.get_args(annotation) for kind in _kinds(inner)}
    return {annotation} if isinstance(annotation, type) else set()


class Outcome(StrictModel):
    """How something ended; `uri` is the summary of it. As text it is one line, the last that `pyflyte run` prints."""

    status: str
    uri: str

    def __str__(self) -> str:
        return f"{self.status}: {self.uri}"


def require_plain(name: str, *, of: str, longest: int = 80) -> None:
    """Refuses a name that cannot be part of a path everywhere.

    Args:
      name: given by the user.
      of: what it names, for the message.
      longest: characters that it may have.

    Raises:
      ValueError: it is too long, or has other characters than letters, digits, '.', '_' and '-'.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > longest:
        raise ValueError(f"{name!r} cannot name {of}; use letters, digits, '.', '_' and '-'")


def describe(error: pydantic.ValidationError, root: type[pydantic.BaseModel]) -> str:
    """Returns the first mistake in `error` as one line with the key, what was given and what to do."""
    detail = error.errors(include_url=False)[0]
    location, model = _walk(root, detail["loc"])
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        known = sorted(model.model_fields)
        is_of_a_kind = len(location) < len(detail["loc"])  # what other kinds have is no help to this one
        name = location[-1]
        guess = errors.nearest(name, known) or (None if is_of_a_kind else _elsewhere(root, name))
        hint = f"did you mean {_sibling(key, guess)!r}?" if guess else f"known keys there: {', '.join(known)}"
        return f"unknown key {key!r} (value {_short(detail['input'])}); {hint}"
    if detail["type"] == "missing":
        return f"missing key {key!r}; give it a value"
    if detail["type"] == "value_error":
        message = str(detail.get("ctx", {}).get("error", detail["msg"]))
        return f"{key}: {message}" if key else message
    return _unknown_kind(key, detail) or f"{key}={_short(detail['input'])} is not valid: {detail['msg']}"


def _unknown_kind(key: str, detail: Any) -> str | None:
    """Describes the choice of a model that there is not, where one key chooses among several models."""
    if detail["type"] not in ("union_tag_invalid", "union_tag_not_found"):
        return None
    chooses = f"{key}.{detail['ctx']['discriminator'].strip(chr(39))}"
    if detail["type"] == "union_tag_not_found":
        return f"missing key {chooses!r}; give it a value"
    return errors.unknown_name(chooses, detail["ctx"]["tag"], detail["ctx"]["expected_tags"].strip("'").split("', '"))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sibling(key: str, name: str) -> str:
    if "." in name:
        return name
    return ".".join([*key.split(".")[:-1], name])


def _models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Returns the models inside Optional, list and union annotations; several where a key chooses among them."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, list, dict, typing.Annotated):
        return [model for inner in typing.get_args(annotation) for model in _models_in(inner)]
    return []


def _walk(root: type[pydantic.BaseModel], location: tuple[Any, ...]) -> tuple[list[str], type[pydantic.BaseModel]]:
    """Returns the keys of a place as they are written in a file, and the model that the last of them belongs to.

    Where a key chooses among models, pydantic puts the chosen value among the keys.
    """
    keys: list[str] = []
    owner, inside = root, [root]
    for part in map(str, location):
        chosen = [model for model in inside if len(inside) > 1 and part in _choices(model)]
        if chosen:
            inside = chosen
            continue
        keys.append(part)
        if not part.isdigit():  # an index stays among the same models
            owner = inside[0] if inside else owner
            field = owner.model_fields.get(part)
            inside = _models_in(field.annotation) if field else []
    return keys, owner


def _choices(model: type[pydantic.BaseModel]) -> list[Any]:
    """Returns the values by which a model may be chosen among others."""
    annotations = [field.annotation for field in model.model_fields.values()]
    return [value for a in annotations if typing.get_origin(a) is typing.Literal for value in typing.get_args(a)]


def dotted_keys(root: type[pydantic.BaseModel], prefix: str = "") -> list[str]:
    """Returns every key of `root` in dotted form, sections included."""
    keys = []
    for name, field in root.model_fields.items():
        keys.append(prefix + name)
        inner = _models_in(field.annotation)
        if inner and typing.get_origin(field.annotation) not in (tuple, list):
            keys.extend(dotted_keys(inner[0], f"{prefix}{name}."))
    return keys


def _elsewhere(root: type[pydantic.BaseModel], name: str) -> str | None:
    """Finds a key of that very name in another section, or one that is close."""
    by_leaf = {key.rsplit(".", 1)[-1]: key for key in reversed(dotted_keys(root))}
    guess = errors.nearest(name, by_leaf)
    return by_leaf[guess] if guess else None
