"""Clients over TLS against a server process: records both ways, principals, and errors that are told apart."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

import ottla
from certificates import Certificate
from kafka import KafkaConsumer, KafkaProducer
from ottla.base.options import ConfigError
from ottla.wire.errors import KafkaError
from serving import Serving

pytestmark = pytest.mark.server

RECORDS = [b"%d " % number * 500 for number in range(2_000)]


class Secured:
    """A broker whose listener SECURE requires certificates, and an authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Certificate.authority()
        self.trusted = self.authority.write_trusted(directory / "ca.pem")
        broker = self.authority.issue("broker").write_pkcs12(directory / "broker.p12", "sentinel-keystore")
        self.properties = directory / "server.properties"
        self.properties.write_text(f"""
listeners=SECURE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0
listener.security.protocol.map=SECURE:SSL,PLAINTEXT:PLAINTEXT
inter.broker.listener.name=SECURE
ssl.keystore.type=PKCS12
ssl.keystore.location={broker}
ssl.keystore.password=sentinel-keystore
ssl.truststore.type=PEM
ssl.truststore.location={self.trusted}
ssl.client.auth=required
""")
        self.server = Serving(directory / "data", arguments=["--config", str(self.properties)], listen=False)
        self.alice = self.authority.issue("alice").write_pem(directory / "alice.pem")

    def settings(self, **more: Any) -> dict[str, Any]:
        """Of Ottla's clients."""
        return {
            "bootstrap_servers": self.server.bootstrap,
            "security_protocol": "SSL",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(self.trusted),
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(self.alice),
            **more,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


def read_all(secured: Secured, topic: str, count: int) -> list[bytes | None]:
    with ottla.Consumer(topic, group_id="ours", auto_offset_reset="earliest", **secured.settings()) as consumer:
        found: list[bytes | None] = []
        deadline_s = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline_s:
            found += [record.value for record in consumer.poll(0.5)]
        return found


def test_records_go_both_ways_over_tls(secured: Secured) -> None:
    with ottla.Producer(**secured.settings()) as producer:
        for record in RECORDS:
            producer.send("ours", record)
    assert read_all(secured, "ours", len(RECORDS)) == RECORDS


def test_librdkafka_reads_and_writes_over_tls(secured: Secured) -> None:
    shared = {
        "bootstrap.servers": secured.server.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.trusted),
        "ssl.certificate.location": str(secured.alice),
        "ssl.key.location": str(secured.alice),
    }
    producer = ConfluentProducer(shared)
    for record in RECORDS:
        producer.produce("theirs", record)
    assert producer.flush(30) == 0
    consumer = ConfluentConsumer({**shared, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["theirs"])
    found = [message.value() for message in consumer.consume(len(RECORDS), 30)]
    consumer.close()
    assert found == RECORDS


def test_kafka_python_reads_and_writes_over_tls(secured: Secured) -> None:
    shared = {
        "bootstrap_servers": secured.server.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(secured.trusted),
        "ssl_certfile": str(secured.alice),
        "ssl_keyfile": str(secured.alice),
    }
    producer = KafkaProducer(**shared)
    for record in RECORDS[:200]:
        producer.send("python", record)
    producer.close()
    consumer = KafkaConsumer("python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **shared)
    found = [next(consumer).value for _ in range(200)]
    consumer.close()
    assert found == RECORDS[:200]


async def test_aiokafka_reads_and_writes_over_tls(secured: Secured) -> None:
    from aiokafka.helpers import create_ssl_context

    context = create_ssl_context(cafile=str(secured.trusted), certfile=str(secured.alice), keyfile=str(secured.alice))
    shared = {"bootstrap_servers": secured.server.bootstrap, "security_protocol": "SSL", "ssl_context": context}
    topic = f"aio-{type(asyncio.get_running_loop()).__module__.split('.')[0]}"
    async with AIOKafkaProducer(**shared) as producer:
        for record in RECORDS[:200]:
            await producer.send_and_wait(topic, record)
    async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **shared) as consumer:
        assert [(await consumer.getone()).value for _ in range(200)] == RECORDS[:200]


def told(settings: dict[str, Any]) -> str:
    """The error of a client."""
    with pytest.raises(KafkaError) as failed, ottla.Admin(default_api_timeout_ms=2_000, **settings) as admin:
        admin.list_topics()
    return str(failed.value)


def test_errors_of_tls_are_told_apart(secured: Secured, tmp_path: Path) -> None:
    other = Certificate.authority("other")
    none = {"ssl_keystore_location": "", "ssl_keystore_type": "JKS"}
    assert "the authority of the peer's certificate is unknown" in told(
        secured.settings(ssl_truststore_location=str(other.write_trusted(tmp_path / "other.pem")))
    )
    assert "the server needs a certificate of the client" in told(secured.settings(**none))
    plain = {"bootstrap_servers": secured.server.bootstrap}
    assert "the listener speaks TLS, and this client does not" in told(plain)
    with Serving(tmp_path / "plain") as server:
        message = told(secured.settings(bootstrap_servers=server.bootstrap))
        assert "is it a listener without TLS?" in message or "is one side plaintext?" in message


@pytest.mark.parametrize(
    ("certificate", "problem"),
    [
        ({"days": -0.5}, "the certificate of the peer has expired"),
        ({"names": ["elsewhere.example"]}, "the certificate is for another host: IP address mismatch"),
    ],
)
def test_a_certificate_that_a_broker_cannot_show_is_told(
    secured: Secured, tmp_path: Path, certificate: dict[str, Any], problem: str
) -> None:
    wrong = secured.authority.issue("broker", **certificate).write_pem(tmp_path / "wrong.pem")
    properties = tmp_path / "server.properties"
    properties.write_text(f"""
listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0
ssl.keystore.type=PEM
ssl.keystore.location={wrong}
""")
    with Serving(tmp_path / "data", arguments=["--config", str(properties)], listen=False) as server:
        assert problem in told(secured.settings(bootstrap_servers=server.bootstrap))
        if "days" not in certificate:
            unchecked = secured.settings(bootstrap_servers=server.bootstrap, ssl_endpoint_identification_algorithm="")
            with ottla.Admin(**unchecked) as admin:
                assert admin.list_topics() == []


def test_settings_of_tls_without_effect_are_refused(secured: Secured) -> None:
    with pytest.raises(ConfigError, match="ssl_truststore_location: has no effect with security_protocol=PLAINTEXT"):
        ottla.Producer(**secured.settings(security_protocol="PLAINTEXT"))
    with (
        pytest.raises(ConfigError, match="ssl_truststore_location: cannot read /none"),
        contextlib.closing(ottla.Admin(**secured.settings(ssl_truststore_location="/none"))) as admin,
    ):
        admin.list_topics()
