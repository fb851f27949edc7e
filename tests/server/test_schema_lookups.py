"""Brokers that validate schemas with a real registry: Confluent's serializers, outages, settings."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("confluent_kafka")

import confluent_kafka

from ottla import Admin, NewTopic, Producer
from ottla.base.options import ConfigError
from ottla.broker.effects import LookUpSchemas
from ottla.broker.events import SchemasLookedUp
from ottla.broker.metadata.configs import BrokerOptions, Settings
from ottla.client.schema_registry import Registry
from ottla.errors import InvalidRecord, KafkaError
from ottla.results import Resource
from ottla.server.schema_lookups import SchemaLookups
from ottla.testing import Broker, SchemaRegistry, broker, schema_registry

pytestmark = pytest.mark.server
ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
OTHER = json.dumps({"type": "record", "name": "Other", "fields": [{"name": "id", "type": "long"}]})
VALIDATED = {"ottla.value.schema.validation": "true"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def a_registry() -> Iterator[SchemaRegistry]:
    """A registry, and its broker, which asks it and a dead address."""
    port = free_port()
    urls = f"http://127.0.0.1:{free_port()},http://127.0.0.1:{port}"
    settings = {"ottla.schema.registry.url": urls, "ottla.schema.registry.timeout.ms": 20_000}
    with broker(settings=settings) as started, schema_registry(started, port=port) as registry:
        registry.broker = started  # type: ignore[attr-defined]
        with Admin(bootstrap_servers=started.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, configs=VALIDATED) for name in ("orders", "late", "down")])
        yield registry


def broker_of(registry: SchemaRegistry) -> Broker:
    found: Broker = registry.broker  # type: ignore[attr-defined]
    return found


def test_confluents_serializer_writes_and_a_plain_producer_is_refused(a_registry: SchemaRegistry) -> None:
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.serialization import MessageField, SerializationContext

    started = broker_of(a_registry)
    client = SchemaRegistryClient({"url": a_registry.url})
    serializer = avro.AvroSerializer(client, ORDER)
    outcomes: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": started.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})

    def send(value: bytes | None) -> None:
        producer.produce("orders", value, on_delivery=lambda error, _: outcomes.append(error and error.code()))

    for number in range(20):
        send(serializer({"id": number}, SerializationContext("orders", MessageField.VALUE)))
    send(None)
    assert producer.flush(60) == 0
    assert outcomes == [None] * 21
    foreign = client.register_schema("other-value", confluent_kafka.schema_registry.Schema(OTHER, "AVRO"))
    send(b"\0" + foreign.to_bytes(4, "big") + b"\2")
    assert producer.flush(60) == 0
    assert outcomes[21:] == [confluent_kafka.KafkaError.INVALID_RECORD]
    assert len(started.topic("orders").values()) == 21


def test_a_schema_that_is_registered_after_a_refusal_is_accepted_within_a_second(a_registry: SchemaRegistry) -> None:
    """The answer that a schema is missing is not kept for long; the record of the refusal is named."""
    registry = Registry(a_registry.url)
    number = registry.added("elsewhere-value", OTHER).id
    value = b"\0" + number.to_bytes(4, "big") + b"\2"
    with Producer(bootstrap_servers=broker_of(a_registry).bootstrap_servers) as producer:
        with pytest.raises(InvalidRecord, match=f"no schema {number} under the subject late-value"):
            producer.send("late", value).result(60)
        registry.added("late-value", OTHER)
        waited = threading.Event()
        for _ in range(100):
            try:
                producer.send("late", value).result(60)
                break
            except InvalidRecord:
                waited.wait(0.1)
        assert broker_of(a_registry).topic("late").values() == [value]
    registry.close()


def test_a_registry_that_is_down_makes_producers_wait_and_try_again(a_registry: SchemaRegistry) -> None:
    registry = Registry(a_registry.url)
    number = registry.added("down-value", ORDER).id
    registry.close()
    value = b"\0" + number.to_bytes(4, "big") + b"\2"
    a_registry.stop()
    with Producer(bootstrap_servers=broker_of(a_registry).bootstrap_servers) as producer:
        sent = producer.send("down", value)
        with pytest.raises(TimeoutError):
            sent.result(1.0)
        a_registry.start()
        sent.result(60)
    assert broker_of(a_registry).topic("down").values() == [value]


@pytest.mark.parametrize("client", ["ottla", "librdkafka"])
def test_a_topic_that_a_producer_creates_is_validated_once_the_setting_is_made(a_registry: SchemaRegistry, client: str) -> None:
    """Its first Produce is not: settings of topics have no default."""
    started, topic = broker_of(a_registry), f"made-by-{client}"
    outcomes: list[int | None] = []
    registry = Registry(a_registry.url)
    number = registry.added(f"{topic}-value", ORDER).id
    registry.close()

    def sent(value: bytes) -> bool:
        """False if the record is refused as invalid."""
        if client == "ottla":
            with Producer(bootstrap_servers=started.bootstrap_servers) as producer:
                try:
                    producer.send(topic, value).result(60)
                except InvalidRecord:
                    return False
                return True
        other = confluent_kafka.Producer({"bootstrap.servers": started.bootstrap_servers, "linger.ms": 0})
        other.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error and error.code()))
        assert other.flush(60) == 0 and outcomes[-1] in (None, confluent_kafka.KafkaError.INVALID_RECORD)
        return outcomes[-1] is None

    assert sent(b"plain")
    with Admin(bootstrap_servers=started.bootstrap_servers) as admin:
        admin.incremental_alter_config(Resource.topic(topic), VALIDATED)
    framed = b"\0" + number.to_bytes(4, "big") + b"\2"
    assert (sent(b"plain"), sent(framed)) == (False, True)
    assert started.topic(topic).values() == [b"plain", framed]


# The look-up itself, against a server of the test.


class Answers(BaseHTTPRequestHandler):
    """Answers each path with a status and a JSON."""

    by_path: dict[str, tuple[int, Any]] = {}
    seen: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        status, content = self.by_path.get(self.path, (404, {"error_code": 40403, "message": "Schema not found"}))
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def a_server() -> Iterator[str]:
    Answers.by_path, Answers.seen = {}, []
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def asked(options: dict[str, str], *ids: int) -> SchemasLookedUp:
    lookups, answers = SchemaLookups(BrokerOptions.of(options)), Queue[SchemasLookedUp]()
    lookups.ask(LookUpSchemas(ticket=1, subject="t-value", ids=ids), answers.put)
    found = answers.get(timeout=60)
    lookups.close()
    return found


def test_an_address_that_has_the_schema_outweighs_one_that_has_not(a_server: str) -> None:
    """Two names of one server, of which each knows another schema."""
    Answers.by_path["/a/schemas/ids/1/subjects"] = (200, ["t-value"])
    Answers.by_path["/b/schemas/ids/2/subjects"] = (200, ["u-value", "t-value"])
    Answers.by_path["/b/schemas/ids/3/subjects"] = (200, ["u-value"])
    found = asked({"ottla.schema.registry.url": f"{a_server}/a/, {a_server}/b"}, 1, 2, 3, 4)
    assert (found.registered, found.unknown, found.problem) == ((1, 2), (3, 4), "")


@pytest.mark.parametrize(
    ("status", "content", "part"), [(500, {}, "500"), (401, {"message": "who?"}, "401"), (200, {"a": 1}, "not a list")]
)
def test_an_answer_that_is_none_is_a_problem(a_server: str, status: int, content: Any, part: str) -> None:
    Answers.by_path["/schemas/ids/1/subjects"] = (status, content)
    found = asked({"ottla.schema.registry.url": a_server}, 1, 2)
    assert (found.registered, found.unknown) == ((), ()) and part in found.problem


def test_credentials_are_sent_and_not_shown(a_server: str) -> None:
    options = {"ottla.schema.registry.url": a_server, "ottla.schema.registry.user": "me", "ottla.schema.registry.password": "secret"}
    problem = asked(options, 1).problem + repr(SchemaLookups(BrokerOptions.of(options))._registries[0]._access)
    assert Answers.seen == [("/schemas/ids/1/subjects", "Basic bWU6c2VjcmV0")] and "secret" not in problem
    for spec in Settings(options).options.SPECS.values():
        if spec.name in ("ottla.schema.registry.password", "ottla.schema.registry.token"):
            assert spec.render("secret") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ottla.schema.registry.url", "registry:8081"),
        ("ottla.schema.registry.url", "http://me:secret@registry:8081"),
        ("ottla.schema.registry.ssl.ca.location", "/no/such/file"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(name: str, text: str) -> None:
    with (
        pytest.raises((ConfigError, KafkaError)) as raised,
        broker(settings={"ottla.schema.registry.url": "http://127.0.0.1:1", name: text}),
    ):
        pass
    assert "ottla.schema.registry" in str(raised.value) and "secret" not in str(raised.value)
