"""What a name leads to: the dotted name that a person gives, or the target that one process tells another."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from t5core import errors


def given(name: str, *, told: str = "") -> Any:
    """Returns what is called `name`, 'module.attribute', after importing the module.

    Args:
      name: as a person has written it.
      told: the setting and its value, for messages; '': the name itself.

    Raises:
      ConfigError: it is no dotted name, the module cannot be imported, or it has nothing of that name.
    """
    told = told or repr(name)
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise errors.ConfigError(f"{told} is no dotted name; give module.function")
    try:
        imported = importlib.import_module(module)
    except (ImportError, SyntaxError, ValueError) as error:
        raise errors.ConfigError(
            f"{told} cannot be imported: {error}; give module.function, importable where the run is"
        ) from error
    if not hasattr(imported, attribute):
        known = [each for each in vars(imported) if not each.startswith("_")]
        raise errors.ConfigError(f"{told}: {errors.unknown_name(f'name in {module}', attribute, known)}")
    return getattr(imported, attribute)


def target(name: str) -> Callable[..., Any]:
    """Returns the function called `name`, 'module:function'; code writes such names, and a wrong one is its mistake."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)
