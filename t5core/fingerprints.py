"""Fingerprints of code: they follow what code does, not how it is laid out or explained."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from t5core import errors, storage

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_fingerprint(*modules: str | types.ModuleType) -> str:
    """Returns 16 hex digits that name what `modules` do.

    Comments, docstrings and layout do not count; any other change does, and so does a module's name. Only the modules
    given are read, not what they import. A module given by its name is found but not run, and neither are those that
    it imports; its parent packages are.

    Raises:
      ConfigError: there is no source for one of them.
    """
    sources = {_name(module): _source_of(module) for module in modules}
    return storage.fingerprint({name: _meaning(source, name=name) for name, source in sources.items()})


def source_fingerprint(source: str) -> str:
    """Returns 16 hex digits that name what the module text `source` does."""
    return storage.fingerprint(_meaning(source, name="<source>"))


def functions_fingerprint(
    functions: Sequence[Any], *, modules: Collection[str] = (), told: Collection[str] = ()
) -> str:
    """Returns 16 hex digits that name what `functions` do: the code of their modules, and arguments bound to them.

    Args:
      functions: or other objects, told by their classes; of a wrapped function both modules count.
      modules: by name, whose code counts too.
      told: packages that are told by their versions elsewhere. Neither these nor what has no Python source count.
    """
    found = {name for function in functions for name in _modules_of(function) if name.partition(".")[0] not in told}
    sources = sorted({*modules, *filter(has_source, found)})
    return storage.fingerprint([code_fingerprint(*sources), [_spelt(function) for function in functions]])


def has_source(module: str) -> bool:
    """Tells whether a module that is imported is a .py file that others can find."""
    return (getattr(sys.modules.get(module), "__file__", None) or "").endswith(".py") and module != "__main__"


def _modules_of(function: Any) -> Iterator[str]:
    """Yields the names of the modules that a function and its bound arguments come from."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _modules_of(part)
        return
    yield getattr(function, "__globals__", {}).get("__name__", "builtins")  # of what wraps it
    module = inspect.getmodule(inspect.unwrap(function) if callable(function) else type(function))
    if module is not None:
        yield module.__name__


def _spelt(function: Any) -> str:
    """Returns a function with its bound arguments as text, without the addresses of objects."""
    if isinstance(function, functools.partial):
        arguments = [
            *map(_spelt, function.args),
            *(f"{key}={_spelt(value)}" for key, value in sorted(function.keywords.items())),
        ]
        return f"{_spelt(function.func)}({', '.join(arguments)})"
    if callable(function):
        return getattr(function, "__qualname__", type(function).__qualname__)
    return spelt_object(function)


def spelt_object(found: object) -> str:
    """Returns the representation of an object without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(found))


def library_versions(*distributions: str) -> str:
    """Returns the installed versions as one line, `name==version` in the order given."""
    return " ".join(f"{name}=={importlib.metadata.version(name)}" for name in distributions)


def _name(module: str | types.ModuleType) -> str:
    return module if isinstance(module, str) else module.__name__


def _source_of(module: str | types.ModuleType) -> str:
    name = _name(module)
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        spec = getattr(module, "__spec__", None)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise errors.ConfigError(f"module {name!r} has no Python source to fingerprint; name one that is a .py file")
    with open(spec.origin, "rb") as handle:
        return importlib.util.decode_source(handle.read())


def _meaning(source: str, *, name: str) -> str:
    """Returns the syntax tree of `source` as text, without positions and docstrings."""
    tree = ast.parse(source, filename=name)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
