"""Replication throttles: reassignments keep to a rate, and in-sync replicas never wait."""

import pytest
from cluster import Broker, Cluster, batch, produce, produce_request
from test_broker_reassignment import a_cluster, move, moving, replicas_of, state_of

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.replica.throttle import Throttle, partitions_of
from ottla.wire import errors
from ottla.wire.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest

T0 = TopicPartition("t", 0)
TOPIC, BROKER = 2, 4
LEADERS = {"leader.replication.throttled.replicas": "*"}
FOLLOWERS = {"follower.replication.throttled.replicas": "*"}
BATCH = batch(b"x" * 1000)


def alter(cluster: Cluster, kind: int, name: str, **settings: str | None) -> int:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0 if value is not None else 1, value=value)
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = cluster.controller.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return int(answer.responses[0].error_code)


def a_full_topic(configs: dict[str, str], batches: int = 40) -> Cluster:
    """A topic of one replica on broker 1 with so many batches of a little more than a kilobyte, copied one batch at a time."""
    cluster = a_cluster((1,), brokers=3, configs={"write.caching": "true", **configs})
    for number in (2, 3):
        cluster[number].node.context.options.replica_fetch_max_bytes = 1
    for _ in range(batches):
        assert produce(cluster[1], BATCH).error_code == 0
    return cluster


def copied(broker: Broker) -> int:
    follower = broker.node.partitions.followers.get(T0)
    return follower.log.end_offset if follower is not None else 0


# A rate.


def test_a_rate_allows_a_second_at_once_and_then_no_more_than_itself() -> None:
    throttle = Throttle(1000)
    now = sent = 0
    while now < 60_000:
        now = throttle.free_at_ms(now)
        throttle.note(100, now)
        sent += 100
    assert 60_000 <= sent <= 61_200


def test_a_batch_much_larger_than_the_rate_is_followed_by_a_longer_pause() -> None:
    throttle = Throttle(1000)
    assert throttle.free_at_ms(500) == 500
    throttle.note(20_000, 500)
    assert throttle.free_at_ms(600) == 500 + 19_000
    throttle.follow(10_000, 1500)
    assert throttle.free_at_ms(1500) == 1500 + 900, "19,000 bytes are left, of which 10,000 may go"


def test_a_quiet_time_saves_up_nothing() -> None:
    throttle = Throttle(1000)
    throttle.note(1, 3_600_000)
    throttle.note(2000, 3_600_000)
    assert throttle.free_at_ms(3_600_000) > 3_600_000


@pytest.mark.parametrize(
    ("replicas", "found"),
    [((), frozenset()), (("*",), None), (("0:1", "3:1", "1:2"), frozenset({0, 3})), (("0:11",), frozenset())],
)
def test_replicas_are_named_by_partition_and_broker(replicas: tuple[str, ...], found: frozenset[int] | None) -> None:
    assert partitions_of(replicas, 1) == found


# Settings.


def test_settings_are_checked_and_shown_as_kafka_has_them() -> None:
    cluster = a_cluster((1,), brokers=2)
    assert alter(cluster, TOPIC, "t", leader_replication_throttled_replicas="0:1,1:2") == 0
    assert alter(cluster, TOPIC, "t", follower_replication_throttled_replicas="*") == 0
    assert alter(cluster, TOPIC, "t", follower_replication_throttled_replicas="all") == errors.InvalidConfig.code
    assert alter(cluster, BROKER, "1", leader_replication_throttled_rate="1000") == 0
    assert alter(cluster, BROKER, "", follower_replication_throttled_rate="2000") == 0
    assert alter(cluster, BROKER, "1", follower_replication_throttled_rate="-1") == errors.InvalidRequest.code
    options = cluster[1].node.context.options
    assert (options.leader_replication_throttled_rate, options.follower_replication_throttled_rate) == (1000, 2000)


# What they do.


@pytest.mark.parametrize(("named", "setting", "broker"), [(LEADERS, "leader", "1"), (FOLLOWERS, "follower", "2")])
def test_a_replica_that_is_added_is_copied_at_the_rate_of_either_side(named: dict[str, str], setting: str, broker: str) -> None:
    cluster = a_full_topic(named)
    alter(cluster, BROKER, broker, **{f"{setting}_replication_throttled_rate": "2000"})
    move(cluster, (2,))
    cluster.pass_ms(5 * SECOND_MS)
    assert 8 <= copied(cluster[2]) <= 16, "a kilobyte each, two a second"
    assert moving(cluster) != []
    cluster.pass_ms(20 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [2])


@pytest.mark.parametrize(
    ("configs", "rates"),
    [
        ({}, {"leader": "2000", "follower": "2000"}),
        (
            {"leader.replication.throttled.replicas": "0:2", "follower.replication.throttled.replicas": "0:1,1:2"},
            {"leader": "1", "follower": "1"},
        ),
        ({**LEADERS, **FOLLOWERS}, {}),
    ],
)
def test_partitions_that_are_not_named_and_brokers_without_a_rate_are_not_throttled(configs: dict[str, str], rates: dict[str, str]) -> None:
    cluster = a_full_topic(configs)
    for number in "12":
        alter(cluster, BROKER, number, **{f"{side}_replication_throttled_rate": rate for side, rate in rates.items()})
    move(cluster, (2,))
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [2])


def test_the_named_replica_is_throttled_and_no_other() -> None:
    cluster = a_full_topic({"follower.replication.throttled.replicas": "0:3"})
    for number in "23":
        alter(cluster, BROKER, number, follower_replication_throttled_rate="1000")
    move(cluster, (1, 2, 3))
    cluster.pass_ms(4 * SECOND_MS)
    assert copied(cluster[2]) == 43
    assert copied(cluster[3]) < 15


def test_members_of_the_isr_are_not_held_up_but_what_they_copy_counts() -> None:
    cluster = a_cluster((1, 2), brokers=3, configs={**LEADERS, **FOLLOWERS, "min.insync.replicas": "2"})
    for number in "123":
        alter(cluster, BROKER, number, leader_replication_throttled_rate="1000", follower_replication_throttled_rate="1000")
    for _ in range(20):
        assert produce(cluster[1], BATCH).error_code == 0, "acks=all"
    assert state_of(cluster).isr == (1, 2)
    assert cluster[1].node.throttles.sends_at_ms(T0) > cluster.now_ms + 10 * SECOND_MS
    move(cluster, (1, 2, 3))
    cluster.pass_ms(2 * SECOND_MS)
    assert copied(cluster[3]) == 0, "there is no room for it yet"
    cluster.pass_ms(60 * SECOND_MS)
    assert moving(cluster) == []


def test_the_throttle_of_one_partition_leaves_the_others_of_its_fetcher_alone() -> None:
    cluster = a_full_topic({"follower.replication.throttled.replicas": "0:2"})
    other = cluster.topic("u", partitions=3, replicas=2)
    alter(cluster, BROKER, "2", follower_replication_throttled_rate="1")
    move(cluster, (1, 2))
    cluster.pass_ms(SECOND_MS)
    for number in range(3):
        leader = cluster.leading("u", number)
        sent = leader.send(produce_request(batch(b"v"), topic="u", partition=number, timeout_ms=5000), 12)
        cluster.pass_ms(600)
        assert sent.answer is not None and sent.answer.responses[0].partition_responses[0].error_code == 0
    assert other.halted is None and copied(cluster[2]) <= 4


def test_removed_throttle_delays_no_replica() -> None:
    cluster = a_full_topic({**LEADERS, **FOLLOWERS})
    for number in "12":
        alter(cluster, BROKER, number, leader_replication_throttled_rate="1", follower_replication_throttled_rate="1")
    move(cluster, (2,))
    cluster.pass_ms(10 * SECOND_MS)
    assert copied(cluster[2]) <= 4
    for number in "12":
        alter(cluster, BROKER, number, leader_replication_throttled_rate=None, follower_replication_throttled_rate=None)
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [2])


def test_a_throttled_follower_does_not_ask_over_and_over() -> None:
    cluster = a_full_topic(LEADERS)
    alter(cluster, BROKER, "1", leader_replication_throttled_rate="1")
    move(cluster, (1, 2))
    cluster.pass_ms(2 * SECOND_MS)
    before = next(cluster.numbers)
    for _ in range(50):
        produce(cluster[1], BATCH)
    cluster.pass_ms(5 * SECOND_MS)
    assert next(cluster.numbers) - before < 50 + 30, "what is appended does not wake a fetch that gets nothing"
