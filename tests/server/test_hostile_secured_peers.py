"""Hostile peers of a listener with TLS and SASL: each loses its connection, costs little, and others are not affected.

The long forms, with figures: ``python -m chaos.attacks``.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.attacks import Target, answer, fetch_request, fill, hello, properties
from chaos.cluster import free_port
from chaos.fuzz.secured import authenticated, frame_of, prepare

from ottla.wire import framing
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("hostile_peers")]

MIB = 1 << 20
#: Of connections before authentication, and of frames.
TIMEOUT_S = 2.0
PATIENCE_S = 8.0
METADATA = frame_of(MetadataRequest(topics=[]), 9, 1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Target]]:
    directory = tmp_path_factory.mktemp("secured")
    # For the certificates.
    prepare(directory)
    tls, clear = free_port(), free_port()
    config = directory / "attacks.properties"
    config.write_text(properties(directory, tls, clear).replace("timeout.ms=5000", f"timeout.ms={TIMEOUT_S * 1000:.0f}"))
    with Serving(directory / "data", arguments=["--config", str(config)], listen=False) as server:
        yield server, Target(tls, clear, str(directory / "tls" / "ca.pem"), server.pid)


@pytest.fixture(autouse=True)
def unharmed(served: tuple[Serving, Target]) -> Iterator[None]:
    """What must hold after every test."""
    server, target = served
    written = len(server.logs())
    yield
    with target.client() as sock:
        sock.sendall(METADATA)
        assert answer(sock)
    assert server.alive and server.pid == target.pid
    assert "Traceback" not in server.logs()[written:]


def before_tls(target: Target) -> tuple[socket.socket, bytes]:
    return socket.create_connection(("127.0.0.1", target.tls), timeout=PATIENCE_S), hello(target)


def in_handshake(target: Target) -> tuple[socket.socket, bytes]:
    sock, data = before_tls(target)
    sock.sendall(data)
    return sock, b"\x14\x03\x03\x00\x01\x01" * 100


def before_sasl(target: Target) -> tuple[socket.socket, bytes]:
    return target.encrypted(), struct.pack(">i", 10_000) + bytes(1_000)


def in_frame(target: Target) -> tuple[socket.socket, bytes]:
    return target.client(), struct.pack(">i", 10 * MIB) + bytes(1_000)


STAGES = (before_tls, in_handshake, before_sasl, in_frame)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_bytes_that_drip_buy_no_time_at_any_stage(
    served: tuple[Serving, Target], stage: Callable[[Target], tuple[socket.socket, bytes]]
) -> None:
    server, target = served
    before = server.resident_bytes()
    peers = [stage(target) for _ in range(20)]
    began_s = time.monotonic()
    dripping = list(peers)
    while dripping and time.monotonic() - began_s < PATIENCE_S:
        for index in reversed(range(len(dripping))):
            sock, data = dripping[index]
            try:
                sock.settimeout(0.001)
                sock.send(data[:1])
                dripping[index] = sock, data[1:]
                if sock.recv(4096) == b"":
                    del dripping[index]
            except TimeoutError:
                continue
            except OSError:
                del dripping[index]
        time.sleep(0.05)
    for sock, _ in peers:
        sock.close()
    assert not dripping, f"{len(dripping)} connections are open after {PATIENCE_S} s"
    assert time.monotonic() - began_s > TIMEOUT_S * 0.5, "not before their time"
    assert server.resident_bytes() - before < 30 * MIB, "announced bytes take no memory"


@pytest.mark.parametrize("encrypted", [False, True], ids=["plaintext", "tls"])
def test_an_idle_connection_takes_little_memory(served: tuple[Serving, Target], encrypted: bool) -> None:
    server, target = served
    count, limit = 300, 60 * 1024

    def connected() -> socket.socket:
        sock = target.client() if encrypted else socket.create_connection(("127.0.0.1", target.clear), timeout=PATIENCE_S)
        sock.sendall(METADATA)
        assert answer(sock)
        return sock

    # What the first ones take once.
    kept = [connected() for _ in range(50)]
    before = server.resident_bytes()
    kept += [connected() for _ in range(count)]
    growth = server.resident_bytes() - before
    for sock in kept:
        sock.close()
    assert growth < count * limit, f"{growth // count >> 10} KiB for each; 10,000 may take 600 MiB"


def test_a_storm_of_connections_from_one_address_leaves_nothing(served: tuple[Serving, Target]) -> None:
    server, target = served
    before = server.resident_bytes()
    for _ in range(2_000):
        socket.create_connection(("127.0.0.1", target.tls), timeout=PATIENCE_S).close()
    with target.client() as sock:
        sock.sendall(METADATA)
        assert answer(sock)
    assert server.resident_bytes() - before < 30 * MIB


def test_readers_that_never_read_lose_their_connections(served: tuple[Serving, Target]) -> None:
    _, target = served
    fill(target, 5)
    fetches = frame_of(fetch_request(), 12, 1) * 40
    peers = [authenticated(target.encrypted(), "good") for _ in range(20)]
    began_s = time.monotonic()
    open_peers = list(peers)
    while open_peers and time.monotonic() - began_s < PATIENCE_S * 2:
        for sock in list(open_peers):
            try:
                sock.settimeout(0.02)
                sock.sendall(fetches)
            except TimeoutError:
                continue
            except OSError:
                open_peers.remove(sock)
    for sock in peers:
        sock.close()
    assert not open_peers


def test_frames_that_announce_more_than_the_memory_delay_nobody_when_their_clients_leave(served: tuple[Serving, Target]) -> None:
    _, target = served
    peers = [target.client() for _ in range(60)]
    for sock in peers:
        sock.sendall(struct.pack(">i", 100 * MIB) + b"\0\0\0\x0c")
    time.sleep(0.3)
    before_s = cpu_s(target.pid)
    for sock in peers:
        sock.close()
    with target.client() as sock:
        sock.sendall(METADATA)
        assert answer(sock)
    # Each of them gets its share of memory before its end is seen. 60 times 100 MB of zeroes took 2 s.
    assert cpu_s(target.pid) - before_s < 1


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_request_about_20_000_topics_is_answered_in_order_while_others_are_served(served: tuple[Serving, Target]) -> None:
    _, target = served
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(20_000)]
    large = frame_of(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9, 1)
    with target.client() as greedy, target.client() as other:
        greedy.sendall(large + frame_of(MetadataRequest(topics=[]), 9, 2) + large)
        other.sendall(METADATA)
        assert answer(other)
        received = bytearray()
        while len(frames := whole_frames(received)) < 3:
            data = greedy.recv(MIB)
            assert data, "the broker closed the connection"
            received += data
    assert [struct.unpack_from(">i", frame)[0] for frame in frames] == [1, 2, 1]
    topics = [framing.decode_response(MetadataResponse, memoryview(frame), 9)[1].topics for frame in frames]
    assert [topic.name for topic in topics[0]] == [one.name for one in names]
    assert topics[0] == topics[2]
    assert topics[1] == []


def whole_frames(received: bytearray) -> list[bytes]:
    """The payloads of complete frames."""
    found, at = [], 0
    while at + 4 <= len(received):
        (size,) = struct.unpack_from(">i", received, at)
        if at + 4 + size > len(received):
            break
        found.append(bytes(received[at + 4 : at + 4 + size]))
        at += 4 + size
    return found
