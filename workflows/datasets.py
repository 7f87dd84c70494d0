"""The way from requests for tasks to their datasets, which training and evaluation have in common."""

from __future__ import annotations

from typing import Any

from flytekit import map_task

from tasks.data import materialise, share_out, survey, tokenise


def make_datasets(requests: Any) -> Any:
    """Composes the nodes from a list of requests to the list of their datasets, both of them promises.

    Each task is looked at, then all shares of all tasks are tokenised at once, each in a pod of its own, and when they
    lie in the bucket they are put together.
    """
    surveys = map_task(survey)(request=requests)
    shares: Any = map_task(tokenise)(request=share_out(surveys=surveys))
    return shares >> map_task(materialise)(survey=surveys)
