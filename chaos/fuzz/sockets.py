"""The same frames for a server behind sockets: framing, pipelining, closing, and mutated bytes.

Several connections send bursts at once and read the responses. A connection whose oldest request has no response within ``PATIENCE_S`` is
half closed; then the server must respond or close. Long waits in generated requests are shortened first.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.fuzz.client import HOT_TOPICS, RETRIABLE, Client, create_topics
from chaos.fuzz.environment import TOO_MANY, expected_of
from chaos.fuzz.mutations import mutated_frame, plain_frame
from chaos.fuzz.oracle import Expected, Finding, check_answer
from chaos.fuzz.requests import Requests
from chaos.fuzz.vocabulary import Topic, Vocabulary
from ottla.wire import framing
from ottla.wire.compile import decode, encode
from ottla.wire.declare import FieldNotInVersion, MalformedMessage
from ottla.wire.messages import API

Address = tuple[str, int]
#: Size limit of the first request of a connection; a larger one closes the connection even if it is valid.
FIRST_REQUEST_BYTES_MAX = 64 << 10
#: Settings of the server: limited numbers of partitions, and short group timeouts.
SETTINGS = {
    "ottla.first.request.max.bytes": str(FIRST_REQUEST_BYTES_MAX),
    "ottla.partitions.max": "300",
    "ottla.partitions.per.request.max": "20",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "10",
    "group.min.session.timeout.ms": "500",
    "ottla.client.metrics.enable": "true",
}
CONNECTIONS = 12
BURST_MAX = 30
MUTATED = 0.2
PATIENCE_S = 0.25
#: Time limit for a server that neither responds nor closes.
HANG_S = 15.0
WAIT_MAX_MS = 20
#: Fields with the time that a request may wait.
WAITS = ("max_wait_ms", "timeout_ms")
CLIENT_EVERY = 500
#: Only larger requests can have enough elements to be refused for their number.
LARGE_BYTES = 100_000
RETRIES = 200


class FuzzConnection:
    """A connection, the requests sent on it, and the expected responses."""

    def __init__(self, connected: socket.socket) -> None:
        """Owns the socket, which may have TLS."""
        self.socket = connected
        self.socket.setblocking(False)
        self.out = bytearray()
        self.received = bytearray()
        self.expected: deque[Expected] = deque()
        self.closed = False
        self.ended = False

    @property
    def idle(self) -> bool:
        return self.closed or not self.expected

    def pump(self, answered: Callable[[Expected, Any], None]) -> None:
        """Write and read without blocking. Raises: Finding."""
        try:
            if self.out:
                del self.out[: self.socket.send(self.out[: 1 << 18])]
            # The kernel does not tell of bytes that TLS has decrypted, so all are read.
            while not self.closed:
                data = self.socket.recv(1 << 20)
                self.closed = not data
                self.received += data
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (ConnectionError, ssl.SSLError):
            self.closed = True
        while len(self.received) >= 4 and len(self.received) >= 4 + (size := struct.unpack_from(">i", self.received)[0]):
            frame = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            # Requests with acks=0 have no response, so this one is of a later request.
            while self.expected and self.expected[0].silent and self.expected[0].correlation_id != struct.unpack_from(">i", frame)[0]:
                self.expected.popleft()
            if not self.expected:
                raise Finding("an answer without a request", frame[:200].hex())
            expected = self.expected.popleft()
            answered(expected, check_answer(expected, frame))
        while self.expected and self.expected[0].silent and self.expected[0].request is not None and not self.out:
            self.expected.popleft()

    def check_closed(self, silent: bool) -> None:
        """The server closed the connection: allowed only where the protocol has no response, and after a damaged batch. Raises: Finding."""
        if not self.ended and self.expected and not silent:
            expected = self.expected[0]
            raise Finding(f"{expected.name}: a valid request closes the connection", expected.description)

    def end(self) -> None:
        """Close the sending direction."""
        self.ended = True
        try:
            # Of the connection below TLS, if there is TLS.
            socket.socket.shutdown(self.socket, socket.SHUT_WR)
        except OSError:
            self.closed = True


class FuzzedServer:
    """A server under test: hostile connections and the well-behaved client."""

    def __init__(self, connect: Callable[[bool], socket.socket], seed: int) -> None:
        """``connect`` opens a connection: of a hostile client, or with True of the well-behaved one."""
        self._connect = connect
        self._random = random = Random(seed)
        self.vocabulary = Vocabulary(random, topics=[Topic(name, bytes(16), 1) for name in HOT_TOPICS], brokers=1)
        self._requests = Requests(random, self.vocabulary, wall_ms=lambda: self.wall_ms)
        self._correlation = 0
        self.frames = self.answers = 0
        create_topics(self, replicas=1)
        self.client = Client(self)

    @property
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ask(self, request: Any, version: int, *, until: Callable[[Any], int], leader: bool = False) -> Any:
        """Send a request of the client on a separate connection. Raises: Finding."""
        key = next(key for key, api in API.items() if api.request is type(request))
        frame = b"".join(framing.encode_request(request, version, 7, "client"))  # type: ignore[arg-type]
        for _ in range(RETRIES):
            with self._connect(True) as sock:
                sock.settimeout(HANG_S)
                sock.sendall(frame)
                (size,) = struct.unpack(">i", _exactly(sock, 4))
                answer = check_answer(Expected(key, version, 7, request), _exactly(sock, size))
            if until(answer) == 0:
                return answer
            if until(answer) not in RETRIABLE:
                raise Finding(f"client: {API[key].name} fails", f"{answer}")
            time.sleep(0.02)
        raise Finding(f"client: {API[key].name} does not succeed", f"{RETRIES} attempts, last {answer}")

    def run(self, frames: int) -> None:
        """Send this number of frames. Raises: Finding."""
        target, due = self.frames + frames, self.frames + CLIENT_EVERY
        while self.frames < target:
            self._round()
            if self.frames >= due:
                due += CLIENT_EVERY
                self.client.work()

    def _round(self) -> None:
        """Send bursts on all connections at once; then wait until all have responses or are closed."""
        connections = []
        for _ in range(CONNECTIONS):
            wire = FuzzConnection(self._connect(False))
            connections.append(wire)
            for _ in range(self._random.randint(1, BURST_MAX)):
                self._correlation += 1
                frame, expected = self._frame()
                if not wire.expected and len(frame) - framing.SIZE_BYTES > FIRST_REQUEST_BYTES_MAX:
                    expected = expected_of(frame)
                self.frames += 1
                wire.out += frame
                wire.expected.append(expected)
                if expected.request is None or _waits_long(expected.request):
                    # Bytes after mutated ones may be read as part of them. After a request that waits long there can be so many bytes that
                    # the server stops reading, and does not see the end of the connection.
                    break
        silent = {
            wire: any(expected.silent or expected.damaged or expected.request is None for expected in wire.expected) for wire in connections
        }
        try:
            waiting = self._pump(connections, PATIENCE_S)
            for wire in waiting:
                wire.end()
            hanging = self._pump(waiting, HANG_S, until_closed=True)
            if hanging:
                description = hanging[0].expected[0].description if hanging[0].expected else "nothing is expected"
                raise Finding("neither answered nor closed", description)
            for wire in connections:
                if wire.closed:
                    wire.check_closed(silent[wire])
        finally:
            for wire in connections:
                wire.socket.close()

    def _pump(self, connections: list[FuzzConnection], timeout_s: float, *, until_closed: bool = False) -> list[FuzzConnection]:
        """Write and read until all are idle or closed; returns those that are not when the time is over."""
        selector = selectors.DefaultSelector()
        for wire in connections:
            if not (wire.closed or (wire.idle and not until_closed)):
                selector.register(wire.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, wire)
        deadline = time.monotonic() + timeout_s
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                wire = key.data
                wire.pump(self._answered)
                if wire.closed or (wire.idle and not wire.out and not until_closed):
                    selector.unregister(wire.socket)
                elif not wire.out and key.events & selectors.EVENT_WRITE:
                    selector.modify(wire.socket, selectors.EVENT_READ, wire)
        open_still = [key.data for key in selector.get_map().values()]
        selector.close()
        return open_still

    def _answered(self, expected: Expected, answer: Any) -> None:
        self.answers += 1
        if expected.request is not None:
            self.vocabulary.learn(expected.key, expected.request, answer)

    def _frame(self) -> tuple[bytes, Expected]:
        key, version, request = self._requests.request()
        for name in WAITS:
            if getattr(request, name, 0) > WAIT_MAX_MS and self._random.random() < 0.95:
                setattr(request, name, WAIT_MAX_MS)
        if self._random.random() < MUTATED / BURST_MAX * 4:
            frame = mutated_frame(key, version, request, self._correlation, self._random)
            return frame, expected_of(frame)
        try:
            frame = b"".join(framing.encode_request(request, version, self._correlation, "fuzz"))  # type: ignore[arg-type]
        except FieldNotInVersion:
            frame = plain_frame(key, version, request, self._correlation)
            return frame, expected_of(frame)
        if len(frame) > LARGE_BYTES and not _read_back(key, version, request):
            return frame, expected_of(frame)
        return frame, Expected(key, version, self._correlation, request)


def _waits_long(request: Any) -> bool:
    return any(getattr(request, name, 0) > WAIT_MAX_MS for name in WAITS)


def _read_back(key: int, version: int, request: Any) -> bool:
    """Whether a request has no more elements than the limit for clients."""
    try:
        decode(API[key].request, encode(request, version), version)
    except MalformedMessage:
        return False
    return True


def plain(address: Callable[[], Address]) -> Callable[[bool], socket.socket]:
    """Connections without TLS and SASL; ``address`` returns the current address of the server."""
    return lambda good: socket.create_connection(address(), timeout=10)


def check_log(text: str) -> None:
    """Check that the server's log has no traceback and no failed request. Raises: Finding."""
    for line in text.splitlines():
        serious = " ERROR " in line or " WARNING " in line
        if "Traceback" in line or (serious and " failed: " in line and TOO_MANY not in line):
            raise Finding("the server's log has a failure", text[max(0, text.index(line) - 200) : text.index(line) + 4000])


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        got = sock.recv(size - len(data))
        if not got:
            raise Finding("client: its connection is closed", f"{len(data)} of {size} bytes came")
        data += got
    return bytes(data)
