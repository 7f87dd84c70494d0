"""One package for the whole folder."""

import pytest

from tests.packaging import package


@pytest.fixture(scope="session")
def packaged(tmp_path_factory) -> package.Package:
    """Everything under workflows/, packaged for a cluster and read back."""
    file = tmp_path_factory.mktemp("package") / "package.tgz"
    package.write(file)
    return package.read(file)
