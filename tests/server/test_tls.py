"""TLS between real sockets: handshakes, large requests and answers, certificates, principals and refusals."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from socket_peers import Served, framed, until

from certificates import Certificate, name_of
from ottla.base.options import ConfigError
from ottla.base.ssl_options import ListenerSslOptions
from ottla.base.units import KiB, MiB
from ottla.net.connection_context import Limits
from ottla.net.listener import Listener, bound_socket
from ottla.net.server_connection import ServerConnection
from ottla.net.tls.context import client_context, server_context
from ottla.net.tls.listener_tls import ListenerTls, TlsState, check_exchange
from ottla.net.tls.transport import HandshakeSteps

pytestmark = pytest.mark.server

AUTHORITY = Certificate.authority()
BROKER = AUTHORITY.issue("broker")
ALICE = AUTHORITY.issue(name_of(CN="alice", OU="Eng", O="Example"))


def options(own: Certificate | None = BROKER, trusted: Certificate | None = AUTHORITY, **texts: str) -> ListenerSslOptions:
    """PEM in the settings themselves; further settings with underscores for dots."""
    found = {name.replace("_", "."): text for name, text in texts.items()}
    if own is not None:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": own.key_pem(), "ssl.keystore.certificate.chain": own.pem}
    if trusted is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted.pem}
    return ListenerSslOptions.of(found)


def state(*, between_brokers: bool = False, **arguments: Any) -> TlsState:
    return TlsState.load(options(**arguments), between_brokers=between_brokers)


class Secured(Served):
    """A listener with TLS."""

    def __init__(self, *arguments: object, tls: TlsState, **keywords: object) -> None:
        super().__init__(*arguments, **keywords)  # type: ignore[arg-type]
        self.state = tls

    async def __aenter__(self) -> "Secured":
        await super().__aenter__()
        await self.listener.close(patience_s=0)
        self.threads = ThreadPoolExecutor(1)
        self.tls = ListenerTls(self.state, HandshakeSteps(self.threads))
        self.listener = Listener(bound_socket("127.0.0.1", 0), self.context, self, name="SECURE", tls=self.tls)
        self.address = self.listener.address
        self.listener.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)  # type: ignore[arg-type]
        self.threads.shutdown()
        assert self.context.handshaking == 0


@dataclass
class TlsPeer:
    """A client of Python's own TLS in streams."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connected(cls, served: Secured, own: Certificate | None = None, **texts: Any) -> "TlsPeer":
        context = client_context(options(own, **texts)).context
        sock = socket.socket()
        # The kernel must not take whole answers.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KiB)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, served.address)
        return cls(*await asyncio.open_connection(sock=sock, ssl=context, server_hostname="localhost"))

    async def ask(self, payload: bytes) -> bytes:
        self.writer.write(framed(payload))
        await self.writer.drain()
        return await self.answer()

    async def answer(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()


async def test_requests_of_all_sizes_are_answered_over_tls() -> None:
    for version in ("TLSv1.2", "TLSv1.3"):
        async with Secured(tls=state(), limits=Limits(first_frame_bytes_max=8 * MiB)) as served:
            peer = await TlsPeer.connected(served, ssl_enabled_protocols=version)
            assert peer.writer.get_extra_info("ssl_object").version() == version
            for size in (1, 100, 16 * KiB, 16 * KiB + 1, 64 * KiB, 5 * MiB):
                payload = os.urandom(size)
                assert await peer.ask(payload) == payload
            await peer.close()
            await until(lambda served=served: len(served.gone) == 1)  # type: ignore[misc]


async def test_many_requests_in_one_record_are_answered_in_order() -> None:
    async with Secured(tls=state()) as served:
        peer = await TlsPeer.connected(served)
        payloads = [b"%d" % number for number in range(500)]
        peer.writer.write(b"".join(map(framed, payloads)))
        assert [await peer.answer() for _ in payloads] == payloads
        await peer.close()


class FileSlice:
    """A range of a file, as the log's ``Slice``."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.file = path.open("rb")
        self.position, self.size = position, size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        return os.pread(self.file.fileno(), self.size, self.position)


async def test_file_ranges_are_sent_in_pieces_also_to_a_slow_reader(tmp_path: Path) -> None:
    content = os.urandom(9 * MiB)
    (tmp_path / "segment").write_bytes(content)

    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        ranges = [FileSlice(tmp_path / "segment", 1000, 4 * MiB), FileSlice(tmp_path / "segment", 5 * MiB, 3 * MiB + 7)]
        head = (4 + 7 * MiB + 7).to_bytes(4, "big") + b"head"
        connection.respond([bytearray(head), *ranges])

    async with Secured(answer, tls=state()) as served:
        peer = await TlsPeer.connected(served)
        for _ in range(3):
            peer.writer.write(framed(b"fetch"))
            await until(lambda: any(one.waiting_bytes for one in served.context.connections))
            waiting = max(one.waiting_bytes for one in served.context.connections)
            assert waiting <= MiB, f"{waiting} bytes of an answer are in memory"
            assert await peer.answer() == b"head" + content[1000 : 1000 + 4 * MiB] + content[5 * MiB : 8 * MiB + 7]
        await peer.close()


async def test_a_range_that_was_truncated_closes_the_connection(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x" * 100_000)

    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        connection.respond([bytearray((200_000).to_bytes(4, "big")), FileSlice(tmp_path / "segment", 0, 200_000)])

    async with Secured(answer, tls=state()) as served:
        peer = await TlsPeer.connected(served)
        peer.writer.write(framed(b"fetch"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.answer()
        assert served.context.traffic.cut["answer cut short"] == 1
        await peer.close()


async def test_the_principal_of_a_client_is_the_name_of_its_certificate() -> None:
    seen: list[tuple[str, str]] = []

    def answer(connection: ServerConnection, frame: bytes) -> None:
        seen.append((connection.origin.listener, connection.origin.principal))
        connection.respond([framed(frame)])

    rules = {"ssl_principal_mapping_rules": "RULE:^CN=([^,]+),OU=Eng,.*$/$1@eng/U,DEFAULT"}
    for client, auth, more in ((ALICE, "required", {}), (ALICE, "required", rules), (None, "requested", {}), (ALICE, "none", {})):
        async with Secured(answer, tls=state(ssl_client_auth=auth, **dict[str, Any](more))) as served:
            peer = await TlsPeer.connected(served, client)
            await peer.ask(b"who")
            await peer.close()
    names = ["User:CN=alice,OU=Eng,O=Example", "User:ALICE@ENG", "User:ANONYMOUS", "User:ANONYMOUS"]
    assert seen == [("SECURE", name) for name in names]


async def refused(served: Secured, connect: Callable[[], object], caplog: pytest.LogCaptureFixture) -> str:
    """What the broker logs about a client that it does not let in."""
    caplog.clear()
    caplog.set_level("INFO", "ottla.net")
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await connect()  # type: ignore[misc]
    try:
        await until(lambda: "closing connection" in caplog.text)
    except TimeoutError as error:
        error.add_note(f"{served.context.handshaking} handshakes, cut: {dict(served.context.traffic.cut)}; log: {caplog.text}")
        raise
    assert served.context.per_host == {} and not served.requests
    return caplog.text


async def test_clients_without_an_accepted_certificate_are_refused_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    other = Certificate.authority("other").issue("mallory")
    expired = AUTHORITY.issue("late", days=-1)
    rules = {"ssl_principal_mapping_rules": "RULE:^CN=alice.*$/a/"}

    async def ask(own: Certificate | None) -> None:
        await (await TlsPeer.connected(served, own)).ask(b"in")

    for own, problem in ((None, "the client sent no certificate"), (other, "authority of the peer's certificate is unknown"),
                         (expired, "has expired"), (BROKER, "no rule of ssl.principal.mapping.rules applies to CN=broker")):  # fmt: skip
        async with Secured(tls=state(ssl_client_auth="required", **dict[str, Any](rules))) as served:
            assert problem in await refused(served, lambda own=own: ask(own), caplog)  # type: ignore[misc]


async def test_a_plaintext_client_is_refused_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with Secured(tls=state()) as served:

        async def plain() -> None:
            peer = await served.peer()
            await peer.send(framed(b"plaintext request"))
            await peer.frame()

        with pytest.raises((OSError, EOFError)):
            caplog.set_level("INFO", "ottla.net")
            await plain()
        await until(lambda: "the peer does not speak TLS" in caplog.text)


async def test_a_client_that_does_not_go_on_with_its_handshake_is_closed() -> None:
    async with Secured(tls=state(), limits=Limits(handshake_timeout_ms=150)) as served:
        silent = await served.peer()
        slow = await served.peer()
        await slow.send(b"\x16\x03\x01")
        # The only thread is free for others meanwhile.
        peer = await TlsPeer.connected(served)
        assert await peer.ask(b"x") == b"x"
        assert await silent.closed() and await slow.closed()
        assert served.context.traffic.cut["TLS handshake"] == 2
        await peer.close()
        silent.close()
        slow.close()


async def test_connections_in_their_handshake_count_as_connections() -> None:
    async with Secured(tls=state(), limits=Limits(connections_max=2)) as served:
        waiting = [await served.peer() for _ in range(3)]
        assert await waiting[2].closed()
        assert served.context.handshaking == 2 and served.context.traffic.refused == 1
        for peer in waiting:
            peer.close()
        await until(lambda: served.context.handshaking == 0)


async def test_open_connections_keep_their_certificate_and_new_ones_get_the_exchanged_one() -> None:
    async with Secured(tls=state()) as served:
        first = await TlsPeer.connected(served)
        renewed = AUTHORITY.issue("broker")
        new = TlsState.load(options(renewed), between_brokers=False)
        check_exchange(served.tls.present, new)
        served.tls.adopt(new)
        second = await TlsPeer.connected(served)
        serials = [peer.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"] for peer in (first, second)]
        assert [int(serial, 16) for serial in serials] == [BROKER.certificate.serial_number, renewed.certificate.serial_number]
        assert await first.ask(b"1") == b"1" and await second.ask(b"2") == b"2"
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ({"own": AUTHORITY.issue("other")}, "another distinguished name, CN=other instead of CN=broker"),
        ({"own": AUTHORITY.issue("broker", names=["localhost"])}, "lacks the names 127.0.0.1"),
        ({"own": AUTHORITY.issue("other"), "ssl_allow_dn_changes": "true"}, ""),
        ({"own": AUTHORITY.issue("broker", names=["localhost"]), "ssl_allow_san_changes": "true"}, ""),
        ({"own": AUTHORITY.issue("broker")}, ""),
    ],
)
def test_a_certificate_is_exchanged_only_for_one_with_the_same_names(new: dict[str, object], problem: str) -> None:
    later = TlsState.load(options(**new), between_brokers=True)  # type: ignore[arg-type]
    if not problem:
        check_exchange(state(between_brokers=True), later)
        return
    with pytest.raises(ConfigError) as refused:
        check_exchange(state(between_brokers=True), later)
    assert problem in str(refused.value)


def test_brokers_must_be_able_to_connect_with_the_old_and_the_new_certificate() -> None:
    new_authority = Certificate.authority("new")
    with pytest.raises(ConfigError, match="brokers could not connect to each other on this listener"):
        state(own=new_authority.issue("broker"), between_brokers=True)
    moved = TlsState.load(options(new_authority.issue("broker"), new_authority), between_brokers=True)
    with pytest.raises(ConfigError, match="brokers could not connect to each other on this listener"):
        check_exchange(state(between_brokers=True), moved)
    check_exchange(state(), TlsState.load(options(new_authority.issue("broker"), new_authority), between_brokers=False))


# The following need no connection.


def test_a_trusted_certificate_needs_no_issuer_in_the_trust_store() -> None:
    middle = Certificate.authority("middle", issuer=AUTHORITY)
    found = TlsState.load(options(middle.issue("broker"), middle), between_brokers=True)
    assert found.context.own is not None and len(found.context.own.chain) == 2


@pytest.mark.parametrize(
    ("texts", "setting"),
    [
        ({"ssl.keystore.key": "k"}, "ssl.keystore.key"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.key": "k"}, "ssl.keystore.certificate.chain"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "c"}, "ssl.keystore.certificate.chain"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": "/none", "ssl.keystore.password": "p"}, "ssl.keystore.password"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": "/none"}, "ssl.keystore.location"),
        ({"ssl.keystore.location": "/none"}, "ssl.keystore.password"),
        ({"ssl.keystore.password": "p"}, "ssl.keystore.password"),
        ({"ssl.keystore.location": "/etc/hostname", "ssl.keystore.password": "p"}, "ssl.keystore.location"),
        ({}, "ssl.keystore.location"),
        ({"ssl.truststore.certificates": "c"}, "ssl.truststore.certificates"),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.location": "/none"}, "ssl.truststore.location"),
        ({"ssl.truststore.password": "p"}, "ssl.truststore.password"),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location"),
        ({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, "ssl.enabled.protocols"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites"),
        ({"ssl.cipher.suites": "TLS_NO_SUCH_WITH_SUITE"}, "ssl.cipher.suites"),
        ({"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.3"}, "ssl.cipher.suites"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused_by_name(texts: dict[str, str], setting: str) -> None:
    complete = "ssl.keystore" not in "".join(texts) and texts
    base = {"ssl.keystore.type": "PEM", "ssl.keystore.key": BROKER.key_pem(), "ssl.keystore.certificate.chain": BROKER.pem}
    found = ListenerSslOptions.of({**(base if complete else {}), **texts})
    with pytest.raises(ConfigError) as refused:
        server_context(found, found.ssl_client_auth)
    assert refused.value.name == setting


def test_suites_have_their_java_names() -> None:
    suites = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA"
    context = server_context(options(ssl_cipher_suites=suites), "none").context
    names = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2" or "TLS_" not in cipher["name"]}
    assert names == {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305", "AES128-SHA"}
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2


def store_options(**texts: str) -> ListenerSslOptions:
    return ListenerSslOptions.of({name.replace("_", "."): text for name, text in texts.items()})


def test_key_stores_of_all_types_give_the_same_certificate(tmp_path: Path) -> None:
    middle = Certificate.authority("middle", issuer=AUTHORITY)
    broker = middle.issue("broker")
    found = [
        store_options(ssl_keystore_type="PEM", ssl_keystore_location=str(broker.write_pem(tmp_path / "pem"))),
        store_options(ssl_keystore_type="PEM", ssl_keystore_location=str(broker.write_pem(tmp_path / "sealed", "s")), ssl_key_password="s"),
        store_options(
            ssl_keystore_type="PKCS12", ssl_keystore_location=str(broker.write_pkcs12(tmp_path / "p12", "p")), ssl_keystore_password="p"
        ),
        # Java's keytool writes PKCS#12 under the name of JKS, and Java reads it as such.
        store_options(ssl_keystore_location=str(broker.write_pkcs12(tmp_path / "named-jks", "p")), ssl_keystore_password="p"),
    ]  # fmt: skip
    for one in found:
        own = server_context(one, "none").own
        assert own is not None and list(own.chain) == [broker.certificate, middle.certificate]


def test_a_wrong_password_is_told_apart_and_never_shown(tmp_path: Path) -> None:
    sealed, p12 = BROKER.write_pem(tmp_path / "sealed", "right"), BROKER.write_pkcs12(tmp_path / "p12", "right")
    for one in (
        store_options(ssl_keystore_type="PEM", ssl_keystore_location=str(sealed), ssl_key_password="sentinel"),
        store_options(ssl_keystore_type="PEM", ssl_keystore_location=str(sealed)),
        store_options(ssl_keystore_type="PKCS12", ssl_keystore_location=str(p12), ssl_keystore_password="sentinel"),
    ):
        with pytest.raises(ConfigError, match="is the password right") as refused:
            server_context(one, "none")
        assert "sentinel" not in str(refused.value)


def test_a_key_that_belongs_to_no_certificate_is_refused() -> None:
    texts = {"ssl.keystore.type": "PEM", "ssl.keystore.key": ALICE.key_pem(), "ssl.keystore.certificate.chain": BROKER.pem}
    with pytest.raises(ConfigError, match="belongs to none of the certificates"):
        server_context(ListenerSslOptions.of(texts), "none")


class CountingThreads(ThreadPoolExecutor):
    """Counts the steps of handshakes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.steps = 0

    def submit(self, *arguments: Any, **keywords: Any) -> Any:
        self.steps += 1
        return super().submit(*arguments, **keywords)


async def test_a_client_that_drips_its_first_record_costs_no_steps_until_it_is_complete() -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(options(None)).context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = to_server.read()
    async with Secured(tls=state()) as served:
        served.threads = threads = CountingThreads()
        served.tls.steps = HandshakeSteps(threads)
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, served.address)
            for piece in (hello[:3], hello[3:5], hello[5:100], hello[100:-1]):
                await loop.sock_sendall(sock, piece)
                await asyncio.sleep(0.02)
            await until(lambda: served.context.handshaking == 1)
            assert threads.steps == 0
            await loop.sock_sendall(sock, hello[-1:])
            assert (await loop.sock_recv(sock, 1))[:1] == b"\x16", "the server's answer"
            assert threads.steps == 1
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, served.address)
            await loop.sock_sendall(sock, hello[:50])
            sock.shutdown(socket.SHUT_WR)
            assert await loop.sock_recv(sock, 1) == b"", "a half of a record that ends is no reason to wait"
    threads.shutdown()


async def test_few_steps_of_many_handshakes_are_with_the_threads_at_a_time() -> None:
    async with Secured(tls=state()) as served:
        held = threading.Event()
        served.threads.submit(held.wait)
        served.tls.steps = HandshakeSteps(served.threads, at_once=2)
        waiting = [asyncio.create_task(TlsPeer.connected(served)) for _ in range(20)]
        await until(lambda: served.context.handshaking == 20)
        try:
            assert served.threads._work_queue.qsize() == 2
        finally:
            held.set()
        for peer in await asyncio.gather(*waiting):
            assert await peer.ask(b"served") == b"served"
            await peer.close()


async def test_handshakes_that_are_cancelled_leave_their_turn_to_others() -> None:
    async with Secured(tls=state()) as served:
        held = threading.Event()
        served.threads.submit(held.wait)
        leaving = [asyncio.create_task(TlsPeer.connected(served)) for _ in range(3)]
        await until(lambda: served.context.handshaking == 3)
        for connection in list(served.listener._handshakes.values()):
            connection.cancel()
        staying = asyncio.create_task(TlsPeer.connected(served))
        await until(lambda: served.context.handshaking == 1)
        held.set()
        assert await (await staying).ask(b"served") == b"served"
        (await staying).writer.close()
        for left in await asyncio.gather(*leaving, return_exceptions=True):
            # With TLS 1.3 the client is done after the step that a thread had already.
            if isinstance(left, TlsPeer):
                with contextlib.suppress(ConnectionResetError):
                    assert await left.reader.read() == b""
            else:
                assert isinstance(left, OSError)


async def test_memory_of_a_closed_connection_is_freed_without_the_garbage_collector() -> None:
    async with Secured(tls=state()) as served:
        gc.disable()
        try:
            peer = await TlsPeer.connected(served)
            assert await peer.ask(b"served") == b"served"
            [connection] = served.listener._connections
            tls = weakref.ref(connection._transport.get_extra_info("ssl_object"))
            assert tls() is not None
            del connection
            await peer.close()
            await until(lambda: len(served.gone) == 1)
            served.gone.clear()
            await until(lambda: tls() is None)
        finally:
            gc.enable()
