"""What the connections of a process share: limits, memory, one receive buffer, counters, and the clock that cuts them off."""

import asyncio
import math
from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from ottla.base.units import MINUTE_MS, SECOND_MS, KiB, MiB
from ottla.net.buffers import BufferPool, RequestMemory

#: Bytes one read takes from a connection that is not in the middle of a frame.
WINDOW_BYTES = 64 * KiB
#: Connections up to which each keeps the second descriptor that sendfile needs; with more, they give it back after each answer.
DUPLICATES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one peer, and all of them, may take. Each is an option of the server, where it is explained."""

    frame_bytes_max: int = 100 * MiB
    first_frame_bytes_max: int = 2 * MiB
    request_memory_bytes: int = 256 * MiB
    connections_max: int = 20_000
    connections_per_host_max: int = 2_000
    #: -1: never.
    idle_ms: int = 10 * MINUTE_MS
    read_timeout_ms: int = 30 * SECOND_MS
    write_buffer_bytes_max: int = MiB
    #: In all connections together.
    answer_bytes_max: int = 256 * MiB
    write_timeout_ms: int = 30 * SECOND_MS


@dataclass(slots=True)
class Traffic:
    """Plain counters since the start."""

    accepted: int = 0
    refused: int = 0
    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    #: Connections that we closed, by kind of reason.
    cut: Counter[str] = field(default_factory=Counter)


class Timed(Protocol):
    """A connection as the clock sees it."""

    #: Loop time at which it has been silent, or has dragged out a frame, for too long; infinite while its request is in work.
    read_deadline: float

    def expire(self) -> None:
        """The deadline is over."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Answer bytes that wait in memory for the peer to take them."""
        ...

    def cut(self, kind: str) -> None:
        """Closes at once."""
        ...

    def check_progress(self, now: float) -> bool:
        """Whether something still waits to be sent; closes the connection when its peer takes nothing."""
        ...


class Commons:
    """Shared by all servers of a process; belongs to one loop."""

    def __init__(self, limits: Limits, executor: Executor) -> None:
        """``executor`` runs what may wait for a disk. Call on the loop."""
        self.limits = limits
        self.executor = executor
        self.memory = RequestMemory(limits.request_memory_bytes)
        self.buffers = BufferPool()
        #: Where every read outside a large frame goes. A connection takes out of it what it needs before the next one reads.
        self.scratch = memoryview(bytearray(WINDOW_BYTES))
        self.traffic = Traffic()
        #: Open connections, and those of them to which something waits to be sent.
        self.connections: dict[Timed, None] = {}
        self.writing: dict[Timed, None] = {}
        #: Connections from each address; no entry is 0.
        self.per_host: dict[str, int] = {}
        #: Bytes received ahead by connections whose request is in work.
        self.held_bytes = 0
        self.idle_s = math.inf if limits.idle_ms < 0 else limits.idle_ms / 1000
        self.read_timeout_s = limits.read_timeout_ms / 1000
        self.write_timeout_s = limits.write_timeout_ms / 1000
        self._sweep_interval_s = min(1.0, self.idle_s / 4, self.read_timeout_s / 4, self.write_timeout_s / 4)
        self._loop = asyncio.get_running_loop()
        self._sweep = self._loop.call_later(self._sweep_interval_s, self._swept)

    def window(self, held: int) -> memoryview:
        """Where a connection that holds ``held`` bytes reads next: less when many connections hold much."""
        if self.held_bytes > self.limits.request_memory_bytes:
            return self.scratch[: 4 * KiB]
        return self.scratch[: WINDOW_BYTES - held] if held else self.scratch

    def admit(self, host: str) -> bool:
        """Counts a new connection, unless there are too many."""
        here = self.per_host.get(host, 0)
        if len(self.connections) >= self.limits.connections_max or here >= self.limits.connections_per_host_max:
            self.traffic.refused += 1
            return False
        self.per_host[host] = here + 1
        self.traffic.accepted += 1
        return True

    def dismiss(self, host: str) -> None:
        """An admitted connection is gone."""
        left = self.per_host[host] - 1
        if left:
            self.per_host[host] = left
        else:
            del self.per_host[host]

    def close(self) -> None:
        self._sweep.cancel()

    def _swept(self) -> None:
        """One look at every connection: a timer of its own for each would cost more than all of them together."""
        now = self._loop.time()
        for connection in [connection for connection in self.connections if connection.read_deadline < now]:
            connection.expire()
        for connection in list(self.writing):
            if not connection.check_progress(now):
                self.writing.pop(connection, None)
        self._bound_answers()
        self._sweep = self._loop.call_later(self._sweep_interval_s, self._swept)

    def _bound_answers(self) -> None:
        """Closes those connections for which most waits, while all of them together have too much."""
        waiting = {connection: connection.waiting_bytes for connection in self.writing}
        total = sum(waiting.values())
        if total <= self.limits.answer_bytes_max:
            return
        for connection in sorted(waiting, key=lambda each: waiting[each], reverse=True):
            connection.cut("too many answers wait")
            total -= waiting[connection]
            if total <= self.limits.answer_bytes_max:
                return
