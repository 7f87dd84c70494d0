"""A run to predict with, made once."""

import pytest

from tests.t5core import small_inference


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The directory of a run with one checkpoint."""
    return small_inference.run(tmp_path_factory.mktemp("small"))
