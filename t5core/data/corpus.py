"""Text that every CPython carries: the language documentation and the docstrings of its standard library.

The sources are parsed, never imported. Files come in the order of their paths and definitions in the order of their
lines, so that the same CPython gives the same documents on every machine.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import re
import sysconfig
from collections.abc import Iterator

from t5core import errors, storage
from t5core.data.documents import Document

# Tests, and what differs between builds of the same version.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_SKIPPED_FILES = re.compile(r"_sysconfigdata.*\.py|.*-config\.py")
_TOPICS = "pydoc_data/topics.py"
# A full stop inside such a word ends no sentence.
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\betc)(?<!\bvs)[.!?](?=\s|$)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Docstring:
    place: str
    signature: str | None  # None for modules and classes
    text: str


def documents(name: str) -> tuple[Document, ...]:
    """Returns the documents of the builtin corpus called `name`.

    `python_docs` has a column `text`: help topics of the language, then all docstrings. `python_docstrings` has
    `inputs`, the qualified name and signature of a function, and `targets`, the first sentence of its docstring. In
    both the key is the whole docstring, so that none is trained on in one corpus and held out in the other.

    Raises:
      DataError: this Python carries no standard library in source.
    """
    if name == "python_docs":
        return _python_docs()
    if name == "python_docstrings":
        return _python_docstrings()
    raise errors.ConfigError(errors.unknown_name("builtin corpus", name, ("python_docs", "python_docstrings")))


def digest() -> str:
    """Returns the digest of every byte that the builtin corpora are made from."""
    contents = {path: storage.digest(_read(path)) for path in _files()}
    return storage.fingerprint(contents)


@functools.cache
def _python_docs() -> tuple[Document, ...]:
    topics = [Document(columns={"text": text}, key=text, place=f"{_TOPICS} ({topic})") for topic, text in _topics()]
    docstrings = [Document(columns={"text": doc.text}, key=doc.text, place=doc.place) for doc in _docstrings()]
    return (*topics, *docstrings)


@functools.cache
def _python_docstrings() -> tuple[Document, ...]:
    return tuple(
        Document(columns={"inputs": doc.signature, "targets": _first_sentence(doc.text)}, key=doc.text, place=doc.place)
        for doc in _docstrings()
        if doc.signature is not None
    )


def _root() -> str:
    return sysconfig.get_paths()["stdlib"]


@functools.cache
def _files() -> tuple[str, ...]:
    """Returns the sources of the standard library, relative to its folder."""
    root, found = _root(), []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _SKIPPED_FOLDERS]
        found.extend(
            os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            for name in names
            if name.endswith(".py") and not _SKIPPED_FILES.fullmatch(name)
        )
    if _TOPICS not in found:
        raise errors.DataError(
            f"the standard library in {root} holds no {_TOPICS}, so there is no builtin corpus; "
            "use a complete CPython or name files"
        )
    return tuple(sorted(found))


def _read(path: str) -> bytes:
    with open(os.path.join(_root(), path), "rb") as handle:
        return handle.read()


def _topics() -> list[tuple[str, str]]:
    tree = ast.parse(_read(_TOPICS))
    (assignment,) = (node for node in tree.body if isinstance(node, ast.Assign))
    return sorted((name, text.strip()) for name, text in ast.literal_eval(assignment.value).items())


@functools.cache
def _docstrings() -> tuple[_Docstring, ...]:
    """Returns every docstring of the standard library; both corpora share the parse, which takes 2 s."""
    return tuple(doc for path in _files() if path != _TOPICS for doc in _docstrings_of(path))


def _docstrings_of(path: str) -> Iterator[_Docstring]:
    source = _read(path)
    if b'"""' not in source and b"'''" not in source:
        return
    tree = ast.parse(source)
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    yield from _own_docstring(tree, place=f"{path}:1")
    yield from _docstrings_in(tree, prefix=module, path=path)


def _docstrings_in(parent: ast.AST, *, prefix: str, path: str) -> Iterator[_Docstring]:
    """Walks statements only, which is several times faster than walking every expression."""
    for node in _statements(parent):
        if isinstance(node, ast.ClassDef):
            yield from _own_docstring(node, place=f"{path}:{node.lineno}")
            yield from _docstrings_in(node, prefix=f"{prefix}.{node.name}", path=path)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            signature = f"{prefix}.{node.name}"
            yield from _own_docstring(node, place=f"{path}:{node.lineno}", name=signature)
        else:
            yield from _docstrings_in(node, prefix=prefix, path=path)


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    for field in ("body", "handlers", "orelse", "finalbody"):
        yield from getattr(parent, field, ())


def _own_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, *, place: str, name: str | None = None
) -> Iterator[_Docstring]:
    text = (ast.get_docstring(node) or "").strip()
    if not text:
        return
    signature = None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        signature = f"{name}({ast.unparse(node.args)})"
    yield _Docstring(place=place, signature=signature, text=text)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    end = _SENTENCE_END.search(paragraph)
    return paragraph[: end.end()] if end else paragraph
