"""A live server is sent nearly valid requests of every API and version: each is answered or its connection closed, and nobody else notices.

`OTTLA_FUZZ_SECONDS` makes it longer, `OTTLA_FUZZ_SEED` different; a failure names both and the frames that were under way.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from mutations import Input, inputs, tokens, valid

from ottla.wire import framing
from ottla.wire.compile import encode
from ottla.wire.messages import API, MetadataRequest, MetadataResponse
from plain_kafka import api_versions, batch_of, create_topics, produce
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("OTTLA_FUZZ_SECONDS", "20"))
SEED = int(os.environ.get("OTTLA_FUZZ_SEED", "1"))
BATCH = 120
#: Request memory, fetch answers and all that Python keeps for itself; far below what one believed length could cost.
GROWTH_BYTES_MAX = 150 << 20
#: Requests that are made to wait are answered soon, but for those whose wait was made longer by a change.
PATIENCE_S = 0.4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    # Random creations and deletions of topics are welcome, ten thousand partitions are not.
    settings = {"ottla.partitions.max": "300", "ottla.partitions.per.request.max": "20"}
    with Serving(tmp_path / "data", settings=settings) as served:
        create_topics(served.address, {"fuzz": 3, "other": 1})
        produce(served.address, "fuzz", 0, batch_of([(1_700_000_000_000, b"k", b"v")] * 20))
        yield served


def topic_ids(server: Serving) -> tuple[bytes, ...]:
    chunks = framing.encode_request(MetadataRequest(topics=None), 12, 1, "fuzz")
    request = b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[call-overload]
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(request)
        (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        _, answer = framing.decode_response(MetadataResponse, sock.recv(size, socket.MSG_WAITALL), 12)
    return tuple(topic.topic_id for topic in answer.topics)


class Exchange:
    """One input on a connection of its own."""

    def __init__(self, address: tuple[str, int], sent: Input) -> None:
        self.sent = sent
        self.received = bytearray()
        self.closed = False
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setblocking(False)
        try:
            self.socket.send(sent.frame)
        except OSError:
            self.closed = True

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        except BlockingIOError:
            return
        self.received += data
        self.closed = self.closed or not data

    @property
    def answered(self) -> bool:
        return len(self.received) >= 4 and len(self.received) >= 4 + struct.unpack_from(">i", self.received)[0]

    @property
    def over(self) -> bool:
        return self.closed or self.answered

    def story(self) -> str:
        return f"{API[self.sent.key].name} v{self.sent.version}{' (sound)' if self.sent.sound else ''}: {self.sent.frame[:400].hex()}"


def settle(exchanges: list[Exchange], timeout_s: float) -> list[Exchange]:
    """Reads until every connection was answered or closed, or the time is over; those that were neither."""
    selector = selectors.DefaultSelector()
    for exchange in exchanges:
        if not exchange.over:
            selector.register(exchange.socket, selectors.EVENT_READ, exchange)
    deadline = time.monotonic() + timeout_s
    while selector.get_map() and (left := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            key.data.read()
            if key.data.over:
                selector.unregister(key.fileobj)
    open_still = [key.data for key in selector.get_map().values()]
    selector.close()
    return open_still


def check_answer(exchange: Exchange) -> None:
    """What came back for an untouched request is a response of its version, with its number."""
    sent = exchange.sent
    size = struct.unpack_from(">i", exchange.received)[0]
    assert len(exchange.received) == 4 + size, "one answer to one request"
    correlation_id, _ = framing.decode_response(API[sent.key].response, bytes(exchange.received[4:]), sent.version)
    assert correlation_id == 1


def run_batch(server: Serving, batch: list[Input], outcomes: Counter[str]) -> None:
    exchanges = [Exchange(server.address, sent) for sent in batch]
    try:
        waiting = settle(exchanges, PATIENCE_S)
        # A frame that was announced longer than it is, or a fetch that may wait for weeks: they hear that we are done.
        for exchange in waiting:
            exchange.socket.shutdown(socket.SHUT_WR)
        hanging = settle(waiting, 10)
        assert not hanging, "neither answered nor closed:\n" + "\n".join(exchange.story() for exchange in hanging)
        for exchange in exchanges:
            outcomes["answered" if exchange.answered else "closed"] += 1
            if exchange.sent.sound and exchange.answered:
                outcomes["sound"] += 1
                check_answer(exchange)
            elif exchange.sent.sound:
                # Only acks=0 closes without a word: for an error there is no other way to tell.
                assert API[exchange.sent.key].name in ("Produce", "Fetch"), f"no answer to a sound request: {exchange.story()}"
    finally:
        for exchange in exchanges:
            exchange.socket.close()


def test_tokens_are_what_the_codec_writes() -> None:
    random = Random(SEED)
    for key, api in API.items():
        for version in range(max(api.versions[0], 3 if key == 0 else 0), api.versions[1] + 1):
            message = valid(key, version, random)
            assert b"".join(token.data for token in tokens(message, version)) == encode(message, version), f"{api.name} v{version}"


def test_nearly_valid_requests_of_every_api_leave_the_server_as_it_was(server: Serving) -> None:
    served = api_versions(server.address)
    # AlterPartition is for brokers alone; what speaks of a quorum has no meaning here; nothing moves between directories of one broker.
    assert served.keys() == API.keys() - {34, 55, 56, 64}, "all that is declared is served"
    served[0] = (3, served[0][1])
    random = Random(SEED)
    make = inputs(served, random, ids=topic_ids(server))
    pid, outcomes, number = server.pid, Counter[str](), 0
    base_bytes = 0
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        batch = [make() for _ in range(BATCH)]
        number += 1
        try:
            run_batch(server, batch, outcomes)
            assert server.alive and server.pid == pid
            assert api_versions(server.address, timeout_s=5).keys() == served.keys()
            if number == 5:
                base_bytes = server.resident_bytes()
            assert not base_bytes or server.resident_bytes() < base_bytes + GROWTH_BYTES_MAX
            assert "Traceback" not in server.logs(), server.logs()[-3000:]
        except (AssertionError, OSError) as error:
            frames = "\n".join(f"{API[sent.key].name} v{sent.version} {sent.frame[:300].hex()}" for sent in batch)
            raise AssertionError(f"OTTLA_FUZZ_SEED={SEED}, batch {number}: {error}\n{frames}\n{server.logs()[-3000:]}") from error
    assert outcomes["answered"] > 50 and outcomes["closed"] > 50 and outcomes["sound"] > 20
    print(f"seed {SEED}: {number * BATCH} requests, {dict(outcomes)}")
    # Whatever topics, settings and records came of it, a next life takes them over.
    server.stop()
    server.start()
    assert api_versions(server.address).keys() == served.keys()
    assert "Traceback" not in server.logs(), server.logs()[-3000:]
