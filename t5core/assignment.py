"""From the names in a checkpoint to the names in a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from t5core import errors, trees


def apply_assignment_map(
    stored: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    assignment_map: Sequence[tuple[str, str | None]],
    is_resuming: bool = False,
) -> dict[str, Any]:
    """Returns the stored state under the names of the wanted one; `stored` itself when a run resumes.

    A name is a path such as 'target/decoder/decoder_norm/scale' or 'state/param_states/...'. The first pattern that
    matches the whole of a wanted name says where it comes from: its replacement (with groups filled in) is the stored
    name, None means that the checkpoint has none. Two names may have one source. A wanted name that no pattern matches
    keeps its own. Stored leaves that nobody asked for stay as they are, sources of a renaming aside.

    Args:
      stored: the checkpoint's nested dict.
      wanted: the model's, of arrays or shapes.
      assignment_map: (pattern, replacement) pairs.
      is_resuming: whether `stored` is the run's own checkpoint, whose names are the model's already.

    Raises:
      CheckpointError: a source that the checkpoint does not have, or a pattern that matches no wanted name.

    Source: t5x/state_utils.py@cc342d4 `apply_assignment_map`.
    """
    if is_resuming:
        return dict(stored)
    there, here = trees.flatten(stored), trees.flatten(wanted)
    used: set[str] = set()
    sources: dict[str, str | None] = {}
    for name in here:
        found = next(((p, r, m) for p, r in assignment_map if (m := re.fullmatch(p, name))), None)
        if found is not None:
            pattern, replacement, match = found
            used.add(pattern)
            sources[name] = None if replacement is None else match.expand(replacement)
    _check(assignment_map, used=used, sources=sources, there=there, here=here)
    gone = {*sources, *(source for source in sources.values() if source is not None)}
    kept = {name: leaf for name, leaf in there.items() if name not in gone or (name in here and name not in sources)}
    assigned = {name: there[source] for name, source in sources.items() if source is not None}
    return trees.unflatten({**kept, **assigned})


def _check(
    assignment_map: Sequence[tuple[str, str | None]],
    *,
    used: set[str],
    sources: Mapping[str, str | None],
    there: Mapping[str, Any],
    here: Mapping[str, Any],
) -> None:
    for pattern, _ in assignment_map:
        if pattern not in used:
            nearest = errors.nearest(pattern, here)
            hint = f"; did you mean {nearest!r}?" if nearest else "; a pattern matches a whole name"
            raise errors.CheckpointError(f"assignment_map: {pattern!r} matches no name of the model{hint}")
    for name, source in sources.items():
        if source is not None and source not in there:
            nearest = errors.nearest(source, there)
            hint = f"did you mean {nearest!r}?" if nearest else "name what is there, or None"
            raise errors.CheckpointError(
                f"assignment_map: {name} is to come from {source!r}, which is not there; {hint}"
            )
