"""One server and one Spark session for all Spark tests. Each test has its own topics."""

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, NewTopic, Producer
from ottla.demo.brokers import serving
from ottla.spark.session import start_session
from serving import ELSEWHERE

from .clients import close_clients
from .pipelines import runner
from .schemas import serving_registry, write_descriptors

#: For short runs the optimizing compiler of the JVM costs more than it saves.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Addresses of a server with two brokers, or of the one named by an option."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    directory = tmp_path_factory.mktemp("brokers")
    with serving(directory / "data", directory / "server.log", brokers=2) as addresses:
        yield addresses


@pytest.fixture(scope="module", autouse=True)
def closed_clients() -> Iterator[None]:
    """Closes clients of this process that would go on connecting to servers that have ended."""
    yield
    close_clients()


@pytest.fixture
def spark_log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of a test about Spark; clients of other tests may log of their own."""
    caplog.set_level(logging.WARNING, "ottla.spark")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("ottla.spark")]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session."""
    session = start_session("tests", QUICK_JVM, log_file=tmp_path_factory.mktemp("spark") / "spark.log", cores=2)
    yield session
    session.stop()


class Topic:
    """A topic created for one test."""

    def __init__(self, bootstrap: str, partitions: int, configs: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(self.name, partitions, configs=dict(configs)))

    def add(self, *values: bytes | None, partition: int | None = None, key: bytes | None = None, **more: Any) -> None:
        """Writes records in order, and waits until they are acknowledged."""
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            sent = [producer.send(self.name, value, key=key, partition=partition, **more) for value in values]
            for delivery in sent:
                delivery.result()

    def source(self, reader: Any, **options: Any) -> Any:
        """A reader of `spark` set up to read this topic."""
        return reader.format("ottla").option("kafka.bootstrap.servers", self.bootstrap).option("subscribe", self.name).options(**options)

    def delete(self) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.delete_topics([self.name])


@pytest.fixture
def a_topic(bootstrap: str) -> Callable[..., Topic]:
    """Creates topics: ``a_topic(partitions=3)``."""

    def make(partitions: int = 1, **configs: str) -> Topic:
        return Topic(bootstrap, partitions, configs)

    return make


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs a pipeline over a topic's current records, in the test's directory. Returns the reported batches."""
    return runner(spark, tmp_path)


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """The address of a schema registry with the schemas of orders."""
    with serving_registry() as url:
        yield url


@pytest.fixture
def descriptors(tmp_path: Path) -> Path:
    """A descriptor file with shop.Order."""
    path = tmp_path / "orders.desc"
    write_descriptors(path)
    return path
