"""Memory of a real process after a client's requests. `python -m chaos.memory` measures the same with larger numbers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from plain_kafka import answer, ask, frame, string
from serving import Serving

pytestmark = [pytest.mark.server]
MIB = 1 << 20
INVALID_REQUEST, COORDINATOR_NOT_READY = 42, (14, 15, 16)
METADATA = bytes(60_000_000)
REQUEST_MEMORY_BYTES = 64 * MIB


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    settings = {"queued.max.request.bytes": str(REQUEST_MEMORY_BYTES), "ottla.memory.trim.interval.ms": "500"}
    with Serving(tmp_path / "data", settings=settings) as served:
        yield served


def peak_bytes(server: Serving) -> int:
    """The most memory the process ever had."""
    (line,) = [line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def join_group(group: str, metadata: bytes) -> bytes:
    body = string(group) + struct.pack(">ii", 1_800_000, 60_000) + string("") + string("consumer") + struct.pack(">i", 1)
    return frame(11, 3, body + string("range") + struct.pack(">i", len(metadata)) + metadata)


def coordinated(server: Serving) -> None:
    """Waits until groups have a coordinator."""
    deadline = time.monotonic() + 20
    heartbeat = frame(12, 0, string("g") + struct.pack(">i", 1) + string("m"))
    while struct.unpack_from(">h", ask(server.address, frame(10, 0, string("g"))))[0] in COORDINATOR_NOT_READY:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while struct.unpack_from(">h", ask(server.address, heartbeat))[0] in COORDINATOR_NOT_READY:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_large_metadata_of_members_is_refused_and_leaves_no_memory(server: Serving) -> None:
    """As was found: 12 requests of 95 MB took 2.3 GB, of which 1.2 GB stayed after the connections were gone."""
    coordinated(server)
    before, request = server.resident_bytes(), join_group("g", METADATA)
    with ExitStack() as ending:
        socks = []
        for _ in range(12):
            sock = ending.enter_context(socket.create_connection(server.address, timeout=30))
            sock.sendall(frame(18, 0, b""))
            answer(sock)
            socks.append(sock)
        for sock in socks:
            sock.sendall(request)
        codes = [struct.unpack_from(">h", answer(sock), 8)[0] for sock in socks]
    assert codes == [INVALID_REQUEST] * 12
    assert peak_bytes(server) - before < 5 * len(METADATA), "a frame in memory, what is decoded of it, and the next frame"
    deadline = time.monotonic() + 10
    while (left := server.resident_bytes() - before) > 32 * MIB:
        assert time.monotonic() < deadline, f"{left >> 20} MiB are still held"
        time.sleep(0.1)
    assert "ottla.group.member.max.bytes" in server.logs()
