"""The broker's clock under a test's control: effects happen at once and in order."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ottla import Consumer, GroupState, Producer
from ottla.errors import GroupIdNotFound
from ottla.testing import Broker
from ottla.testing.plugin import Topics

pytestmark = pytest.mark.server


def test_the_clock_is_real_time_plus_added_time(ottla_own_broker: Broker) -> None:
    clock = ottla_own_broker.clock
    assert abs(clock.now - datetime.now(UTC)) < timedelta(seconds=10)
    clock.advance(days=1, hours=2)
    assert clock.ahead == timedelta(days=1, hours=2, seconds=1)
    clock.move_to(datetime(2040, 1, 1, tzinfo=UTC))
    assert datetime(2040, 1, 1, tzinfo=UTC) <= clock.now < datetime(2040, 1, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="time goes forward"):
        clock.advance(seconds=-1)


@pytest.mark.timeout(30)
def test_a_year_passes_without_its_seconds(ottla_own_broker: Broker) -> None:
    ottla_own_broker.clock.advance(days=365)
    assert ottla_own_broker.clock.ahead >= timedelta(days=365)


def test_retention_deletes_old_records(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    short, long = ottla_topics("short", config={"retention.ms": 3_600_000}), ottla_topics("long")
    for topic in (short, long):
        topic.send(b"1")
    ottla_own_broker.clock.advance(minutes=59)
    assert (short.values(), long.values()) == ([b"1"], [b"1"])
    ottla_own_broker.clock.advance(minutes=1)
    assert (short.values(), long.values()) == ([], [b"1"])


def test_compaction_leaves_the_last_value_of_each_key(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": 3_600_000,
        "min.cleanable.dirty.ratio": 0.01,
        "message.timestamp.type": "LogAppendTime",
    }
    topic = ottla_topics(config=config, key="int", value="int")
    for number in range(20):
        topic.send(number, key=number % 2)
    ottla_own_broker.clock.advance(hours=2)
    # Compaction skips the active segment; this record starts another.
    topic.send(100, key=9)
    ottla_own_broker.clock.advance(minutes=1)
    assert topic.values() == [18, 19, 100]
    assert topic.latest() == {0: 18, 1: 19, 9: 100}


def test_log_append_time_is_the_brokers_time(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics(config={"message.timestamp.type": "LogAppendTime"})
    topic.send(b"1")
    ottla_own_broker.clock.advance(days=1)
    topic.send(b"2")
    first, second = topic.records()
    assert timedelta(days=1) <= timedelta(milliseconds=second.timestamp - first.timestamp) < timedelta(days=1, hours=1)


def group(broker: Broker, name: str) -> Any:
    return broker.clients.admin.describe_consumer_groups([name])[name]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_silent_member_loses_its_session(ottla_own_broker: Broker, ottla_topics: Topics, protocol: str) -> None:
    topic = ottla_topics()
    settings: dict[str, Any] = {"bootstrap_servers": ottla_own_broker.bootstrap_servers, "group_id": "g", "group_protocol": protocol}
    with Consumer(topic.name, **settings) as consumer:
        deadline_s = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline_s:
            consumer.poll(50)
        assert group(ottla_own_broker, "g").state == GroupState.STABLE
        # Its heartbeats wait in the broker, like those of a client that is cut off or stalled.
        with ottla_own_broker.paused():
            ottla_own_broker.clock.advance(minutes=2)
            assert group(ottla_own_broker, "g").state == GroupState.EMPTY


def test_offsets_and_their_group_expire_in_chronological_order(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics(config={"retention.ms": -1})
    topic.send(b"1")
    settings: dict[str, Any] = {"bootstrap_servers": ottla_own_broker.bootstrap_servers, "group_id": "g", "auto_offset_reset": "earliest"}
    with Consumer(topic.name, **settings) as consumer:
        deadline_s = time.monotonic() + 30
        while not consumer.poll(50) and time.monotonic() < deadline_s:
            pass
        consumer.commit()
    topic.wait_until_read("g")
    ottla_own_broker.clock.advance(days=6)
    topic.wait_until_read("g")
    ottla_own_broker.clock.advance(days=2)
    assert isinstance(group(ottla_own_broker, "g"), GroupIdNotFound)


def test_added_time_survives_a_kill(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics(config={"message.timestamp.type": "LogAppendTime"})
    ottla_own_broker.clock.advance(days=3)
    topic.send(b"1")
    ottla_own_broker.kill()
    ottla_own_broker.restart()
    topic.send(b"2")
    first, second = topic.records()
    assert first.timestamp <= second.timestamp
    assert second.timestamp - time.time() * 1000 > 2.9 * 86_400_000


def test_clients_use_real_time(ottla_own_broker: Broker, ottla_topics: Topics) -> None:
    topic = ottla_topics()
    ottla_own_broker.clock.advance(days=1)
    with Producer(bootstrap_servers=ottla_own_broker.bootstrap_servers) as producer:
        producer.send(topic.name, b"1").result(timeout_ms=30_000)
    (record,) = topic.records()
    assert abs(record.timestamp - time.time() * 1000) < 60_000
