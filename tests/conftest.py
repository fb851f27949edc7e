"""What tests of several directories share."""

from collections.abc import Iterator

import pytest

from serving import Serving


@pytest.fixture(scope="session")
def ottla_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server with stock settings for all tests of a session that only need *a* broker; each uses topics of its own."""
    with Serving(tmp_path_factory.mktemp("ottla") / "data") as server:
        yield server
