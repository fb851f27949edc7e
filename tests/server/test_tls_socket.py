"""A TLS socket moves many records in one system call, within bounds of memory."""

import socket
import ssl
from collections.abc import Iterator

import pytest

from certificates import Certificate
from ottla.base.ssl_options import ListenerSslOptions
from ottla.net.tls import tls_socket
from ottla.net.tls.context import client_context, server_context
from ottla.net.tls.tls_socket import RECORD_BYTES, STEP_BYTES, TlsSocket

pytestmark = pytest.mark.server

AUTHORITY = Certificate.authority()
BROKER = AUTHORITY.issue("broker")
OWN = {"ssl.keystore.type": "PEM", "ssl.keystore.key": BROKER.key_pem(), "ssl.keystore.certificate.chain": BROKER.pem}
TRUSTED = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.pem}
SERVER = server_context(ListenerSslOptions.of(OWN), "none").context
CLIENT = client_context(ListenerSslOptions.of(TRUSTED)).context


class CountedSocket(socket.socket):
    """Counts the system calls that receive."""

    received = 0

    def recv_into(self, *arguments: object) -> int:
        self.received += 1
        return super().recv_into(*arguments)  # type: ignore[arg-type]


class Pair:
    """A server and a client whose handshake is complete."""

    def __init__(self) -> None:
        ends = socket.socketpair()
        self.counted = CountedSocket(fileno=ends[0].detach())
        for end in (self.counted, ends[1]):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.server, self.client = TlsSocket(self.counted, SERVER, None), TlsSocket(ends[1], CLIENT, "localhost")
        waiting = [self.client, self.server]
        while waiting:
            side = waiting.pop(0)
            try:
                side.handshake()
            except ssl.SSLWantReadError:
                waiting.append(side)

    def read(self, buffer: memoryview) -> int:
        self.server.expect()
        return self.server.read_into(buffer)

    def write(self, data: bytes) -> bool:
        self.client.secured.write(data)
        return self.client.send()

    def close(self) -> None:
        for side in (self.client, self.server):
            side.end(complete=False)
            side.sock.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()
    assert tls_socket._shared.grown == 0, "a closed connection gives back its large steps"


def test_many_small_records_are_received_by_one_system_call(pair: Pair) -> None:
    for number in range(100):
        pair.client.secured.write(b"%3d" % number)
    assert pair.client.send()
    buffer = memoryview(bytearray(1000))
    assert pair.read(buffer) == 300
    assert bytes(buffer[:300]) == b"".join(b"%3d" % number for number in range(100))
    assert pair.counted.received == 1


def test_steps_grow_for_a_connection_that_moves_much(pair: Pair) -> None:
    assert pair.write(bytes(3 * STEP_BYTES))
    buffer = memoryview(bytearray(3 * STEP_BYTES))
    have = 0
    while have < len(buffer):
        have += pair.read(buffer[have:])
    assert pair.counted.received <= 5, "one small step, and large ones"


def test_without_room_for_more_large_steps_they_stay_small(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_socket, "GROWN_MAX", 0)
    assert pair.client.room(10 * STEP_BYTES) == RECORD_BYTES
    monkeypatch.setattr(tls_socket, "GROWN_MAX", 1)
    assert [pair.client.room(10 * STEP_BYTES), pair.server.room(10 * STEP_BYTES)] == [STEP_BYTES, RECORD_BYTES]


def test_a_record_is_read_in_parts_by_a_smaller_buffer(pair: Pair) -> None:
    assert pair.write(b"abcdef")
    buffer = memoryview(bytearray(4))
    assert (pair.read(buffer), bytes(buffer)) == (4, b"abcd")
    assert (pair.read(buffer), bytes(buffer[:2])) == (2, b"ef")
    assert pair.read(buffer) == -1, "the kernel has no bytes"


def test_a_part_of_a_record_gives_no_bytes_until_the_rest_arrives(pair: Pair) -> None:
    pair.client.secured.write(bytes(100))
    whole = pair.client._outgoing.read()
    buffer = memoryview(bytearray(200))
    pair.client.sock.send(whole[:50])
    assert pair.read(buffer) == -1
    pair.client.sock.send(whole[50:])
    assert pair.read(buffer) == 100


def test_the_end_of_the_stream_is_seen_while_the_connection_stays_open(pair: Pair) -> None:
    pair.client.secured.write(b"last")
    pair.client.end(complete=True)
    buffer = memoryview(bytearray(100))
    assert [pair.read(buffer), pair.read(buffer), pair.read(buffer)] == [4, 0, 0]


def test_a_connection_that_was_cut_off_ends_after_its_last_whole_record(pair: Pair) -> None:
    assert pair.write(b"last")
    pair.client.sock.shutdown(socket.SHUT_WR)
    buffer = memoryview(bytearray(100))
    assert [pair.read(buffer), pair.read(buffer)] == [4, 0]


def test_bytes_that_the_socket_does_not_take_are_sent_later(pair: Pair) -> None:
    sent = 0
    while pair.write(bytes(RECORD_BYTES)):
        sent += RECORD_BYTES
    assert pair.client.unsent
    buffer, got = memoryview(bytearray(STEP_BYTES)), 0
    while got < sent + RECORD_BYTES:
        got += max(pair.read(buffer), 0)
        pair.client.send()
    assert not pair.client.unsent
