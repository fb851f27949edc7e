"""The HTTP listener of a server (``--http``): metrics, health, and the timelines of its brokers.

====================  ============================================================================================================
``GET /metrics``      all metrics; Prometheus' text format, or OpenMetrics if the client accepts it
``GET /health/live``  200 while the event loop runs: it ticked in the last 20 s, or the start is still in progress
``GET /health/ready`` 200 while clients can be served: every broker is registered, knows a controller and leads its partitions.
                      503 with the reasons otherwise
``GET /timeline``     the latest changes of groups, partitions, transactions and the controller; see ``timeline.py``
``GET /segments``     the segments of a partition's replicas here; see ``segments.py``
====================  ============================================================================================================

It has threads of its own, since a scrape takes long and a probe must be answered while the event loop does not run. One collection runs
at a time; another scrape waits for it. There is no authentication: listen on a loopback address, or where only the monitoring can connect.
"""

import contextlib
import json
import logging
import socket
import threading
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

#: Connections at once, and the time that a client has for its request, and for each piece of the answer.
CONNECTIONS_MAX = 16
TIMEOUT_S = 10.0
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: Address, handler: Any) -> None:
        self.address_family = _family_of(address[0])
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection above the limit is closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of ours."""
        log.debug("a request to the HTTP listener failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    observation: Observation
    server_version, sys_version = "Ottla", ""
    timeout = TIMEOUT_S
    _ends: threading.Timer

    def setup(self) -> None:
        """A timeout of the socket is of one read: a client that sends a byte now and then would keep its connection, and probes out."""
        super().setup()
        self._end_after(TIMEOUT_S)

    def finish(self) -> None:
        self._ends.cancel()
        super().finish()

    def _end_after(self, duration_s: float) -> None:
        self._ends = threading.Timer(duration_s, self._end)
        self._ends.daemon = True
        self._ends.start()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._ends.cancel()
        self._end_after(ANSWER_S)
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            self._metrics()
        elif path == "/health/live":
            reason = self.observation.alive()
            self._answer(503 if reason else 200, {"status": "down" if reason else "up", "reasons": [reason] if reason else []})
        elif path == "/health/ready":
            reasons = self.observation.not_ready()
            self._answer(503 if reasons else 200, {"status": "not ready" if reasons else "ready", "reasons": reasons})
        elif path == "/timeline":
            self._timeline(query)
        elif path == "/segments":
            self._segments(query)
        else:
            self._answer(404, {"status": "not found", "paths": PATHS})

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
        self.wfile.write(body)

    def _metrics(self) -> None:
        openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS if openmetrics else TEXT)
        self.end_headers()
        pace = Pace()
        with self.observation.lock:
            for piece in pieces(written(self.observation.families(pace), pace, openmetrics=openmetrics)):
                self.wfile.write(piece.encode())

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
