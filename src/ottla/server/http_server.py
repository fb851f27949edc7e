"""The HTTP listener of a server (``--http``): metrics, health, and the timelines of its brokers.

====================  ============================================================================================================
``GET /metrics``      all metrics; Prometheus' text format, or OpenMetrics if the client accepts it
``GET /health/live``  200 while the event loop runs: it ticked in the last 20 s, or the start is still in progress
``GET /health/ready`` 200 while clients can be served: every broker is registered, knows a controller and leads its partitions.
                      503 with the reasons otherwise
``GET /timeline``     the latest changes of groups, partitions, transactions and the controller; see ``timeline.py``
``GET /segments``     the segments of a partition's replicas here; see ``segments.py``
====================  ============================================================================================================

It has threads of its own, since a scrape takes long and a probe must be answered while the event loop does not run. Collections take
turns, a piece of the answer each, and none has its turn while it waits for its client. So a slow reader delays no other scrape.

Connections are limited, and among them those with a large answer, so that health is answered while scrapes are in progress. At a limit
the server cuts the connection that has waited longest for its client, if that is more than ``SLOW_S``; otherwise it refuses the new one.

There is no authentication: listen on a loopback address, or where only the monitoring can connect.
"""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ottla.base.ids import TopicPartition
from ottla.server.addresses import Address
from ottla.server.metrics.exposition import OPENMETRICS, TEXT, Pace, written
from ottla.server.metrics.observation import Observation
from ottla.server.segments import segments_of
from ottla.server.timeline import WrongQuery, query_of, timeline_json

log = logging.getLogger("ottla.http")

#: Connections at once, and those of them with another answer than health. A scrape holds some MiB while its client reads.
CONNECTIONS_MAX, LARGE_MAX = 16, 8
#: The time that a client has for its request, and for each piece of the answer.
TIMEOUT_S = 10.0
#: A connection that has waited less for its client is not cut. A probe sends its request at once.
SLOW_S = 1.0
#: The time for a whole answer. A scrape of a broker with 10,000 partitions takes some seconds.
ANSWER_S = 60.0
#: Characters of one write.
CHUNK_CHARS = 32 * 1024
PATHS = ("/metrics", "/health/live", "/health/ready", "/timeline", "/segments")


class MetricsServer:
    """Threads that serve HTTP for one process."""

    def __init__(self, observation: Observation, address: Address) -> None:
        """Binds the address. Raises: OSError."""
        self.observation = observation
        handler = type("Handler", (_Handler,), {"observation": observation})
        self._server = _Server(address, handler)
        self.address: Address = (str(self._server.server_address[0]), int(self._server.server_address[1]))

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="ottla-http", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Connection:
    """An open connection, and how long it has waited for its client: for the request, and in writes of the answer."""

    __slots__ = ("_since_s", "_waited_s", "is_large", "request")

    def __init__(self, request: socket.socket) -> None:
        self.request = request
        self.is_large = False
        #: When the present wait began; None while the server works.
        self._since_s: float | None = time.monotonic()
        self._waited_s = 0.0

    def wait(self) -> None:
        self._since_s = time.monotonic()

    def work(self) -> None:
        if self._since_s is not None:
            self._waited_s += time.monotonic() - self._since_s
        self._since_s = None

    def waited_s(self, now_s: float) -> float:
        """The time of all waits; 0 while the server works, because its thread would not end at once."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._waited_s + now_s - since_s

    def cut(self) -> None:
        """Ends the wait with an error in the connection's thread."""
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: Address, handler: Any) -> None:
        self.address_family = _family_of(address[0])
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, _Connection] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection above the limit replaces a slow one, or is closed."""
        with self._lock:
            admitted = self._make_room(list(self._connections.values()), CONNECTIONS_MAX)
            if admitted:
                self._connections[request] = _Connection(request)
        if admitted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def connection(self, request: socket.socket) -> _Connection:
        """That of a handler."""
        with self._lock:
            # One that was cut is not in the table any more.
            return self._connections.get(request) or _Connection(request)

    def admit_large(self, connection: _Connection) -> bool:
        """Whether a connection may have a large answer now."""
        with self._lock:
            admitted = self._make_room([one for one in self._connections.values() if one.is_large], LARGE_MAX)
            connection.is_large = admitted
        return admitted

    def _make_room(self, connections: list[_Connection], limit: int) -> bool:
        """Whether there is room for one more, if need be after a cut. The caller has the lock."""
        if len(connections) < limit:
            return True
        now_s = time.monotonic()
        slowest = max(connections, key=lambda one: one.waited_s(now_s))
        if slowest.waited_s(now_s) < SLOW_S:
            return False
        slowest.cut()
        del self._connections[slowest.request]
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of ours."""
        log.debug("a request to the HTTP listener failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    observation: Observation
    server_version, sys_version = "Ottla", ""
    timeout = TIMEOUT_S
    server: _Server
    _ends: threading.Timer
    _connection: _Connection

    def setup(self) -> None:
        """A timeout of the socket is of one read: a client that sends a byte now and then would keep its connection, and probes out."""
        super().setup()
        self._connection = self.server.connection(self.request)
        self._end_after(TIMEOUT_S)

    def finish(self) -> None:
        self._ends.cancel()
        super().finish()

    def _end_after(self, duration_s: float) -> None:
        self._ends = threading.Timer(duration_s, self._connection.cut)
        self._ends.daemon = True
        self._ends.start()

    def do_GET(self) -> None:
        self._connection.work()
        self._ends.cancel()
        self._end_after(ANSWER_S)
        path, _, query = self.path.partition("?")
        if path == "/health/live":
            reason = self.observation.alive()
            self._answer(503 if reason else 200, {"status": "down" if reason else "up", "reasons": [reason] if reason else []})
        elif path == "/health/ready":
            reasons = self.observation.not_ready()
            self._answer(503 if reasons else 200, {"status": "not ready" if reasons else "ready", "reasons": reasons})
        elif path not in PATHS:
            self._answer(404, {"status": "not found", "paths": PATHS})
        elif not self.server.admit_large(self._connection):
            self._answer(503, {"status": "busy", "reasons": [f"{LARGE_MAX} other clients are being answered; ask again"]})
        elif path == "/metrics":
            self._metrics()
        elif path == "/timeline":
            self._timeline(query)
        else:
            self._segments(query)

    def _segments(self, query: str) -> None:
        given = dict(parse_qsl(query))
        topic, number = given.get("topic", ""), given.get("partition", "")
        if not topic or not number.isascii() or not number.isdecimal() or len(number) > 9:
            self._answer(400, {"status": "wrong query", "reasons": ["expected topic=TOPIC&partition=NUMBER"]})
            return
        with self.observation.lock:
            found = list(segments_of(self.observation.brokers, TopicPartition(topic, int(number)), Pace()))
            body = msgspec.json.encode({"replicas": found})
        self._send(200, body + b"\n")

    def _timeline(self, query: str) -> None:
        try:
            asked = query_of(query)
        except WrongQuery as error:
            self._answer(400, {"status": "wrong query", "reasons": [str(error)]})
            return
        # One at a time, as for metrics: threads together would hold up the event loop.
        with self.observation.lock:
            body = b"".join(timeline_json(self.observation.brokers, asked, Pace()))
        self._send(200, body)

    def _answer(self, code: int, content: Any) -> None:
        self._send(code, json.dumps(content).encode() + b"\n")

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._write(body)

    def _write(self, data: bytes) -> None:
        self._connection.wait()
        self.wfile.write(data)
        self._connection.work()

    def _metrics(self) -> None:
        openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS if openmetrics else TEXT)
        self.end_headers()
        pace = Pace()
        text = pieces(written(self.observation.families(pace), pace, openmetrics=openmetrics))
        while (piece := self._next_of(text)) is not None:
            self._write(piece.encode())

    def _next_of(self, text: Iterator[str]) -> str | None:
        with self.observation.lock:
            return next(text, None)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def pieces(lines: Iterator[str]) -> Iterator[str]:
    """Joins lines to pieces of about ``CHUNK_CHARS``."""
    gathered: list[str] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size > CHUNK_CHARS:
            yield "".join(gathered)
            gathered, size = [], 0
    yield "".join(gathered)


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
