"""Small requests: how many round trips a second, and how long one takes at a steady rate.

The steady load is open-loop: request number i is due at `start + i / rate` whatever happened before, and its latency counts from that
moment, not from when it was written. A server that stalls for 100 ms therefore gets 100 bad answers at 1,000 requests a second, not one
(that is what "no coordinated omission" means). Lateness of the load's own timer is counted too, the same for every server; the load
reports it, so that it can be told apart.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from typing import Any

from bench import frames, probe
from bench.load import Window

RECEIVE_SIZE = 1 << 16
DRAIN_S = 5.0


def round_trips(
    host: str, port: int, pid: int | list[int], topic: str, *, request: str, connections: int, seconds: float, warm_s: float = 0.5
) -> dict[str, Any]:
    """Closed loop: every connection sends its next request after the response to the last one."""
    lines = [_Line(host, port, _frame(request, topic)) for _ in range(connections)]
    _check_first(lines[0], request)
    by_fd = {line.sock.fileno(): line for line in lines}
    poller = select.epoll()
    for fd in by_fd:
        poller.register(fd, select.EPOLLIN)
    for line in lines:
        line.send(0.0)
    _turn(poller, by_fd, until=time.perf_counter() + warm_s)
    window = Window(pid)
    answered = _turn(poller, by_fd, until=window.open() + seconds)
    return {**window.close(), "requests": answered}


def _turn(poller: select.epoll, by_fd: dict[int, _Line], *, until: float) -> int:
    answered = 0
    while time.perf_counter() < until:
        for fd, _ in poller.poll(1.0):
            line = by_fd[fd]
            for _ in line.receive():
                answered += 1
                line.send(0.0)
    return answered


def steady(
    host: str,
    port: int,
    pid: int | list[int],
    topic: str,
    *,
    request: str,
    connections: int,
    rate: float,
    seconds: float,
    warm_s: float = 1.0,
) -> dict[str, Any]:
    """Open loop at `rate` requests a second over all connections together; latencies in milliseconds."""
    lines = [_Line(host, port, _frame(request, topic)) for _ in range(connections)]
    _check_first(lines[0], request)
    _schedule(lines, rate, warm_s)
    window = Window(pid)
    window.open()
    latencies, lateness = _schedule(lines, rate, seconds)
    return {
        **window.close(),
        "requests": len(latencies),
        **{f"{name}_ms": _percentile(latencies, share) for name, share in PERCENTILES.items()},
        "load_lateness_p50_ms": _percentile(lateness, 0.5),
        "load_lateness_p99_ms": _percentile(lateness, 0.99),
    }


PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999, "max": 1.0}


def _schedule(lines: list[_Line], rate: float, seconds: float) -> tuple[list[float], list[float]]:
    """Run the schedule once; returns latencies and the load's own lateness, both in milliseconds."""
    latencies: list[float] = []
    lateness: list[float] = []
    by_socket = {line.sock: line for line in lines}
    count = int(rate * seconds)
    began = time.perf_counter() + 0.01
    sent = 0
    while len(latencies) < count:
        now = time.perf_counter()
        while sent < count and (due := began + sent / rate) <= now:
            lateness.append((now - due) * 1000)
            lines[sent % len(lines)].send(due)
            sent += 1
            now = time.perf_counter()
        wait_s = began + sent / rate - now if sent < count else began + count / rate + DRAIN_S - now
        if sent == count and wait_s <= 0:
            raise frames.RequestFailed(f"{count - len(latencies)} of {count} answers did not come within {DRAIN_S} s")
        # select() and not poll(): its timeout is in microseconds, and poll's in milliseconds would round a 1 ms schedule away.
        for sock in select.select(by_socket, (), (), max(0.0, wait_s))[0]:
            answered = by_socket[sock].receive()
            now = time.perf_counter()
            latencies.extend((now - due) * 1000 for due in answered)
    return latencies, lateness


class _Line:
    """One connection, its frame, and the due times of the requests in flight."""

    def __init__(self, host: str, port: int, frame: bytearray) -> None:
        self.sock = socket.create_connection((host, port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame = frame
        self.reply_size = 0
        self._due: deque[float] = deque()
        self._sent = self._answered = 0
        self._received = bytearray()

    def send(self, due: float) -> None:
        frames.stamp(self.frame, self._sent)
        self._due.append(due)
        self._sent += 1
        self.sock.sendall(self.frame)

    def receive(self) -> list[float]:
        """Read once; returns the due times of the requests that were answered."""
        part = self.sock.recv(RECEIVE_SIZE)
        if not part:
            raise ConnectionError("the server closed the connection")
        self._received += part
        done = []
        while len(self._received) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._received)
            if len(self._received) < 4 + size:
                break
            if correlation_id != self._answered & 0x7FFFFFFF:
                raise frames.RequestFailed(f"answer {correlation_id} came where {self._answered} was due")
            if self.reply_size and size != self.reply_size:
                raise frames.RequestFailed(f"an answer of {size} bytes came where all had {self.reply_size}")
            self._answered += 1
            done.append(self._due.popleft())
            del self._received[: 4 + size]
        return done


def _frame(request: str, topic: str) -> bytearray:
    match request:
        case "metadata":
            return frames.metadata_frame(topic)
        case "produce acks=1":
            return frames.produce_frame(topic, [0], frames.batch_of(100, 200).data, acks=1)
        case "produce acks=all":
            return frames.produce_frame(topic, [0], frames.batch_of(100, 200).data, acks=-1)
        case _:
            raise ValueError(f"no such request: {request}")


def _check_first(line: _Line, request: str) -> None:
    """Check the first response; later ones only need the same size."""
    line.sock.sendall(line.frame)
    reply = probe.receive(line.sock)
    if request == "metadata":
        frames.check_metadata(reply)
    elif struct.unpack_from(">h", reply, len(reply) - 6 - frames.PRODUCED_PARTITION_SIZE + 4)[0]:
        raise frames.RequestFailed(f"{request} was answered with an error")
    line.reply_size = len(reply)


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)
