"""YAML as people mean it: `1e-5` is a number, and a key given twice is a mistake."""

from __future__ import annotations

import re
from typing import Any

import yaml

from t5core import errors

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its reading of `1e-5` as text, and without silently dropped duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [key for key, _ in node.value if key.tag != _MERGE]  # what `<<` brings in may stand there once more
        keys = [self.construct_object(key, deep=deep) for key in own]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise errors.ConfigError(f"key {twice!r} stands twice at line {node.start_mark.line + 1}; keep one")
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Puts text that `_Loader` would take for a number into quotes."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def parse(text: str, *, origin: str) -> Any:
    """Returns the value that `text` holds; `origin` names the text in errors.

    Raises:
      ConfigError: the text is not YAML, or a mapping has a key twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise errors.ConfigError(f"{origin} is not valid YAML{line}: {problem}; mend it there") from error
    except RecursionError as error:
        raise errors.ConfigError(f"{origin} is nested too deeply for a configuration; mend it there") from error
    except errors.ConfigError as error:
        raise errors.ConfigError(f"{origin}: {error}") from error


def dump(value: Any) -> str:
    """Returns `value` as YAML in the order of its keys."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
