"""Foreign clients meet a broker here: one with stock settings, unless a test starts its own.

With OTTLA_INTEROP_BOOTSTRAP=HOST:PORT the tests of this directory run against the server at that address instead, as a check that they
ask for nothing that Apache Kafka does not do; those that need a server of their own are skipped then.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from bench import kafka as apache
from bench.maven import PeerUnavailable
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_tools import Run, kafka_tools
from tools.class_archives import options_for

ELSEWHERE = os.environ.get("OTTLA_INTEROP_BOOTSTRAP", "")


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of the broker under test."""
    return ELSEWHERE or request.getfixturevalue("ottla_server").bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


NewTopicName = Callable[..., str]


@pytest.fixture
def new_topic(admin: AdminClient) -> NewTopicName:
    """Creates a topic with a unique name; settings are keywords, with `_` for `.`."""

    def make(partitions: int = 1, **settings: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(20)
        return name

    return make


@pytest.fixture
def own_server_only() -> None:
    if ELSEWHERE:
        pytest.skip("starts an Ottla of its own; another server was asked for")


@pytest.fixture(scope="session")
def apache_kafka() -> apache.Distribution:
    """Apache Kafka, from the cache of the benchmarks or downloaded into it by Maven."""
    try:
        return replace(apache.distribution(), options=options_for("kafka"))
    except PeerUnavailable as why:
        pytest.skip(f"Apache Kafka cannot be had here: {why}")


@pytest.fixture(scope="module")
def run(apache_kafka: apache.Distribution) -> Iterator[Run]:
    """Runs Kafka's command-line tools; one JVM for the commands of a module. Some tools leave clients behind, which look for brokers until
    the JVM ends.
    """
    with kafka_tools(apache_kafka) as tool:
        yield tool
