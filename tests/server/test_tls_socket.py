"""A TLS socket moves many records in one system call, within bounds of memory."""

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator

import pytest

from certificates import Certificate
from ottla.base.ssl_options import ListenerSslOptions
from ottla.net.egress import ENCRYPTED_TURN_BYTES, Egress
from ottla.net.tls import tls_socket
from ottla.net.tls.context import client_context, server_context
from ottla.net.tls.tls_socket import RECORD_BYTES, STEP_BYTES, TlsSocket
from ottla.net.tls.transport import TURN_BYTES, TlsTransport

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


class Frame(asyncio.BufferedProtocol):
    """Collects the bytes of one large frame."""

    def __init__(self, size: int) -> None:
        self.data, self.have = bytearray(size), 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.data)[self.have :]

    def buffer_updated(self, nbytes: int) -> None:
        self.have += nbytes


async def test_a_large_frame_is_decrypted_in_several_turns_of_the_loop(pair: Pair) -> None:
    sent = os.urandom(4 * TURN_BYTES)
    rest, frame = memoryview(sent), Frame(len(sent))
    server = TlsTransport(pair.server, frame, SERVER)
    turns: list[int] = []
    while frame.have < len(sent):
        while rest and pair.client.send():
            # As many bytes as the kernel takes: more than a turn may read.
            rest = rest[pair.client.secured.write(rest[:RECORD_BYTES]) :]
        pair.client.send()
        before = frame.have
        await asyncio.sleep(0)
        turns.append(frame.have - before)
    assert frame.data == sent
    assert max(turns) == TURN_BYTES
    server.abort()
    await asyncio.sleep(0)


async def test_a_large_answer_in_memory_is_encrypted_in_several_turns_of_the_loop() -> None:
    loop, turns = asyncio.get_running_loop(), [bytearray()]

    class Transport:
        """Takes all, as a socket with a fast reader."""

        def get_extra_info(self, name: str) -> object:
            return SERVER if name == "sslcontext" else None

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: bytes) -> None:
            turns[-1] += data

        def writelines(self, buffers: list[bytes]) -> None:
            turns[-1] += b"".join(buffers)

    def turn() -> None:
        turns.append(bytearray())
        if not sent.done():
            loop.call_soon(turn)

    sent: asyncio.Future[None] = loop.create_future()
    egress = Egress(Transport(), None, lambda: sent.set_result(None), sent.set_exception)  # type: ignore[arg-type]
    answer = [os.urandom(ENCRYPTED_TURN_BYTES // 4) for _ in range(15)]
    assert not egress.send(answer)
    turn()
    await sent
    assert b"".join(turns) == b"".join(answer)
    assert len([one for one in turns if one]) == 4
    assert egress.send(answer[:2]), "a small one needs no other turn"
