"""Connection errors: every API names the address and the cause, and says what to do.

Servers that are not brokers listen on loopback sockets; clusters with a fault are in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from ottla import NewTopic, Resource, TopicPartition, aio, unwrap
from ottla.base.options import ConfigError
from ottla.client.transport.kafka_releases import RELEASES, release_with
from ottla.errors import (
    BrokerIncompatible,
    BrokerNotAvailable,
    GroupAuthorizationFailed,
    InvalidTopic,
    KafkaError,
    MessageTooLarge,
    MetadataTimedOut,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from ottla.net.client_connection import ClientConnection, ConnectionBroken
from ottla.wire import messages as m
from ottla.wire.messages import API

T = TopicPartition("t", 0)
#: Timeouts for each API. A fault shows after a few milliseconds; on a stalled machine later.
PATIENCE_MS = (500, 5_000, 30_000)


# -- no broker at the address


async def of_producer(settings: dict[str, Any], patience_ms: int) -> None:
    async with aio.Producer(max_block_ms=patience_ms, **settings) as producer:
        await producer.send("t", b"x")


async def of_consumer(settings: dict[str, Any], patience_ms: int) -> None:
    async with aio.Consumer(default_api_timeout_ms=patience_ms, **settings) as consumer:
        consumer.assign([T])
        await consumer.position(T)


async def of_admin(settings: dict[str, Any], patience_ms: int) -> None:
    async with aio.Admin(default_api_timeout_ms=patience_ms, **settings) as admin:
        await admin.list_topics()


Face = Callable[[dict[str, Any], int], Awaitable[None]]


async def raised_error(face: Face, settings: dict[str, Any], pattern: str) -> str:
    """The error that a client raises, with a short timeout first and longer ones after; empty if there is none."""
    message = "nothing was raised"
    for patience_ms in PATIENCE_MS:
        try:
            await face(settings, patience_ms)
        except KafkaError as error:
            message = str(error)
            if re.search(pattern, message):
                return ""
    return f"{face.__name__}: {message}"


@contextlib.asynccontextmanager
async def server_answering(reply: bytes | None, *, tls: bool = False) -> AsyncIterator[str]:
    """A server that is not a broker. It answers the first bytes with `reply` and closes, or answers nothing."""
    waiting: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.add(writer)
        with contextlib.suppress(OSError):
            await reader.read(1000)
            if reply is not None:
                writer.write(reply)
                await writer.drain()
                writer.close()

    # Without a certificate the server still detects that the first bytes are not TLS.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in waiting:
            writer.transport.abort()
        server.close()


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def unknown_host(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host name that the resolver refuses at once, as a working name service does."""
    look_up = socket.getaddrinfo

    def found(host: Any, *others: Any, **named: Any) -> Any:
        if host == "no.such.host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *others, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return "no.such.host.invalid:9092"


@pytest.mark.server
async def test_every_api_names_the_address_the_cause_and_a_remedy_without_a_broker(unknown_host: str) -> None:
    async with contextlib.AsyncExitStack() as stack:

        async def server(reply: bytes | None, **kinds: bool) -> str:
            return await stack.enter_async_context(server_answering(reply, **kinds))

        plain = {
            free_address(): "connection refused by {}: nothing listens on that port; is the broker running?",
            unknown_host: "cannot find the host of {}: .*; check the spelling and the name service",
            await server(
                b"HTTP/1.1 400 Bad Request\r\n\r\n"
            ): "{} .*an HTTP server answers at this address, not a Kafka broker; check the port",
            await server(b"SSH-2.0-OpenSSH_9.6\r\n"): "{} .*it begins with 'SSH-2.0-OpenSSH_9.6'; another kind of server .*check the port",
            await server(b"\x15\x03\x01\x00\x02\x02\x46"): "{} .*speaks TLS, and this client does not; set security_protocol=SSL",
            await server(b""): "{} closed the connection before it answered ApiVersions v5.*PLAINTEXT listener .*TLS .*ZooKeeper",
            await server(b"", tls=True): "{} .*(speaks TLS|closed the connection before it answered .*TLS)",
            await server(None): "{} did not answer ApiVersions v5 within 300 ms; connection given up; is it a Kafka broker, without TLS",
        }

        checks = []
        for address, pattern in plain.items():
            settings = {"bootstrap_servers": address, "socket_connection_setup_timeout_ms": 300 if "did not answer" in pattern else 60_000}
            checks += [raised_error(face, settings, pattern.format(re.escape(address))) for face in (of_producer, of_consumer, of_admin)]
        assert [wrong for wrong in await asyncio.gather(*checks) if wrong] == []


@pytest.mark.server
async def test_a_server_that_has_not_answered_is_named_at_the_timeout() -> None:
    async with server_answering(None) as address:
        async with aio.Producer(bootstrap_servers=address, max_block_ms=200) as producer:
            with pytest.raises(MetadataTimedOut, match=f"{address} has not answered for .* ms; is it a Kafka broker, and up?"):
                await producer.send("t", b"x")
        async with aio.Admin(bootstrap_servers=address) as admin:
            with pytest.raises(RequestTimedOut, match=f"within 200 ms: .*{address} has not answered"):
                await admin.list_topics(timeout_ms=200)


@pytest.mark.parametrize("address", ["broker:port", "broker:70000", ":9092"])
def test_an_invalid_address_is_refused_before_connecting(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        aio.Admin(bootstrap_servers=address)._calls.network  # noqa: B018


def test_a_peer_that_closes_on_a_large_request_may_have_a_size_limit() -> None:
    async def broken() -> ConnectionBroken:
        link = ClientConnection("h:1", client_id="c", frame_bytes_max=1000, lost=lambda why: None)
        link.connection_made(Swallowing())
        answer = link.request(m.ProduceRequest(transactional_id="x" * 20), 9, timeout_ms=1000)
        link._answered = 1
        link._largest_bytes = 150_000_000
        link.connection_lost(None)
        with pytest.raises(ConnectionBroken) as raised:
            await answer
        return raised.value

    assert "a request had 150000000 bytes, and brokers hang up" in str(asyncio.run(broken()))


class Swallowing(asyncio.Transport):
    """A connection that accepts all bytes and never answers."""

    def write(self, data: Any) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


# -- a cluster with a fault


class MisadvertisedCluster(MemoryCluster):
    """A cluster whose brokers can be reached only at the bootstrap address, not at their advertised one."""

    async def connect(self, host: str, port: int, **settings: Any) -> ClientConnection:
        if host != "boot":
            await asyncio.sleep(0)
            raise ConnectionBroken(
                f"cannot find the host of {host}:{port}: Name or service not known; check the spelling and the name service"
            )
        return await super().connect(host, port, **settings)


@pytest.fixture
def misadvertised(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    made = MisadvertisedCluster()
    made.create("t")
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


async def test_an_unreachable_advertised_address_is_named_in_the_error(misadvertised: MemoryCluster, quick: dict[str, Any]) -> None:
    remedy = r"cannot find the host of node1:9092: .*the cluster names this address for broker 1; .*its advertised\.listeners should be"

    async def written(settings: dict[str, Any], patience_ms: int) -> None:
        limits = {"delivery_timeout_ms": patience_ms, "request_timeout_ms": patience_ms // 2, "linger_ms": 0}
        async with aio.Producer(**limits, **settings) as producer:  # type: ignore[arg-type]
            await (await producer.send("t", b"x"))

    async def listed(settings: dict[str, Any], patience_ms: int) -> None:
        async with aio.Admin(default_api_timeout_ms=patience_ms, **settings) as admin:
            unwrap(await admin.list_offsets({T: -1}))

    async def described(settings: dict[str, Any], patience_ms: int) -> None:
        async with aio.Admin(default_api_timeout_ms=patience_ms, **settings) as admin:
            await admin.describe_config(Resource.broker(1))

    assert not await raised_error(written, quick, f"never sent: broker 1, which leads t-0: {remedy}")
    assert not await raised_error(of_consumer, quick, f"the position of t-0 is not known after .* ms: broker 1, which leads t-0: {remedy}")
    assert not await raised_error(listed, quick, f"listing offsets of t-0: {remedy}")
    assert not await raised_error(described, quick, f"describing settings of broker 1 was not done within .* ms: {remedy}")


async def test_a_waiting_consumer_reports_missing_records_of_the_log_once(
    misadvertised: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.client.transport.network.WARN_AFTER_MS", 20)
    with caplog.at_level(logging.WARNING, "ottla.client"):
        async with aio.Consumer(**quick) as consumer:
            consumer.assign([T, TopicPartition("nope", 0)])
            deadline_s = asyncio.get_running_loop().time() + 20
            while len(caplog.records) < 2:
                assert asyncio.get_running_loop().time() < deadline_s, "both warnings are logged in time"
                assert await consumer.poll(20) == []
            await consumer.poll(100)
    message = sorted(record.getMessage() for record in caplog.records)
    assert len(message) == 2
    assert message[0].startswith("cannot find the host of node1:9092")
    assert message[1] == "there is no topic nope: create it, or let the brokers create it (auto.create.topics.enable)"


async def test_every_api_names_an_unauthorized_topic_with_advice(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"secret": 29, "no/name": 17}

    def refused(node: Any, name: str) -> Any:
        return m.MetadataResponseTopic(error_code=codes[name], name=name)

    monkeypatch.setattr("memory_cluster.MemoryNode._topic", refused)
    for name, kind, message in (
        ("secret", TopicAuthorizationFailed, r"User:ANONYMOUS.*may not Describe Topic secret; .*ACL"),
        ("no/name", InvalidTopic, "'no/name' is not a valid topic name .up to 249 letters"),
    ):
        async with aio.Producer(**quick) as producer:
            with pytest.raises(kind, match=message):
                await producer.send(name, b"x")
        async with aio.Consumer(**quick) as consumer:
            consumer.assign([(name, 0)])
            with pytest.raises(kind, match=message):
                await consumer.poll(5000)
        async with aio.Admin(**quick) as admin:
            with pytest.raises(kind, match=message):
                await admin.describe_topic(name)
            assert re.search(message, str((await admin.list_offsets({(name, 0): -1}))[TopicPartition(name, 0)]))


async def test_a_topic_that_can_be_described_but_not_written_or_read_is_an_error_with_the_partition(
    cluster: MemoryCluster, quick: dict[str, Any]
) -> None:
    cluster.batch_faults.append(lambda topic, partition, header: 29)
    async with aio.Producer(**quick) as producer:
        with pytest.raises(TopicAuthorizationFailed, match=r"t-0 at node1:9092: this client.* may not Write Topic t; .*ACL"):
            await (await producer.send("t", b"x"))
    denied = m.FindCoordinatorResponse(coordinators=[m.Coordinator(key="g", node_id=-1, error_code=30)])
    cluster.faults["FindCoordinator"] += [lambda node, request: denied] * 2
    async with aio.Consumer(group_id="g", **quick) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(GroupAuthorizationFailed, match=r"group g: this client.* may not Read Group g; .*ACL"):
            await consumer.poll(5000)
    async with aio.Admin(**quick) as admin:
        with pytest.raises(GroupAuthorizationFailed, match=r"g: The client has no permission .* grant it with an ACL"):
            await admin.describe_consumer_group("g")


async def test_errors_without_a_message_name_the_topic_or_group(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    above = m.DeleteRecordsPartitionResult(partition_index=0, error_code=1)
    answer = m.DeleteRecordsResponse(topics=[m.DeleteRecordsTopicResult(name="t", partitions=[above])])
    cluster.faults["DeleteRecords"].append(lambda node, request: answer)
    cluster.faults["CreateTopics"].append(
        lambda node, request: m.CreateTopicsResponse(topics=[m.CreatableTopicResult(name="u", error_code=44)])
    )
    async with aio.Admin(**quick) as admin:
        outcome = (await admin.delete_records({T: 9}))[T]
        assert isinstance(outcome, OffsetOutOfRange)
        assert str(outcome).startswith("t-0: the offset to delete up to is above the high watermark")
        created = (await admin.create_topics([NewTopic("u")]))["u"]
        assert str(created).startswith("u: ")


async def test_an_unknown_broker_is_an_error_that_lists_the_known_ones(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with aio.Admin(**quick) as admin:
        with pytest.raises(BrokerNotAvailable, match="the cluster has no broker 7 now; it has 1"):
            await admin.describe_config(Resource.broker(7))
        assert isinstance((await admin.describe_log_dirs([7]))[7], BrokerNotAvailable)


async def test_brokers_that_are_too_old_or_too_new_are_named_by_release(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.versions = {0: (0, 2), 3: (0, 12), 46: (7, 9)}
    async with aio.Producer(**quick) as producer:
        with pytest.raises(
            BrokerIncompatible, match=r"Produce: the broker at \S+ has versions 0 to 2, needed are 3 to 13, which Kafka has since 0\.11"
        ):
            await (await producer.send("t", b"x"))
    async with aio.Admin(**quick) as admin:
        with pytest.raises(
            BrokerIncompatible, match=r"ListPartitionReassignments: .* has versions 7 to 9, .*; this client is too old for it"
        ):
            await admin.list_partition_reassignments()


async def test_a_missing_api_is_an_error_with_the_first_release_that_has_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.faults["ApiVersions"] += [
        lambda node, request: m.ApiVersionsResponse(api_keys=[m.ApiVersion(api_key=key, max_version=20) for key in (3, 18)])
    ] * 3
    async with aio.Admin(**quick) as admin:
        with pytest.raises(BrokerIncompatible, match=r"the broker at \S+ does not offer DescribeQuorum; Kafka has it since 4\.0"):
            await admin.describe_quorum()
        with pytest.raises(BrokerIncompatible, match=r"does not offer DescribeCluster; Kafka has it since 4\.0"):
            await admin.describe_cluster(fenced=True)


def test_releases_increase_with_versions() -> None:
    assert RELEASES.keys() <= API.keys()
    for key, text in RELEASES.items():
        pairs = [pair.split(":") for pair in text.split()]
        assert [int(version) for version, _ in pairs] == sorted({int(version) for version, _ in pairs}), key
        released = [tuple(map(int, release.split("."))) for _, release in pairs]
        assert released == sorted(set(released)), key
    assert (release_with(3, 0), release_with(3, 11), release_with(3, 12), release_with(99, 0)) == ("0.8", "2.8", "3.1", None)


async def test_a_record_that_is_too_large_is_an_error_with_the_settings_to_raise(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with aio.Producer(max_request_size=1000, **quick) as producer:
        with pytest.raises(MessageTooLarge, match=r"larger than max_request_size \(1000\); raise it and the topic's max\.message\.bytes"):
            await producer.send("t", bytes(2000))
