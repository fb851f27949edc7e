"""Frameworks on Kafka's clients with Ottla: unmodified Kafka Streams, Connect, and MirrorMaker 2 as a connector.

They use features that plain clients rarely need: topics that they create and configure, compacted topics that hold state for recovery,
deletion of processed records, and workers that share tasks with a protocol of their own within a consumer group. Those that offer exactly
once run with it, and are killed.
"""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from bench import kafka as apache
from java_programs import jars, properties, running

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


def test_a_streams_application_counts_words_and_restores_its_state_from_its_changelog(
    tmp_path: Path, apache_kafka: apache.Distribution
) -> None:
    lib = jars("kafka-streams-examples")
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


def test_a_streams_application_with_exactly_once_counts_each_word_once_while_it_is_killed(
    tmp_path: Path, apache_kafka: apache.Distribution
) -> None:
    """Kafka Streams with `exactly_once_v2` and transactions of 100 ms. Its process is killed three times while it has work, and its broker
    once. Each committed count of a word is higher than the one before it, and the last is the number of times that it was sent.
    """
    lib = jars("kafka-streams-examples")
    words = [f"w{number}" for number in range(7)]
    sent = dict.fromkeys((word.encode() for word in words), 0)
    settings = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    with Serving(tmp_path / "data", settings=settings) as server:
        with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("streams-plaintext-input", 2))
            admin.create_topic(NewTopic("streams-wordcount-output", 2))

        def send(lines: int) -> None:
            with ottla.Producer(bootstrap_servers=server.bootstrap) as producer:
                for number in range(lines):
                    producer.send("streams-plaintext-input", " ".join(words[: number % 7 + 1]).encode(), partition=number % 2)
                    for word in words[: number % 7 + 1]:
                        sent[word.encode()] += 1

        def counted() -> dict[bytes | None, list[int]]:
            """The committed counts of each word, in the order of the log."""
            table = ottla.read_table("streams-wordcount-output", bootstrap_servers=server.bootstrap, isolation_level="read_committed")
            found: dict[bytes | None, list[int]] = {}
            for word, count in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
                found.setdefault(word, []).append(int.from_bytes(count, "big"))
            return found

        def total() -> int:
            return sum(counts[-1] for counts in counted().values())

        # A static member resumes its partitions at once when it starts again; no wait for its session.
        soon = {"commit.interval.ms": 100, "max.poll.records": 50, "consumer.group.instance.id": "counter", "state.dir": tmp_path / "state"}
        configs = {
            "bootstrap.servers": server.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": 0,
            **soon,
        }
        file = properties(tmp_path / "streams.properties", configs)
        interrupted = 0
        with running(apache_kafka, lib, tmp_path, "org.apache.kafka.streams.examples.wordcount.WordCountDemo", file) as program:
            for life in range(3):
                before = total()
                send(100)
                program.until(lambda: total() > before, f"progress of run {life}")  # noqa: B023
                send(3_000)
                program.kill()
                interrupted += total() < sum(sent.values())
                if life == 1:
                    server.kill()
                    server.start()
                program.start()
            program.until(lambda: total() >= sum(sent.values()), "all words are counted")
        assert interrupted, "it was killed while it had work"
        assert {word: counts[-1] for word, counts in counted().items()} == sent
        for word, counts in counted().items():
            assert counts == list(range(1, sent[word or b""] + 1)), "each count is committed once"


def test_connect_moves_files_and_mirrors_a_topic_over_a_broker_that_is_killed(tmp_path: Path, apache_kafka: apache.Distribution) -> None:
    lib = jars("connect-mirror", also="org.apache.kafka:connect-file:{version}")
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


@pytest.mark.long
def test_sources_with_exactly_once_write_each_line_once_while_their_worker_is_killed(
    tmp_path: Path, apache_kafka: apache.Distribution
) -> None:
    """KIP-618: a file's source and MirrorMaker's, whose transactions hold their own offsets. The worker is killed."""
    lib = jars("connect-mirror", also="org.apache.kafka:connect-file:{version}")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    lines, written = tmp_path / "before.txt", 0
    with Serving(tmp_path / "data", settings={"transaction.state.log.num.partitions": "2"}) as server:

        def write(count: int) -> None:
            nonlocal written
            with lines.open("a") as more:
                more.write("".join(f"line-{number:06}\n" for number in range(written, written + count)))
            written += count

        def committed(topic: str) -> list[str]:
            try:
                table = ottla.read_table(topic, bootstrap_servers=server.bootstrap, isolation_level="read_committed")
            except UnknownTopicOrPartition:
                return []
            return [value.decode() for value in table["value"].to_pylist()]

        # Nobody waits for a dead worker: its tasks are assigned again when its session expires.
        settings = worker(server.bootstrap, port) | {"exactly.once.source.support": "enabled", "scheduled.rebalance.max.delay.ms": 0}
        settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        file = properties(tmp_path / "connect.properties", settings)
        exactly_once = {"exactly.once.support": "required", "transaction.boundary": "poll"}
        of_mirror = {"source.consumer.isolation.level": "read_committed", "consumer.override.isolation.level": "read_committed"}
        write(1_000)
        with running(apache_kafka, lib, tmp_path, "org.apache.kafka.connect.cli.ConnectDistributed", file) as program:
            url = f"http://127.0.0.1:{port}/connectors"
            program.until(lambda: request_succeeds(url), "the worker's interface")
            for name, config in connectors(server.bootstrap, lines, tmp_path / "unused").items():
                if "Sink" in name:
                    continue
                own = {"batch.size": 50} if "File" in name else of_mirror
                request = {"name": name, "config": {"connector.class": f"org.apache.kafka.connect.{name}", **config, **exactly_once, **own}}
                program.until(lambda: request_succeeds(url, request), name)  # noqa: B023
            before = len(committed("lines"))
            write(10_000)
            program.until(lambda: len(committed("lines")) > before, "progress")
            program.kill()
            interrupted = len(committed("lines")) < written
            program.start()
            expected = [f"line-{number:06}" for number in range(written)]
            program.until(lambda: len(committed("lines")) >= written, "every line in the topic")
            program.until(lambda: len(committed("here.lines")) >= written, "every line in the mirror")
        assert interrupted, "it was killed while it had work"
        assert sorted(committed("lines")) == expected
        assert sorted(committed("here.lines")) == expected
