"""State shared by all server connections of a process: limits, memory, one receive buffer, counters, timeouts.

New connections are accepted at most at ``connection_rate`` per second, of the process and of each listener. Without a token the listener
pauses, so clients wait in the kernel's queue (KIP-612). A listener may also have its own maximum of open connections (KIP-402).

An address can have a quota of connections per second. A connection above it is accepted and closed after the throttle time, unserved: so a
client that reconnects at once is slowed down, and those of other addresses are not.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from ottla.base.sampled_rate import SampledRate, Window
from ottla.base.units import MINUTE_MS, SECOND_MS, KiB, MiB
from ottla.net.buffers import BufferPool, RequestMemory

#: Size of a read from a connection that is not inside a large frame.
WINDOW_BYTES = 64 * KiB
#: Up to so many connections, each keeps its second descriptor for sendfile; above, it closes the descriptor after each answer.
DUPLICATES_MAX = 1024
#: Addresses whose rate of connections is known, and the time after which that of an idle one is dropped.
ADDRESSES_MAX, ADDRESS_IDLE_S = 10_000, 3_600.0
#: In the rates of connections: every other address.
OTHERS = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits per connection and in total. Each is a server option, which documents it."""

    frame_bytes_max: int = 100 * MiB
    first_frame_bytes_max: int = 2 * MiB
    request_memory_bytes: int = 256 * MiB
    connections_max: int = 20_000
    connections_per_host_max: int = 2_000
    #: By host name or address, instead of ``connections_per_host_max``.
    connections_of_hosts: tuple[tuple[str, int], ...] = ()
    #: New connections per second.
    connection_rate: int = 2**31 - 1
    #: -1: no limit.
    idle_ms: int = 10 * MINUTE_MS
    read_timeout_ms: int = 30 * SECOND_MS
    write_buffer_bytes_max: int = MiB
    #: Of all connections together.
    answer_bytes_max: int = 256 * MiB
    write_timeout_ms: int = 30 * SECOND_MS
    handshake_timeout_ms: int = 10 * SECOND_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener, besides those of the process."""

    connections_max: int = 2**31 - 1
    #: New connections per second.
    connection_rate: int = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationLimits:
    """Limits of a connection before it is authenticated."""

    frame_bytes_max: int
    timeout_ms: int
    #: Of all connections together.
    bytes_max: int = 64 * MiB


class TokenBucket:
    """Limits a rate: one second of tokens, as Kafka's quota with one sample."""

    def __init__(self, rate: int) -> None:
        """``rate``: tokens per second."""
        self._rate = rate
        self._tokens = float(rate)
        self._filled_s = 0.0

    def set_rate(self, rate: int) -> None:
        self._rate = rate
        self._tokens = min(self._tokens, float(rate))

    def delay_s(self, now_s: float) -> float:
        """Takes a token and returns 0; without one, returns the time until there is one."""
        rate = self._rate
        self._tokens = min(float(rate), self._tokens + (now_s - self._filled_s) * rate)
        self._filled_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0.0

    def give_back(self) -> None:
        """The token was not used."""
        self._tokens += 1


@dataclass(slots=True)
class Traffic:
    """Plain counters since the start."""

    accepted: int = 0
    refused: int = 0
    #: Refused because their address exceeded its quota of connections per second.
    throttled: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    #: Exchanges of SASL that succeeded, repeated ones included, and that failed; sessions that were not renewed in time.
    authentications: int = 0
    failed_authentications: int = 0
    expired_sessions: int = 0
    #: Connections that we closed, by reason.
    cut: Counter[str] = field(default_factory=Counter)


class Timed(Protocol):
    """A connection with timeouts."""

    #: Loop time at which it expires: idle, or inside a frame, for too long. Infinite while a request is being handled.
    read_deadline: float

    @property
    def listener(self) -> str:
        """Name of its listener."""
        ...

    def expire(self) -> None:
        """The read deadline has passed."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Answer bytes in memory that the peer has not read."""
        ...

    def cut(self, kind: str) -> None:
        """Closes at once."""
        ...

    def check_progress(self, now: float) -> bool:
        """Whether bytes wait to be sent. Closes the connection when its peer reads nothing."""
        ...


class ConnectionContext:
    """Shared by all listeners of a process; belongs to one loop."""

    def __init__(self, limits: Limits, executor: Executor) -> None:
        """``executor`` runs operations that may wait for a disk. Call on the loop."""
        self.limits = limits
        self.executor = executor
        #: By address, as ``connections_of_hosts``, with names resolved.
        self.host_limits: dict[str, int] = dict(limits.connections_of_hosts)
        #: For new connections of all listeners.
        self.accepts = TokenBucket(limits.connection_rate)
        #: Connections per second by address, or OTHERS.
        self.address_rates: dict[str, float] = {}
        self._address_window = Window()
        #: Rate of each address with a quota, and the time of its last connection; the one that is idle for longest first.
        self._address_usages: dict[str, tuple[SampledRate, float]] = {}
        self.memory = RequestMemory(limits.request_memory_bytes)
        self.buffers = BufferPool()
        #: Buffer of every read outside a large frame. A connection consumes or copies its bytes before the next one reads.
        self.scratch = memoryview(bytearray(WINDOW_BYTES))
        self.traffic = Traffic()
        #: Open connections, and those of them with unsent bytes.
        self.connections: dict[Timed, None] = {}
        self.writing: dict[Timed, None] = {}
        #: Admitted connections in their TLS handshake.
        self.handshaking = 0
        #: Number of connections from each address; never 0.
        self.per_host: dict[str, int] = {}
        #: Bytes received ahead by connections whose request is being handled.
        self.held_bytes = 0
        #: Bytes of frames being received from connections that are not authenticated.
        self.unauthenticated_bytes = 0
        self.idle_s = math.inf if limits.idle_ms < 0 else limits.idle_ms / 1000
        self.read_timeout_s = limits.read_timeout_ms / 1000
        self.write_timeout_s = limits.write_timeout_ms / 1000
        self._sweep_interval_s = min(1.0, self.idle_s / 4, self.read_timeout_s / 4, self.write_timeout_s / 4)
        self._loop = asyncio.get_running_loop()
        self._sweep = self._loop.call_later(self._sweep_interval_s, self._swept)

    def set_limits(self, limits: Limits) -> None:
        """Adopts limits of the number and rate of connections; connections that are open stay open."""
        self.accepts.set_rate(limits.connection_rate)
        self.limits = limits

    def set_address_rates(self, rates: Mapping[str, float], window: Window) -> None:
        """Adopts quotas of connections per second, by address, or OTHERS for each other one."""
        self.address_rates = dict(rates)
        self._address_window = window
        self._address_usages = {host: usage for host, usage in self._address_usages.items() if self._rate_of(host) is not None}

    def _rate_of(self, host: str) -> float | None:
        rate = self.address_rates.get(host)
        return self.address_rates.get(OTHERS) if rate is None else rate

    def address_throttle_ms(self, host: str) -> int:
        """Counts a connection; returns the throttle time, at most one sample. If there is one, the connection does not count."""
        bound = self._rate_of(host)
        if bound is None:
            return 0
        now_s = self._loop.time()
        now_ms = int(now_s * 1000)
        known = self._address_usages.pop(host, None)
        if known is None:
            while len(self._address_usages) >= ADDRESSES_MAX:
                del self._address_usages[next(iter(self._address_usages))]
        rate = SampledRate(self._address_window) if known is None else known[0]
        self._address_usages[host] = rate, now_s
        throttle_ms = min(rate.throttle_ms(bound, now_ms, more=1), self._address_window.sample_ms)
        if throttle_ms:
            self.traffic.throttled += 1
        else:
            rate.record(1, now_ms)
        return throttle_ms

    def window(self, held: int) -> memoryview:
        """The read buffer of a connection that holds ``held`` bytes: small when all connections together hold much."""
        if self.held_bytes > self.limits.request_memory_bytes:
            return self.scratch[: 4 * KiB]
        return self.scratch[: WINDOW_BYTES - held] if held else self.scratch

    def admit(self, host: str, *, protected: str = "") -> bool:
        """Counts a new connection. False: it would exceed a limit. ``protected`` is the listener between brokers, for a connection to it,
        which takes the place of another. Source: KIP-402.
        """
        count = self.per_host.get(host, 0)
        per_host = self.host_limits.get(host, self.limits.connections_per_host_max)
        full = len(self.connections) + self.handshaking >= self.limits.connections_max and not (protected and self._make_room(protected))
        if full or count >= per_host:
            self.traffic.refused += 1
            return False
        self.per_host[host] = count + 1
        self.traffic.accepted += 1
        return True

    def _make_room(self, protected: str) -> bool:
        """Closes the connection that is idle for longest, or else any, of another listener. False: there is none."""
        others = [connection for connection in self.connections if connection.listener != protected]
        if not others:
            return False
        min(others, key=lambda connection: connection.read_deadline).cut("room for a broker")
        return True

    def dismiss(self, host: str) -> None:
        """An admitted connection is closed."""
        left = self.per_host[host] - 1
        if left:
            self.per_host[host] = left
        else:
            del self.per_host[host]

    def close(self) -> None:
        self._sweep.cancel()

    def _swept(self) -> None:
        """Checks every connection; one timer per connection would cost more."""
        now = self._loop.time()
        for connection in [connection for connection in self.connections if connection.read_deadline < now]:
            connection.expire()
        for connection in list(self.writing):
            if not connection.check_progress(now):
                self.writing.pop(connection, None)
        self._bound_answers()
        while self._address_usages:
            host = next(iter(self._address_usages))
            if self._address_usages[host][1] > now - ADDRESS_IDLE_S:
                break
            del self._address_usages[host]
        self._sweep = self._loop.call_later(self._sweep_interval_s, self._swept)

    def _bound_answers(self) -> None:
        """Closes the connections with most unsent bytes until the total is within its limit."""
        waiting = {connection: connection.waiting_bytes for connection in self.writing}
        total = sum(waiting.values())
        if total <= self.limits.answer_bytes_max:
            return
        for connection in sorted(waiting, key=lambda each: waiting[each], reverse=True):
            connection.cut("too many answers wait")
            total -= waiting[connection]
            if total <= self.limits.answer_bytes_max:
                return
