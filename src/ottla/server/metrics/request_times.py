"""Times of requests, from their arrival to their answer: histograms by API, and lines about slow requests.

The clock is read twice per request: when it is decoded and when it is answered. A request that is answered in the step of its arrival is
``local``; one that waited for replicas, disks, other members or bytes is ``remote``. The time for which a client above a quota is muted is
``throttle``; it is known without a clock, and requests that are not throttled cost nothing there.

Kafka's other stages have no counterpart. There is no request queue: a request is handled in the turn of the loop in which its last byte is
read. There is no response queue: an answer is passed to the socket in the step that makes it, unless an earlier request of the connection
is not answered yet. The time to send an answer is not measured: two more readings of the clock and a histogram cost
about 1 µs per answer.

A slow request is logged, at most ``LINES_MAX`` times per ``WINDOW_MS``. The time that a client allows a fetch to wait does not count, and
JoinGroup and SyncGroup wait for other members, so they are never slow.
"""

import logging
from typing import Any

from ottla.broker.events import RequestArrived
from ottla.server.metrics.histogram import Histogram
from ottla.wire.messages import API

log = logging.getLogger("ottla.request")

LINES_MAX = 10
WINDOW_MS = 60_000
FETCH, JOIN_GROUP, SYNC_GROUP = 1, 11, 14
TEXT_MAX = 200


class RequestTimes:
    """Times of the requests of one broker."""

    __slots__ = ("_left_out", "_lines", "_since_ms", "broker_id", "handling", "local", "remote", "slow_ns", "throttle")

    def __init__(self, broker_id: int, slow_ms: int) -> None:
        self.broker_id = broker_id
        #: The request whose step is in progress.
        self.handling: RequestArrived[Any] | None = None
        #: By API key.
        self.local: dict[int, Histogram] = {}
        self.remote: dict[int, Histogram] = {}
        #: Of throttled requests only.
        self.throttle: dict[int, Histogram] = {}
        self.set_slow(slow_ms)
        self._since_ms = 0
        self._lines = 0
        self._left_out = 0

    def set_slow(self, slow_ms: int) -> None:
        """Requests that take longer are logged; -1: none."""
        self.slow_ns = slow_ms * 1_000_000 if slow_ms >= 0 else 1 << 62

    def answered(self, call: RequestArrived[Any], now_ns: int) -> None:
        """A request that arrived over a connection is answered."""
        ns = now_ns - call.arrived_ns
        times = self.local if call is self.handling else self.remote
        found = times.get(call.api_key)
        if found is None:
            found = times[call.api_key] = Histogram()
        found.observe(ns)
        if ns > self.slow_ns:
            self._slow(call, ns, now_ns // 1_000_000)

    def throttled(self, api_key: int, throttle_ms: int) -> None:
        """The client of a request is muted for this time."""
        found = self.throttle.get(api_key)
        if found is None:
            found = self.throttle[api_key] = Histogram()
        found.observe(throttle_ms * 1_000_000)

    def tick(self, now_ms: int) -> None:
        """Ends the window when its time is over, and logs how many lines were left out."""
        if now_ms - self._since_ms < WINDOW_MS:
            return
        if self._left_out:
            fields = {"broker": self.broker_id, "count": self._left_out}
            log.info("%d more requests were slow in the last %d s", self._left_out, WINDOW_MS // 1000, extra={"fields": fields})
        self._since_ms, self._lines, self._left_out = now_ms, 0, 0

    def _slow(self, call: RequestArrived[Any], ns: int, now_ms: int) -> None:
        if call.api_key in (JOIN_GROUP, SYNC_GROUP):
            return
        allowed_ms = call.body.max_wait_ms if call.api_key == FETCH else 0
        if ns - allowed_ms * 1_000_000 <= self.slow_ns:
            return
        self.tick(now_ms)
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        name = API[call.api_key].name
        fields = {
            "broker": self.broker_id,
            "api": name,
            "version": call.api_version,
            "ms": ns // 1_000_000,
            "waited": call is not self.handling,
            "size": call.size,
            "client_id": (call.client_id or "")[:TEXT_MAX],
            "host": call.origin.host,
            "listener": call.origin.listener,
            "principal": call.origin.principal,
        }
        log.info("%s took %d ms", name, ns // 1_000_000, extra={"fields": fields})
