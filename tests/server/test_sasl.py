"""Clients of a broker with users, over real sockets: who gets in, what the others learn, and what they cost."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

import ottla
from ottla.base.options import ConfigError
from ottla.base.scram import ScramMechanism
from ottla.server.process_plan import ProcessPlan
from ottla.testing import Broker, broker
from ottla.wire import errors, framing
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

pytestmark = pytest.mark.server
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    settings = {"connection.failed.authentication.delay.ms": "20", "ottla.authentication.timeout.ms": "6000"}
    with broker(users={"alice": "wonder, =land"}, settings=settings) as started:
        yield started


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ottlas_clients_authenticate_and_work(secured: Broker, mechanism: str) -> None:
    settings = secured.client_settings("alice", mechanism)
    topic = f"t-{mechanism}"
    with ottla.Producer(**settings) as producer:
        producer.send(topic, b"x").result(30)
    with ottla.Consumer(topic, group_id=topic, auto_offset_reset="earliest", **settings) as consumer:
        assert [record.value for record in consumer.poll(10_000)] == [b"x"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_at_once(secured: Broker, mechanism: str) -> None:
    settings = {**secured.client_settings("alice", mechanism), "sasl_password": "wrong"}
    began_s = time.monotonic()
    with ottla.Admin(**settings) as admin, pytest.raises(errors.SaslAuthenticationFailed, match="refused the credentials") as refused:
        admin.list_topics()
    assert "wrong" not in str(refused.value)
    assert time.monotonic() - began_s < 10, "the client does not try until its timeout"


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(secured: Broker) -> None:
    settings: dict[str, Any] = {
        **secured.client_settings("alice"),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: "x",
    }
    del settings["sasl_username"], settings["sasl_password"]
    with (
        ottla.Admin(**settings) as admin,
        pytest.raises(errors.UnsupportedSaslMechanism, match="it has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    ):
        admin.list_topics()


def test_a_client_without_sasl_learns_that_the_listener_has_it_and_the_reverse(secured: Broker) -> None:
    with (
        ottla.Admin(bootstrap_servers=secured.bootstrap_servers, default_api_timeout_ms=1_000) as admin,
        pytest.raises(errors.KafkaError, match="a listener with SASL hangs up like this"),
    ):
        admin.list_topics()
    with broker() as plain:
        settings = {**secured.client_settings("alice"), "bootstrap_servers": plain.bootstrap_servers}
        with ottla.Admin(**settings) as admin, pytest.raises(errors.IllegalSaslState, match="is a listener without SASL"):
            admin.list_topics()


def test_a_user_can_be_added_and_removed_while_the_broker_runs(secured: Broker) -> None:
    settings = {**secured.client_settings("alice", "SCRAM-SHA-512"), "sasl_username": "carol", "sasl_password": "p"}
    with ottla.Admin(**secured.client_settings("alice")) as admin:
        admin.set_scram_credential("carol", ScramMechanism.SHA_512, "p")
        with ottla.Admin(**settings) as other:
            other.list_topics()
        admin.delete_scram_credential("carol", ScramMechanism.SHA_512)
        with ottla.Admin(**settings) as other, pytest.raises(errors.SaslAuthenticationFailed):
            other.list_topics()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_authenticates(secured: Broker, mechanism: str) -> None:
    from confluent_kafka.admin import AdminClient

    found: list[Any] = []
    common = {"bootstrap.servers": secured.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    assert AdminClient({**common, "sasl.username": "alice", "sasl.password": "wonder, =land"}).list_topics(timeout=10).cluster_id
    wrong = AdminClient({**common, "sasl.username": "alice", "sasl.password": "wrong", "error_cb": found.append, "log_level": 0})
    deadline_s = time.monotonic() + 10
    while not found and time.monotonic() < deadline_s:
        wrong.poll(0.1)
    assert "authentication" in str(found[0]).lower()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_authenticates(secured: Broker, mechanism: str) -> None:
    from kafka import KafkaAdminClient

    common = {"bootstrap_servers": secured.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    admin = KafkaAdminClient(**common, sasl_plain_username="alice", sasl_plain_password="wonder, =land")
    assert isinstance(admin.list_topics(), list)
    admin.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_authenticates(secured: Broker, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=secured.bootstrap_servers, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
        sasl_plain_username="alice", sasl_plain_password="wonder, =land",
    )  # fmt: skip
    await asyncio.wait_for(producer.start(), 20)
    await producer.send_and_wait("from-aiokafka", b"x")
    await producer.stop()


# Peers that do not authenticate.


def connect(secured: Broker) -> socket.socket:
    peer = socket.create_connection((secured.host, secured.port), timeout=10)
    return peer


def send(peer: socket.socket, message: Any, version: int) -> None:
    peer.sendall(b"".join(cast(list[bytes], framing.encode_request(message, version, 1, "peer"))))


def closed(peer: socket.socket) -> bool:
    """Waits for the end of the connection."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def traffic(secured: Broker) -> Any:
    process = secured._process
    assert process is not None
    return process.connection_context


def test_a_peer_gets_versions_and_mechanisms_and_nothing_else(secured: Broker) -> None:
    with connect(secured) as peer:
        send(peer, ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
        assert peer.recv(65536)
        send(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert b"SCRAM-SHA-512" in peer.recv(65536)
        send(peer, MetadataRequest(topics=[]), 9)
        assert closed(peer)


def test_a_frame_above_the_limit_closes_the_connection(secured: Broker) -> None:
    with connect(secured) as peer:
        peer.sendall(struct.pack(">i", 524_289))
        assert closed(peer)


def test_an_announced_frame_allocates_no_more_than_eight_bytes_for_each_received(secured: Broker) -> None:
    context = traffic(secured)
    with connect(secured) as peer:
        sent = 0
        for chunk in (struct.pack(">i", 500_000) + b"x" * 100, b"y" * 1_000, b"z" * 100_000):
            received = context.traffic.received_bytes
            peer.sendall(chunk)
            sent += len(chunk)
            while context.traffic.received_bytes < received + len(chunk):
                time.sleep(0.001)
            assert len(chunk) // 2 < context.unauthenticated_bytes <= 8 * sent
    while context.unauthenticated_bytes:
        time.sleep(0.001)


def test_a_peer_that_does_not_authenticate_in_time_is_disconnected_whatever_it_sends(secured: Broker) -> None:
    failed = traffic(secured).traffic.failed_authentications
    with connect(secured) as peer:
        began_s = time.monotonic()
        peer.sendall(struct.pack(">i", 100_000))
        try:
            while time.monotonic() - began_s < 20:
                peer.sendall(b"x")
                peer.settimeout(0.05)
                try:
                    if not peer.recv(1):
                        break
                except TimeoutError:
                    continue
        except ConnectionError:
            pass
        assert 1.5 < time.monotonic() - began_s < 10
    assert traffic(secured).traffic.failed_authentications == failed + 1


# Settings.

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="SECRET";'
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "security.inter.broker.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN"}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, f"{JAAS}: PLAIN is enabled and has no users"),
        ({JAAS: PLAIN_USERS.replace("required", "")}, f"{JAAS}: expected a flag after|{JAAS}: expected required, requisite"),
        ({JAAS: PLAIN_USERS.replace("user_", "usr_")}, f"{JAAS}: option usr_alice of"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms: listener SASL_PLAINTEXT has SASL and no mechanism"),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "sasl.enabled.mechanisms: 'DIGEST-MD5' is not one of PLAIN"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url: OAUTHBEARER is enabled and has no keys"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///x"},
            "sasl.oauthbearer.expected.issuer: it is not set",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "file:///x",
                "sasl.oauthbearer.allow.unverified.issuer": "true",
            },
            "sasl.oauthbearer.expected.audience: it is not set",
        ),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"}, "sasl.oauthbearer.jwks.endpoint.url: expected a URL"),
    ],
)
def test_a_listener_whose_mechanism_lacks_something_refuses_the_start_by_name(tmp_path: Any, changed: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        ProcessPlan(data_dir=tmp_path, texts={**SASL, **changed}).listeners()
    assert "SECRET" not in str(refused.value)
