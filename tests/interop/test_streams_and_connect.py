"""Frameworks on Kafka's clients with Ottla: unmodified Kafka Streams, Connect, and MirrorMaker 2 as a connector.

They use features that plain clients rarely need: topics that they create and configure, compacted topics that hold state for recovery,
deletion of processed records, and workers that share tasks with a protocol of their own within a consumer group.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench import kafka as apache
from bench import maven
from bench.maven import PeerUnavailable

import ottla
from ottla import NewTopic, Resource
from ottla.wire.errors import UnknownTopicOrPartition
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("own_server_only"),
]

WAIT_S = 120
LOGGING = """rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %c %m%n
"""


def jars(apache_kafka: apache.Distribution, artifact: str, also: str | None = None) -> Path:
    """A module of Apache Kafka with its dependencies, of the release that the other tests use."""
    try:
        return maven.newest(artifact, "org.apache.kafka", artifact, pattern=re.escape(apache_kafka.version), also=also)[1]
    except PeerUnavailable as why:
        pytest.skip(f"{artifact} cannot be had here: {why}")


class Program:
    """A Java program and its output; it ends with the block."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not true():
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline_s, f"{what} holds in time:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)


@contextmanager
def running(apache_kafka: apache.Distribution, lib: Path, directory: Path, *command: str) -> Iterator[Program]:
    logging = directory / "log4j2.properties"
    logging.write_text(LOGGING)
    path = f"{lib}/*{os.pathsep}{apache_kafka.lib}/*"
    options = ("-Xmx256M", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={logging}")
    program = Program([apache_kafka.java.path, *options, "-cp", path, *command], directory / "java.log")
    try:
        yield program
        program.process.terminate()
        program.process.wait(60)
    finally:
        program.process.kill()
        program.process.wait(20)


def properties(path: Path, values: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)


def test_a_streams_application_counts_words_and_restores_its_state_from_its_changelog(
    tmp_path: Path, apache_kafka: apache.Distribution
) -> None:
    lib = jars(apache_kafka, "kafka-streams-examples")
    with Serving(tmp_path / "data", settings={"offsets.topic.num.partitions": "2"}) as server:
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("streams-plaintext-input", 2))
            admin.create_topic(NewTopic("streams-wordcount-output", 2, configs={"cleanup.policy": "compact"}))

        def counted() -> dict[bytes | None, int]:
            table = ottla.read_table("streams-wordcount-output", bootstrap_servers=server.bootstrap)
            found = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
            return {word: int.from_bytes(count, "big") for word, count in found}

        # The second run has only the contents of the topics.
        for life, expected in enumerate([{b"all": 1, b"roads": 1, b"lead": 1, b"to": 2, b"rome": 1, b"or": 1}, {b"to": 3, b"rome": 2}]):
            with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
                for line in [("All roads lead", "to Rome or to"), ("to Rome",)][life]:
                    producer.send("streams-plaintext-input", line.encode())
            # A consumer of Kafka Streams does not leave the group: its partitions are free when its session expires.
            soon = {"commit.interval.ms": 200, "consumer.session.timeout.ms": 6_000, "consumer.heartbeat.interval.ms": 500}
            settings = {"bootstrap.servers": server.bootstrap, "state.dir": tmp_path / f"state-{life}", **soon}
            file = properties(tmp_path / "streams.properties", settings)
            with running(apache_kafka, lib, tmp_path, "org.apache.kafka.streams.examples.wordcount.WordCountDemo", file) as program:
                program.until(lambda: expected.items() <= counted().items(), f"the counts of run {life}")  # noqa: B023
        assert counted() == {b"all": 1, b"roads": 1, b"lead": 1, b"to": 3, b"rome": 2, b"or": 1}
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            (changelog,) = [one.name for one in admin.list_topics() if one.name.endswith("-changelog")]
            configs = admin.describe_configs([Resource.topic(changelog)], names=["cleanup.policy"])[Resource.topic(changelog)]
            assert not isinstance(configs, Exception)
            assert configs["cleanup.policy"].value == "compact"


def request_succeeds(url: str, request: dict[str, Any] | None = None) -> bool:
    """Whether a worker accepts a request. While it starts it answers 404, 500 or 503; during a rebalance of workers 409."""
    data = None if request is None else json.dumps(request).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code == 400:
            raise
        return False
    except OSError:
        return False
    return True


def worker(bootstrap: str, port: int) -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": "workers",
        "listeners": f"HTTP://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 500,
    }
    for kind in ("key", "value"):
        settings[f"{kind}.converter"] = "org.apache.kafka.connect.storage.StringConverter"
    for kind in ("config", "offset", "status"):
        settings[f"{kind}.storage.topic"], settings[f"{kind}.storage.replication.factor"] = f"connect-{kind}", 1
    return settings


def connectors(bootstrap: str, before: Path, after: Path) -> dict[str, dict[str, object]]:
    """From a file to topic `lines`; from there to another file, and to topic `here.lines`."""
    made_with = {"topic.creation.default.partitions": 3, "topic.creation.default.replication.factor": 1}
    mirror: dict[str, object] = {"source.cluster.alias": "here", "target.cluster.alias": "there", "topics": "lines", "tasks.max": 2}
    mirror |= dict.fromkeys(("source.cluster.bootstrap.servers", "target.cluster.bootstrap.servers"), bootstrap)
    mirror |= dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.converters.ByteArrayConverter")
    mirror |= {"replication.factor": 1, "offset-syncs.topic.replication.factor": 1, "sync.topic.acls.enabled": False}
    return {
        "file.FileStreamSourceConnector": {"file": str(before), "topic": "lines", **made_with},
        "file.FileStreamSinkConnector": {"file": str(after), "topics": "lines"},
        "mirror.MirrorSourceConnector": {**mirror, "refresh.topics.interval.seconds": 1},
    }


def test_connect_moves_files_and_mirrors_a_topic_over_a_broker_that_is_killed(tmp_path: Path, apache_kafka: apache.Distribution) -> None:
    lib = jars(apache_kafka, "connect-mirror", also="org.apache.kafka:connect-file:{version}")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    before, after = tmp_path / "before.txt", tmp_path / "after.txt"
    with Serving(tmp_path / "data") as server:

        def arrived() -> bool:
            return sorted(before.read_text().split()) == sorted(set(after.read_text().split())) if after.exists() else False

        def mirrored() -> bool:
            try:
                table = ottla.read_table("here.lines", bootstrap_servers=server.bootstrap)
            except UnknownTopicOrPartition:
                return False
            return {value.decode() for value in table["value"].to_pylist()} == set(before.read_text().split())

        before.write_text("".join(f"first-{number}\n" for number in range(500)))
        file = properties(tmp_path / "connect.properties", worker(server.bootstrap, port))
        with running(apache_kafka, lib, tmp_path, "org.apache.kafka.connect.cli.ConnectDistributed", file) as program:
            url = f"http://127.0.0.1:{port}/connectors"
            program.until(lambda: request_succeeds(url), "the worker's interface")
            for name, config in connectors(server.bootstrap, before, after).items():
                request = {"name": name, "config": {"connector.class": f"org.apache.kafka.connect.{name}", **config}}
                program.until(lambda: request_succeeds(url, request), name)  # noqa: B023
            program.until(arrived, "every line in the file")
            server.kill()
            server.start()
            with before.open("a") as more:
                more.write("".join(f"second-{number}\n" for number in range(500)))
            program.until(arrived, "every line in the file after the kill")
            program.until(mirrored, "every line in the mirror")
