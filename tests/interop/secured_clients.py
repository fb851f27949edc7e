"""Foreign clients on secured listeners behind one interface: write records, then read them in a group.

A client of another language is a program in `foreign/` that runs for all tests of a module. A task is a line of its standard input, a
result a line of its standard output. The program translates a task into the settings of the client, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from bench import kafka as apache
from bench.maven import PeerUnavailable
from builds import FRANZ_GO, go_built, java_built, node_built
from client_adapters import KAFKA_PYTHON_POLL_MS
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider
from test_groups_of_other_languages import SARAMA

import kafka

DEADLINE_S = 20.0
#: The file that the Java client reads its token from.
TOKEN = "token"
SCRAM_MODULE = "v1.4.0"


@dataclass(frozen=True, slots=True)
class Task:
    """Records to write and to read, and how to connect. Empty texts are not set."""

    bootstrap: str
    protocol: str
    topic: str
    group: str
    ca: str = ""
    #: Certificate and key of the client, PEM files.
    certificate: str = ""
    key: str = ""
    mechanism: str = ""
    username: str = ""
    password: str = ""
    token: str = ""
    count: int = 3

    @property
    def tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        made = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            made.load_cert_chain(self.certificate, self.key)
        return made


@dataclass(slots=True)
class Result:
    """What the client read, and the error that it reported."""

    values: list[str] = field(default_factory=list)
    error: str = ""


#: Carries out a task.
Client = Callable[[Task], Result]


def expected(task: Task) -> Result:
    return Result([f"record {number}" for number in range(task.count)])


def confluent(task: Task) -> Result:
    """confluent-kafka, based on librdkafka."""
    errors: list[str] = []
    result = Result()
    settings: dict[str, Any] = {"bootstrap.servers": task.bootstrap, "security.protocol": task.protocol, "log_level": 0}
    settings["error_cb"] = lambda error: errors.append(f"{error.name()}: {error.str()}")
    if task.tls:
        settings |= {"ssl.ca.location": task.ca}
        if task.certificate:
            settings |= {"ssl.certificate.location": task.certificate, "ssl.key.location": task.key}
    if task.sasl:
        settings |= {"sasl.mechanism": task.mechanism}
        if task.token:
            settings["oauth_cb"] = lambda _: (task.token, time.time() + 300)
        else:
            settings |= {"sasl.username": task.username, "sasl.password": task.password}
    producer = confluent_kafka.Producer({**settings, "linger.ms": 0})

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(f"{error.name()}: {error.str()}")

    deadline_s = time.monotonic() + DEADLINE_S
    for number in range(task.count):
        producer.produce(task.topic, f"record {number}", on_delivery=delivered)
    while len(producer) and not errors and time.monotonic() < deadline_s:
        producer.poll(0.05)
    if errors:
        producer.purge()
        return Result(error="produce: " + "; ".join(errors))
    reading = {"group.id": task.group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 200}
    consumer = confluent_kafka.Consumer({**settings, **reading})
    try:
        consumer.subscribe([task.topic])
        while len(result.values) < task.count and not result.error and time.monotonic() < deadline_s:
            for message in consumer.consume(task.count, 0.1):
                error = message.error()
                if error is not None:
                    result.error = f"consume: {error.name()}: {error.str()}"
                else:
                    result.values.append((message.value() or b"").decode())
        if not result.error:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return result


class FixedToken(AbstractTokenProvider, KafkaPythonTokenProvider):  # type: ignore[misc]
    """The same token each time. kafka-python calls the function, aiokafka awaits its result."""

    def __init__(self, text: str, *, awaited: bool) -> None:
        self._text, self._awaited = text, awaited

    def token(self) -> Any:
        async def later() -> str:
            return self._text

        return later() if self._awaited else self._text


def _python_settings(task: Task, *, awaited: bool) -> dict[str, Any]:
    """The settings that kafka-python and aiokafka share."""
    settings: dict[str, Any] = {"bootstrap_servers": task.bootstrap, "security_protocol": task.protocol, "ssl_context": task.context()}
    if task.sasl:
        settings["sasl_mechanism"] = task.mechanism
        if task.token:
            settings["sasl_oauth_token_provider"] = FixedToken(task.token, awaited=awaited)
        else:
            settings |= {"sasl_plain_username": task.username, "sasl_plain_password": task.password}
    return settings


def kafka_python(task: Task) -> Result:
    settings = _python_settings(task, awaited=False)
    result, phase = Result(), "produce"
    reported: list[str] = []
    # It reports why a connection failed in its log; its exception says only that it could not connect in time.
    handler = logging.Handler()
    handler.emit = lambda record: reported.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kafka.net").addHandler(handler)
    try:
        producer = kafka.KafkaProducer(**settings, bootstrap_timeout_ms=1_000)
        try:
            for number in range(task.count):
                producer.send(task.topic, f"record {number}".encode()).get(DEADLINE_S)
        finally:
            producer.close(1)
        phase = "consume"
        reading = {"group_id": task.group, "auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 200}
        consumer = kafka.KafkaConsumer(**settings, **reading)
        try:
            # It may join with no metadata of the topic, and then assigns nothing until the metadata expires.
            consumer.partitions_for_topic(task.topic)
            consumer.subscribe([task.topic])
            deadline_s = time.monotonic() + DEADLINE_S
            while len(result.values) < task.count and time.monotonic() < deadline_s:
                for records in consumer.poll(KAFKA_PYTHON_POLL_MS).values():
                    result.values += [record.value.decode() for record in records]
            consumer.commit()
        finally:
            consumer.close()
    except kafka.errors.KafkaError as error:
        result.error = f"{phase}: {type(error).__name__}: {error}; {'; '.join(reported)}"
    finally:
        logging.getLogger("kafka.net").removeHandler(handler)
    return result


def aio_kafka(task: Task) -> Result:
    async def run() -> Result:
        settings = _python_settings(task, awaited=True)
        result, phase = Result(), "produce"
        try:
            producer = aiokafka.AIOKafkaProducer(**settings)
            try:
                await producer.start()
                for number in range(task.count):
                    await producer.send_and_wait(task.topic, f"record {number}".encode())
            finally:
                await producer.stop()
            phase = "consume"
            reading = {"group_id": task.group, "auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 200}
            consumer = aiokafka.AIOKafkaConsumer(task.topic, **settings, **reading)
            try:
                await consumer.start()
                async with asyncio.timeout(DEADLINE_S):
                    while len(result.values) < task.count:
                        for records in (await consumer.getmany(timeout_ms=200)).values():
                            result.values += [record.value.decode() for record in records]
                await consumer.commit()
            finally:
                await consumer.stop()
        except aiokafka.errors.KafkaError as error:
            result.error = f"{phase}: {type(error).__name__}: {error}"
        return result

    return asyncio.run(run())


@contextmanager
def _program(command: Sequence[str | Path], ask: Callable[[Task], str], parse: Callable[[str], Result]) -> Iterator[Client]:
    words = [str(part) for part in command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None and process.stdout is not None, "they are pipes"

        def client(task: Task) -> Result:
            assert process.stdin is not None and process.stdout is not None, "they are pipes"
            process.stdin.write(ask(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, f"{words[0]} ended with {process.wait(10)}"
            return parse(line)

        yield client
        process.stdin.close()


def _json_program(command: Sequence[str | Path]) -> Any:
    return _program(command, lambda task: json.dumps(asdict(task)), lambda line: Result(**json.loads(line)))


LOGIN_MODULES = {
    "PLAIN": 'plain.PlainLoginModule required username="{username}" password="{password}";',
    "SCRAM-SHA-256": 'scram.ScramLoginModule required username="{username}" password="{password}";',
    "SCRAM-SHA-512": 'scram.ScramLoginModule required username="{username}" password="{password}";',
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule required;",
}


def java_properties(task: Task, directory: Path) -> dict[str, str]:
    """The settings of a Java client."""
    settings = {"bootstrap.servers": task.bootstrap, "security.protocol": task.protocol}
    if task.tls:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": task.ca}
        if task.certificate:
            both = directory / f"{task.group}.pem"
            both.write_text(Path(task.key).read_text() + Path(task.certificate).read_text())
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    if task.sasl:
        module = LOGIN_MODULES[task.mechanism].format(username=task.username, password=task.password)
        settings |= {"sasl.mechanism": task.mechanism, "sasl.jaas.config": f"org.apache.kafka.common.security.{module}"}
        if task.token:
            (directory / TOKEN).write_text(task.token)
            settings["sasl.oauthbearer.token.endpoint.url"] = f"file://{directory / TOKEN}"
            settings["sasl.login.callback.handler.class"] = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    return settings


@contextmanager
def java(directory: Path) -> Iterator[Client]:
    runtime, classpath = java_built("SecuredClient")
    try:
        lib = apache.distribution().lib
        # It parses tokens with libraries that the client's artifact does not bring. With all jars it would log to standard output.
        classpath = os.pathsep.join((classpath, *(str(jar) for name in ("jackson-*.jar", "jose4j-*.jar") for jar in lib.glob(name))))
    except PeerUnavailable as why:
        pytest.skip(f"Apache Kafka cannot be had here: {why}")

    def ask(task: Task) -> str:
        path = directory / f"{task.group}.properties"
        path.write_text("".join(f"{name}={text}\n" for name, text in java_properties(task, directory).items()))
        return "\t".join((str(path), task.topic, task.group, str(task.count)))

    def parse(line: str) -> Result:
        error, _, values = line.rstrip("\n").partition("\t")
        return Result(values.split(",") if values else [], "" if error == "-" else bytes.fromhex(error).decode())

    # Java reads a token only from a file that is named at its start.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{directory / TOKEN}"
    options = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", allowed)
    with _program([runtime.path, *options, "-cp", classpath, "SecuredClient"], ask, parse) as client:
        yield client


@contextmanager
def of_this_process(client: Client) -> Iterator[Client]:
    yield client


def franz_go(directory: Path) -> Any:
    modules = ("github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/sasl/scram")
    return _json_program([go_built("secured_franz.go", *(f"{module}@{FRANZ_GO}" for module in modules))])


def sarama(directory: Path) -> Any:
    return _json_program([go_built("secured_sarama.go", f"github.com/IBM/sarama@{SARAMA}", f"github.com/xdg-go/scram@{SCRAM_MODULE}")])


def kafkajs(directory: Path) -> Any:
    return _json_program(["node", node_built("secured.mjs")])


#: Context managers of the clients, by name. The argument is a directory for the client's files.
CLIENTS: dict[str, Callable[[Path], Any]] = {
    "java": java,
    "librdkafka": lambda _: of_this_process(confluent),
    "kafka-python": lambda _: of_this_process(kafka_python),
    "aiokafka": lambda _: of_this_process(aio_kafka),
    "franz-go": franz_go,
    "sarama": sarama,
    "kafkajs": kafkajs,
}
