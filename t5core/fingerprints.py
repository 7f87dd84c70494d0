"""Fingerprints of code: they follow what code does, not how it is laid out or explained."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import types

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
