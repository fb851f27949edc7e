"""Consoles for tests."""

from collections.abc import Iterator

import pytest
from browsing import Browser, browsing

from serving import Elsewhere, Serving

#: A port on which nothing listens: the discard service, which is reserved.
NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="module")
def browser(ottla_server: Serving | Elsewhere) -> Iterator[Browser]:
    """A browser at a console of the server of the session."""
    with browsing(ottla_server.bootstrap) as made:
        yield made


@pytest.fixture
def offline() -> Iterator[Browser]:
    """A browser at a console whose cluster cannot be reached."""
    with browsing(NOWHERE, settings={"default_api_timeout_ms": 300, "socket_connection_setup_timeout_ms": 200}) as made:
        yield made
