"""Consumers of librdkafka with the consumer protocol: they share a topic, move partitions, and continue at committed offsets."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient

from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.interop]

DEADLINE_S = 40.0
NewTopicName = Callable[..., str]


class Reader:
    """A consumer of one topic or pattern, polled by the test's own thread."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, protocol: str = "consumer", **more: object) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
        if protocol == "classic":
            settings |= {"heartbeat.interval.ms": 500, "partition.assignment.strategy": "cooperative-sticky"}
        self.consumer = confluent_kafka.Consumer(settings)
        self.assigned: set[int] = set()
        self.found: list[bytes] = []
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self.assigned |= {each.partition for each in partitions}

    def _revoked(self, consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        self.assigned -= {each.partition for each in partitions}

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            self.found.append(message.value())
            self.consumer.commit(message=message, asynchronous=False)


def until(readers: list[Reader], reached: Callable[[], bool]) -> None:
    """Poll all readers in turn until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline, [(sorted(reader.assigned), len(reader.found)) for reader in readers]
        for reader in readers:
            reader.poll()


def shared(readers: list[Reader], partitions: int) -> bool:
    held = [number for reader in readers for number in reader.assigned]
    return sorted(held) == list(range(partitions)) and all(len(reader.assigned) == partitions // len(readers) for reader in readers)


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    made: list[Reader] = []
    yield made
    for reader in made:
        reader.consumer.close()


def produce(bootstrap: str, topic: str, begin: int, end: int, partitions: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(begin, end):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(20) == 0


def test_members_share_a_topic_move_partitions_and_read_each_record_once(
    bootstrap: str, new_topic: NewTopicName, readers: list[Reader], admin: AdminClient
) -> None:
    topic, group = new_topic(partitions=6), f"g-{uuid.uuid4().hex[:8]}"
    produce(bootstrap, topic, 0, 60, 6)
    readers.append(Reader(bootstrap, group, topic))
    until(readers, lambda: shared(readers, 6))
    readers.append(Reader(bootstrap, group, topic))
    until(readers, lambda: shared(readers, 6))
    readers.append(Reader(bootstrap, group, topic))
    until(readers, lambda: shared(readers, 6))
    produce(bootstrap, topic, 60, 120, 6)
    until(readers, lambda: sum(len(reader.found) for reader in readers) == 120)
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert (described.state, described.type, len(described.members)) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER, 3)
    gone = readers.pop(0)
    gone.consumer.close()
    until(readers, lambda: shared(readers, 6))
    produce(bootstrap, topic, 120, 180, 6)
    until(readers, lambda: sum(len(reader.found) for reader in [gone, *readers]) == 180)
    assert sorted(int(value) for reader in [gone, *readers] for value in reader.found) == list(range(180))


def test_a_pattern_is_matched_by_the_broker(bootstrap: str, new_topic: NewTopicName, readers: list[Reader]) -> None:
    topic = new_topic(partitions=2)
    readers.append(Reader(bootstrap, f"g-{topic}", f"^{topic[:-1]}.*"))
    produce(bootstrap, topic, 0, 10, 2)
    until(readers, lambda: len(readers[0].found) == 10)


def test_a_static_member_rejoins_with_its_partitions(bootstrap: str, new_topic: NewTopicName, readers: list[Reader]) -> None:
    topic, group = new_topic(partitions=4), f"g-{uuid.uuid4().hex[:8]}"
    readers += [Reader(bootstrap, group, topic, **{"group.instance.id": f"i{number}"}) for number in range(2)]
    until(readers, lambda: shared(readers, 4))
    had, other = readers[0].assigned.copy(), readers[1].assigned.copy()
    readers.pop(0).consumer.close()
    readers.insert(0, Reader(bootstrap, group, topic, **{"group.instance.id": "i0"}))
    until(readers, lambda: readers[0].assigned == had)
    assert readers[1].assigned == other


def test_a_group_migrates_to_the_consumer_protocol_member_by_member_without_a_pause(
    bootstrap: str, new_topic: NewTopicName, readers: list[Reader], admin: AdminClient
) -> None:
    topic, group = new_topic(partitions=6), f"g-{uuid.uuid4().hex[:8]}"
    produce(bootstrap, topic, 0, 60, 6)
    readers += [Reader(bootstrap, group, topic, protocol="classic") for _ in range(2)]
    until(readers, lambda: shared(readers, 6))
    readers.append(Reader(bootstrap, group, topic))
    until(readers, lambda: shared(readers, 6))
    listed = admin.list_consumer_groups().result(20).valid
    assert next(each.type for each in listed if each.group_id == group) is ConsumerGroupType.CONSUMER
    produce(bootstrap, topic, 60, 120, 6)
    until(readers, lambda: sum(len(reader.found) for reader in readers) == 120)
    gone = [readers.pop(0), readers.pop(0)]
    for reader in gone:
        reader.consumer.close()
    readers.append(Reader(bootstrap, group, topic))
    until(readers, lambda: shared(readers, 6))
    produce(bootstrap, topic, 120, 180, 6)
    until(readers, lambda: sum(len(reader.found) for reader in [*gone, *readers]) == 180)
    assert sorted(int(value) for reader in [*gone, *readers] for value in reader.found) == list(range(180))


def test_a_group_returns_to_the_classic_protocol_when_its_last_consumer_protocol_member_leaves(
    bootstrap: str, new_topic: NewTopicName, readers: list[Reader], admin: AdminClient
) -> None:
    topic, group = new_topic(partitions=4), f"g-{uuid.uuid4().hex[:8]}"
    readers += [Reader(bootstrap, group, topic, protocol="classic"), Reader(bootstrap, group, topic)]
    until(readers, lambda: shared(readers, 4))
    readers.pop().consumer.close()
    until(readers, lambda: shared(readers, 4))
    listed = admin.list_consumer_groups().result(20).valid
    assert next(each.type for each in listed if each.group_id == group) is ConsumerGroupType.CLASSIC


def test_members_survive_a_crash_of_the_broker(tmp_path: Path, readers: list[Reader], own_server_only: None) -> None:
    with Serving(tmp_path / "data") as server:
        made = AdminClient({"bootstrap.servers": server.bootstrap})
        made.create_topics([confluent_kafka.admin.NewTopic("t", 4, 1)])["t"].result(20)
        readers += [Reader(server.bootstrap, "g", "t") for _ in range(2)]
        until(readers, lambda: shared(readers, 4))
        produce(server.bootstrap, "t", 0, 20, 4)
        until(readers, lambda: sum(len(reader.found) for reader in readers) == 20)
        server.kill()
        server.start()
        produce(server.bootstrap, "t", 20, 40, 4)
        until(readers, lambda: sum(len(reader.found) for reader in readers) == 40)
        assert shared(readers, 4)
        assert sorted(int(value) for reader in readers for value in reader.found) == list(range(40))
        for reader in readers:
            reader.consumer.close()
        readers.clear()
