"""Streams of a console in a process of its own: their number is limited, a closed one ends, and large values cost little."""

from __future__ import annotations

import asyncio
import http.client
import time
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from chromium import console

from ottla.aio import Admin, Producer
from ottla.client.admin.results import NewTopic
from ottla.console.messages.preview import PAGE_CHARACTERS
from ottla.console.pages.messages import STREAMS_MAX
from serving import Elsewhere, Serving

pytestmark = pytest.mark.server
MB = 10**6


@pytest.fixture(scope="module")
def topic(ottla_server: Serving | Elsewhere) -> str:
    """A topic with three values of 10 MB."""
    name = f"console-large-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with Admin(bootstrap_servers=ottla_server.bootstrap) as admin:
            await admin.create_topic(NewTopic(name, 1, 1, {"max.message.bytes": str(12 * MB)}))
        async with Producer(bootstrap_servers=ottla_server.bootstrap, max_request_size=12 * MB) as producer:
            for letter in b"abc":
                await (await producer.send(name, b'{"a": "' + bytes([letter]) * (10 * MB) + b'"}'))

    asyncio.run(run())
    return name


@pytest.fixture(scope="module")
def url(ottla_server: Serving | Elsewhere) -> Iterator[str]:
    with console(ottla_server.bootstrap) as made:
        yield made


def opened(url: str, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path)
    return connection.getresponse()


def read(url: str, path: str) -> bytes:
    answer = opened(url, path)
    assert answer.status == 200, path
    return answer.read()


def test_values_of_ten_megabytes_are_cut_in_pages_and_whole_in_downloads(url: str, topic: str) -> None:
    rows = read(url, f"/topics/{topic}/stream")
    assert rows.count(b"<tr>") == 3 and len(rows) < 20_000
    assert len(read(url, f"/topics/{topic}/records/0/1")) < 3 * PAGE_CHARACTERS
    assert len(read(url, f"/topics/{topic}/records/0/1/value")) == 10 * MB + 9
    found = read(url, f"/topics/{topic}/stream?value=bbbb")
    assert found.count(b"<tr>") == 1 and f"/topics/{topic}/records/0/1".encode() in found


def test_a_stream_that_is_closed_makes_room_for_another(url: str, topic: str) -> None:
    path = f"/topics/{topic}/stream?show=live"
    streams = [opened(url, path) for _ in range(STREAMS_MAX)]
    # A stream counts from its first event on.
    assert all(stream.fp.readline() for stream in streams)
    assert opened(url, path).status == 429
    for stream in streams:
        stream.close()
    deadline_s = time.monotonic() + 30
    while (status := opened(url, path).status) != 200:
        assert time.monotonic() < deadline_s, f"closed streams still count: {status}"
