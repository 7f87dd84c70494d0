"""From a YAML file and overrides to a run whose every setting is known.

Precedence: defaults < file < overrides.
"""

from __future__ import annotations

import copy
import os
import re
import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic

from t5core import errors, storage
from t5core.config import base, yaml_text
from t5core.config.edges import ResolvedRun
from t5core.config.schema import ClusterConfig, PretrainConfig

Config = TypeVar("Config", bound=base.StrictModel)

# Settings that say how a run is watched, cut and kept. Changing one leaves every bit of the training as it was, so a
# run directory accepts it; all others decide the numbers and belong to the run's identity.
FREE_SETTINGS = (
    ("run", "name"),
    ("run", "root"),
    ("evaluate",),
    ("cluster",),
    ("publish",),
    ("data", "workers"),
    ("data", "shares"),
    ("train", "total_steps"),
    ("train", "segment_steps"),
    ("train", "checkpoint_period"),
    ("train", "eval_period"),
    ("train", "keep_checkpoints"),
    ("train", "keep_period"),
    ("train", "stats_period"),
    ("train", "weight_metrics"),
    ("train", "actions"),
)


def read_file(uri: str) -> dict[str, Any]:
    """Returns the settings in a YAML or JSON file.

    Raises:
      ConfigError: there is no such file, or it is not a mapping.
    """
    try:
        text = storage.path(uri).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise errors.ConfigError(f"cannot read the config {uri!r}: {reason}; give the path of a YAML file") from error
    settings = yaml_text.parse(text, origin=uri)
    if not isinstance(settings, dict):
        raise errors.ConfigError(
            f"{uri} holds {type(settings).__name__}, not sections; see workflows/configs/demo.yaml"
        )
    return settings


def parse_override(override: str) -> tuple[list[str], Any]:
    """Splits `section.key=value` into its path and its value, read as YAML.

    Raises:
      ConfigError: there is no '=', or no key before it.
    """
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise errors.ConfigError(f"override {override!r} is not of the form section.key=value")
    return key.strip().split("."), yaml_text.parse(text, origin=f"override {override!r}")


def with_overrides(settings: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a copy of `settings` with each `section.key=value` put in; numbers in a key index into lists."""
    changed = copy.deepcopy(settings)
    for override in overrides:
        path, value = parse_override(override)
        place: Any = changed
        for depth, part in enumerate(path[:-1]):
            place = _descend(place, part, override=override, where=".".join(path[:depth]))
        _put(place, path[-1], value, override=override)
    return changed


def _descend(place: Any, part: str, *, override: str, where: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, override=override)]
    if not isinstance(place, dict):
        raise errors.ConfigError(f"override {override!r}: {where!r} is a value, not a section; shorten the key")
    if place.get(part) is None:
        place[part] = {}
    return place[part]


def _put(place: Any, part: str, value: Any, *, override: str) -> None:
    if isinstance(place, list):
        place[_index(place, part, override=override)] = value
    elif isinstance(place, dict):
        place[part] = value
    else:
        raise errors.ConfigError(f"override {override!r} goes below a plain value; shorten the key")


def _index(place: list[Any], part: str, *, override: str) -> int:
    if not re.fullmatch(r"[0-9]+", part) or int(part) >= len(place):
        raise errors.ConfigError(f"override {override!r}: {part!r} is no index into {len(place)} entries; count from 0")
    return int(part)


def validate(settings: dict[str, Any], model: type[Config], *, origin: str) -> Config:
    """Returns the typed configuration, a `model`.

    Raises:
      ConfigError: the first mistake, as one line that names the key and the nearest field.
    """
    try:
        return model.model_validate(settings)
    except pydantic.ValidationError as error:
        raise errors.ConfigError(f"{origin}: {base.describe(error, model)}") from error


def validate_mended(settings: dict[str, Any], model: type[Config], overrides: Sequence[str], *, origin: str) -> Config:
    """Returns the typed configuration, a `model`; with `overrides` in it where it is not valid without them.

    Raises:
      ConfigError: a mistake that the overrides do not mend.
    """
    try:
        return validate(settings, model, origin=origin)
    except errors.ConfigError as alone:
        if not overrides:
            raise
        together = with_overrides(_filled(settings, model), overrides)
        with_both = f"{origin} with overrides"
        try:
            return validate(together, model, origin=with_both)
        except errors.ConfigError as mistake:
            if str(mistake).removeprefix(with_both) == str(alone).removeprefix(origin):
                raise alone from mistake
            raise


def _filled(settings: dict[str, Any], model: type[base.StrictModel]) -> dict[str, Any]:
    """Returns `settings` with the defaults of `model`, as far as they go, so that an override may go below them."""
    filled = dict(settings)
    for name, field in model.model_fields.items():
        section = field.annotation
        if name not in settings and not field.is_required():
            default = field.get_default(call_default_factory=True)
            filled[name] = default.model_dump(mode="json") if isinstance(default, base.StrictModel) else default
        elif (
            isinstance(settings.get(name), dict) and isinstance(section, type) and issubclass(section, base.StrictModel)
        ):
            filled[name] = _filled(settings[name], section)
    return filled


def load(uri: str, model: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Returns the configuration in a file, a `model`, with overrides put over it; they may mend what is wrong in it."""
    return override_config(validate_mended(read_file(uri), model, overrides, origin=uri), overrides)


def override_config(config: Config, overrides: Sequence[str]) -> Config:
    """Returns `config` with overrides put over it."""
    if not overrides:
        return config
    return validate(with_overrides(config.model_dump(mode="json"), overrides), type(config), origin="overrides")


def resolve(config: PretrainConfig) -> ResolvedRun:
    """Returns the run that `config` describes: seed drawn if none is given, place and fingerprint known.

    Local places become absolute, so that every stage finds them whatever its working directory.
    """
    seed = config.run.seed if config.run.seed is not None else secrets.randbelow(2**31)
    run = config.run.model_copy(update={"seed": seed, "root": absolute(config.run.root)})
    if run.init_from is not None:
        place = {"checkpoint": absolute(run.init_from.checkpoint)}
        run = run.model_copy(update={"init_from": run.init_from.model_copy(update=place)})
    resolved = config.model_copy(update={"run": run, "cluster": _with_absolute_cache(config.cluster)})
    return ResolvedRun(uri=f"{run.root}/{run.name}", config=resolved, fingerprint=identity(resolved))


def _with_absolute_cache(cluster: ClusterConfig) -> ClusterConfig:
    place = cluster.compilation_cache
    return cluster if place is None else cluster.model_copy(update={"compilation_cache": absolute(place)})


def absolute(uri: str) -> str:
    """Returns a place that means the same in every working directory."""
    return (uri if storage.is_remote(uri) else os.path.abspath(uri)).rstrip("/")


def identity_settings(config: PretrainConfig) -> dict[str, Any]:
    """Returns the settings that decide the trained numbers."""
    settings = config.model_dump(mode="json")
    for path in FREE_SETTINGS:
        place = settings
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]
    return settings


def identity(config: PretrainConfig) -> str:
    """Returns 16 hex digits that name what a run trains; equal for configs that train the same bits."""
    return storage.fingerprint(identity_settings(config))
