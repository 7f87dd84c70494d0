"""Settings of every test process, and of the processes that tests start."""

import os
import sys
from collections.abc import Iterator

import pytest

# Most of the time of these tests goes into compiling tiny programs that run once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("FLYTE_SDK_LOGGING_LEVEL", "40")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps a file's tests in one process, where they share compiled programs, and those of one run together."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            folder = item.path.parent.name
            item.add_marker(pytest.mark.xdist_group("workflows" if folder == "workflows" else str(item.path)))


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Drops the compiled programs of a file's tests, which no other file runs: of all files they are gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
