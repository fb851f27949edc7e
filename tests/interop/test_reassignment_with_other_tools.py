"""Other tools move partitions and elect leaders: Kafka's commands, and kafka-python's admin client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka_tools import Run

import kafka
import ottla
from ottla import NewTopic
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(240), pytest.mark.usefixtures("own_server_only")]

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """Three brokers; topic t with partitions on 1 and 2, a megabyte in each."""
    with Serving(tmp_path / "data", brokers=3) as made:
        with ottla.Admin(bootstrap_servers=made.bootstrap) as admin:
            admin.create_topic(NewTopic("t", assignments={0: [1, 2], 1: [2, 1]}))
        with ottla.Producer(bootstrap_servers=made.bootstrap) as producer:
            for number in range(80):
                producer.send("t", bytes(30_000), partition=number % 2)
                producer.flush()
        yield made


def replicas(server: Serving) -> dict[int, list[int]]:
    with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
        return {one.partition: one.replicas for one in admin.describe_topic("t").partitions}


def until(true: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "the condition holds in time"
        time.sleep(0.1)


def test_kafkas_commands_move_partitions_and_elect_leaders(server: Serving, tmp_path: Path, run: Run) -> None:
    def plan(wished: dict[int, list[int]]) -> tuple[str, str]:
        path = tmp_path / "plan.json"
        partitions = [{"topic": "t", "partition": number, "replicas": ids} for number, ids in wished.items()]
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return "--reassignment-json-file", str(path)

    at = ("--bootstrap-server", server.bootstrap)
    topics = tmp_path / "topics.json"
    topics.write_text('{"version":1,"topics":[{"topic":"t"}]}')
    made = run(REASSIGN, *at, "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3", "--generate")
    assert '"topic":"t","partition":1' in made

    slow = plan({0: [3, 2]})
    assert "Successfully started" in run(REASSIGN, *at, *slow, "--execute", "--throttle", "10000")
    assert "t-0: replicas: 3,2,1. adding: 3. removing: 1." in run(REASSIGN, *at, "--list")
    assert "still in progress" in run(REASSIGN, *at, *slow, "--verify")
    assert "Successfully cancelled" in run(REASSIGN, *at, *slow, "--cancel")
    assert sorted(replicas(server)[0]) == [1, 2]

    both = plan({0: [3, 1], 1: [1, 3]})
    assert "Successfully started" in run(REASSIGN, *at, *both, "--execute", "--disallow-replication-factor-change")
    until(lambda: replicas(server) == {0: [3, 1], 1: [1, 3]})
    verified = run(REASSIGN, *at, *both, "--verify")
    assert verified.count("is completed") == 2 and "Clearing topic-level throttles" in verified
    elected = run(ELECT, *at, "--election-type", "PREFERRED", "--all-topic-partitions")
    assert "rror" not in elected
    with ottla.Admin(bootstrap_servers=server.bootstrap) as admin:
        assert [one.leader for one in admin.describe_topic("t").partitions] == [3, 1]


def test_kafka_python_moves_a_partition(server: Serving) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap.split(","))
    try:
        admin.alter_partition_reassignments({kafka.TopicPartition("t", 0): [2, 3]})
        until(lambda: replicas(server)[0] == [2, 3])
        assert not admin.list_partition_reassignments()
    finally:
        admin.close()
