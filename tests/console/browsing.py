"""A browser without scripts: Starlette's test client that sends forms with their token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any, cast

import httpx
from starlette.testclient import TestClient

from ottla.console.app import create_app
from ottla.console.options import ConsoleOptions

ORIGIN = "http://127.0.0.1:8080"


class Browser:
    """Keeps cookies; `post` adds the token of the session's forms."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str, **settings: Any) -> httpx.Response:
        # Newer versions of Starlette answer with the class of httpx2.
        return cast("httpx.Response", self.client.get(path, **settings))

    def post(self, path: str, data: dict[str, Any] | None = None, **settings: Any) -> httpx.Response:
        return cast("httpx.Response", self.client.post(path, data={"csrf": self.token(), **(data or {})}, **settings))

    def token(self) -> str:
        """The token in the session's pages."""
        found = re.search(r'name="csrf" content="([^"]+)"', self.client.get("/login", follow_redirects=True).text)
        assert found is not None, "every page has the token"
        return found[1]

    def text(self, path: str) -> str:
        """The text of a page, as a reader sees it."""
        answer = self.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code}: {seen(answer.text)}"
        return seen(answer.text)


def seen(html: str) -> str:
    """The text of HTML, with single blanks."""
    main = html.partition("<main")[2] or html
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


@contextmanager
def browsing(bootstrap: str, **options: Any) -> Iterator[Browser]:
    """A browser at a console of this cluster."""
    app = create_app(ConsoleOptions(bootstrap=bootstrap, **options))
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as client:
        yield Browser(client)


async def measured(browser: Browser) -> None:
    """Waits for a measurement that begins now."""
    watcher = browser.client.app.state.watcher  # type: ignore[attr-defined]
    for _ in range(2):
        watcher.hurry()
        await watcher.next(10.0)
