"""What goes wrong, as types: a user's mistake, a damaged artefact, or something worth another attempt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can mend.

    The message is one line: what is wrong, what was given, what to do.
    """


class ConfigError(UserError):
    """A setting that cannot work; raised before any compute is spent."""


class DataError(UserError):
    """A source, dataset or vocabulary that cannot be used as it is."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or does not fit."""


class RunDirectoryError(UserError):
    """A run directory that belongs to something else, is in use, or cannot be written."""


class InUseError(RunDirectoryError):
    """Something that another execution works on at this moment; it alone may write there."""


class IntegrityError(RuntimeError):
    """Stored bytes that differ from what was written; the message names the file."""


class RecoverableError(RuntimeError):
    """A failure that another attempt may survive: lost storage, preemption, a lost peer."""


class Preempted(RecoverableError):
    """The process was told to stop; everything committed so far is safe."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name most like `name`, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns the message for a look-up of `kind` that failed: the nearest name first, then all there are."""
    names = sorted(known)
    guess = nearest(name, names)
    hint = f"did you mean {guess!r}? " if guess else ""
    return f"unknown {kind} {name!r}; {hint}known: {', '.join(names) or 'none'}"
