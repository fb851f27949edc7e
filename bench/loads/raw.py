"""Prepared frames on a raw socket: the cheapest possible client in Python, so the server is the bottleneck.

Produce keeps five requests in flight, the default of Kafka's clients. Fetch has one in flight and requests 1 MiB per partition, also
the clients' default; it reads a topic repeatedly until the time is over, and drops the bytes.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from bench import frames
from bench.load import Window

IN_FLIGHT = 5
PARTITION_BYTES_MAX = 1 << 20
RECEIVE_SIZE = 1 << 16
REPLY_BYTES_MAX = 64 << 20
TIMEOUT_S = 60


def produce(
    host: str,
    port: int,
    pid: int | list[int],
    topic: str,
    *,
    partitions: int,
    value_size: int,
    batch_size: int,
    acks: int,
    seconds: float,
    bytes_max: int,
    warm_s: float = 0.0,
) -> dict[str, Any]:
    """Send batches until `seconds` have passed or `bytes_max` of values are acknowledged, whichever is first."""
    batch = frames.batch_of(value_size, batch_size)
    frame = frames.produce_frame(topic, range(partitions), batch.data, acks=acks)
    with connect(host, port) as sock:
        pump = _Pump(sock, frame, topic, partitions)
        if warm_s:
            pump.run(until=time.perf_counter() + warm_s, requests_max=1 << 60)
        window = Window(pid)
        per_request = batch.value_bytes * partitions
        began = window.open()
        requests = pump.run(until=began + seconds, requests_max=max(1, bytes_max // per_request))
        measured = window.close()
    return {
        **measured,
        "requests": requests,
        "records": requests * batch.records * partitions,
        "bytes": requests * per_request,
        "batch_bytes": len(batch.data),
        "records_total": pump.sent * batch.records * partitions,
    }


class _Pump:
    """One connection with a full pipeline."""

    def __init__(self, sock: socket.socket, frame: bytearray, topic: str, partitions: int) -> None:
        self._sock, self._frame, self._topic, self._partitions = sock, frame, topic, partitions
        self._received = bytearray()
        self.sent = 0
        self._answered = 0

    def run(self, *, until: float, requests_max: int) -> int:
        """Send until the deadline or the count, wait for every response, and return their number."""
        sock, frame = self._sock, self._frame
        first = self.sent
        last = first + requests_max
        while self.sent < last and time.perf_counter() < until:
            while self.sent - self._answered < IN_FLIGHT and self.sent < last:
                frames.stamp(frame, self.sent)
                sock.sendall(frame)
                self.sent += 1
            self._take_answers()
        while self._answered < self.sent:
            self._take_answers()
        return self.sent - first

    def _take_answers(self) -> None:
        part = self._sock.recv(RECEIVE_SIZE)
        if not part:
            raise ConnectionError("the server closed the connection")
        self._received += part
        position = 0
        while len(self._received) - position >= 4:
            (size,) = struct.unpack_from(">i", self._received, position)
            if len(self._received) - position - 4 < size:
                break
            (correlation_id,) = struct.unpack_from(">i", self._received, position + 4)
            if correlation_id != self._answered & 0x7FFFFFFF:
                raise frames.RequestFailed(f"answer {correlation_id} came where {self._answered} was due")
            frames.check_produced(self._received[position + 4 : position + 4 + size], self._topic, self._partitions)
            self._answered += 1
            position += 4 + size
        del self._received[:position]


def fetch(
    host: str, port: int, pid: int | list[int], topic: str, *, partitions: int, value_size: int, seconds: float, warm_s: float = 0.5
) -> dict[str, Any]:
    """Read every partition from offset 0 to its end, repeatedly, for `seconds`."""
    buffer = memoryview(bytearray(REPLY_BYTES_MAX))
    with connect(host, port) as sock:
        reader = _Reader(sock, topic, partitions, buffer)
        reader.run(until=time.perf_counter() + warm_s)
        window = Window(pid)
        requests, records, record_bytes = reader.run(until=window.open() + seconds)
        measured = window.close()
    return {**measured, "requests": requests, "records": records, "bytes": records * value_size, "record_bytes": record_bytes}


class _Reader:
    """One connection that fetches a topic repeatedly."""

    def __init__(self, sock: socket.socket, topic: str, partitions: int, buffer: memoryview) -> None:
        self._sock, self._topic, self._buffer = sock, topic, buffer
        self._offsets = dict.fromkeys(range(partitions), 0)

    def run(self, *, until: float) -> tuple[int, int, int]:
        requests = records = record_bytes = 0
        while time.perf_counter() < until:
            self._sock.sendall(frames.fetch_frame(self._topic, self._offsets, partition_bytes_max=PARTITION_BYTES_MAX, wait_ms=10))
            got = frames.fetched(self._reply(), self._offsets)
            requests += 1
            progressed = False
            for partition, part in got.items():
                self._offsets[partition] = part.next_offset
                records += part.records
                record_bytes += part.record_bytes
                progressed = progressed or part.records > 0
            if not progressed:
                self._offsets = dict.fromkeys(self._offsets, 0)
        if not records:
            raise frames.RequestFailed(f"Fetch brought no records of {self._topic}")
        return requests, records, record_bytes

    def _reply(self) -> memoryview:
        size_bytes = self._buffer[:4]
        if self._sock.recv_into(size_bytes, 4, socket.MSG_WAITALL) != 4:
            raise ConnectionError("the server closed the connection")
        (size,) = struct.unpack(">i", size_bytes)
        reply = self._buffer[:size]
        if self._sock.recv_into(reply, size, socket.MSG_WAITALL) != size:
            raise ConnectionError("the server closed the connection in the middle of an answer")
        return reply


def connect(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A Python timeout makes the socket non-blocking, and MSG_WAITALL does not wait then: let the kernel handle the timeout.
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT_S, 0))
    return sock
