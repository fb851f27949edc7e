"""Consumers that read from a follower in their own rack. Source: KIP-392."""

from typing import Any

import pytest
from cluster import Broker, Cluster, batch, fetch_request, produce, values

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker import events
from ottla.wire import errors

T0 = TopicPartition("t", 0)
RACKS = {1: "a", 2: "b", 3: "c"}
NEAR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def a_cluster(settings: dict[str, str] | None = None, **configs: str) -> tuple[Cluster, Broker]:
    """Brokers in three racks, and the leader of a topic with a record."""
    cluster = Cluster(brokers=3, racks=RACKS, settings=NEAR if settings is None else settings)
    leader = cluster.topic(replicas=3, configs={name.replace("_", "."): value for name, value in configs.items()})
    cluster.pass_ms(1500)
    assert produce(leader, batch(b"a")).error_code == 0
    cluster.pass_ms(600)
    return cluster, leader


def followers(cluster: Cluster) -> list[Broker]:
    return [broker for broker in cluster.brokers.values() if T0 in broker.node.partitions.followers]


def ask(broker: Broker, rack: str, offset: int = 0, *, version: int = 12, **fields: Any) -> Any:
    return broker.ask(fetch_request(offset, rack_id=rack, **fields), version).responses[0].partitions[0]


def test_a_leader_sends_a_consumer_to_the_follower_in_its_rack_with_no_records() -> None:
    cluster, leader = a_cluster()
    for follower in followers(cluster):
        reported = ask(leader, RACKS[follower.broker_id])
        assert (reported.error_code, reported.preferred_read_replica, bytes(reported.records)) == (0, follower.broker_id, b"")
        assert values(ask(follower, RACKS[follower.broker_id]).records) == [b"a"]


def test_consumer_with_a_preferred_read_replica_is_answered_at_once() -> None:
    cluster, leader = a_cluster()
    sent = leader.send(fetch_request(1, rack_id=RACKS[followers(cluster)[0].broker_id], max_wait_ms=60_000), 12)
    assert sent.answer.responses[0].partitions[0].preferred_read_replica == followers(cluster)[0].broker_id


@pytest.mark.parametrize(
    ("rack", "settings", "version"),
    [("", NEAR, 12), ("nowhere", NEAR, 12), (None, NEAR, 12), ("b", {}, 12), ("b", NEAR, 10)],
    ids=["no rack", "a rack without replicas", "the leader's own rack", "a broker that is not set so", "a version without racks"],
)
def test_the_leader_serves_everybody_else_itself(rack: str | None, settings: dict[str, str], version: int) -> None:
    _, leader = a_cluster(settings)
    rack = RACKS[leader.broker_id] if rack is None else rack
    if rack == "b" and leader.broker_id == 2:
        rack = "a"
    reported = ask(leader, rack, version=version)
    assert (reported.preferred_read_replica, values(reported.records)) == (-1, [b"a"])


def test_a_follower_outside_of_the_isr_or_behind_the_consumer_is_not_chosen() -> None:
    cluster, leader = a_cluster()
    follower = followers(cluster)[0]
    rack = RACKS[follower.broker_id]
    cluster.cut_off(follower.broker_id)
    assert produce(leader, batch(b"b"), acks=1).error_code == 0
    assert ask(leader, rack, 1).preferred_read_replica == follower.broker_id
    assert ask(leader, rack, 2).preferred_read_replica == -1, "it has not got so far"
    cluster.pass_ms(40 * SECOND_MS)
    assert follower.broker_id not in leader.leader("t").isr
    assert ask(leader, rack, 1).preferred_read_replica == -1


def test_a_follower_whose_log_directory_failed_is_not_chosen() -> None:
    cluster = Cluster(brokers=3, racks=RACKS, settings=NEAR, disks=2)
    leader = cluster.topic(replicas=3)
    cluster.pass_ms(1500)
    follower = followers(cluster)[0]
    rack = RACKS[follower.broker_id]
    assert ask(leader, rack).preferred_read_replica == follower.broker_id
    follower.handle(events.DirectoryFailed(directory=follower.node.partitions.followers[T0].directory.root, reason="test"))
    cluster.run()
    assert ask(leader, rack).preferred_read_replica == -1


def test_a_follower_serves_consumers_that_name_a_rack_up_to_its_high_watermark() -> None:
    cluster, leader = a_cluster()
    follower, other = followers(cluster)
    cluster.cut_off(other.broker_id)
    assert produce(leader, batch(b"not yet"), acks=1).error_code == 0
    cluster.pass_ms(1000)
    assert follower.node.partitions.followers[T0].log.end_offset == 2
    read = ask(follower, "b")
    assert (values(read.records), read.high_watermark) == ([b"a"], 1)
    assert (ask(follower, "b", 2).error_code, bytes(ask(follower, "b", 2).records)) == (0, b"")
    assert ask(follower, "b", 3).error_code == errors.OffsetNotAvailable.code, "the leader may have more"
    assert ask(follower, "").error_code == errors.NotLeaderOrFollower.code, "who was not sent here looks for the leader"


def test_below_the_log_start_a_follower_is_out_of_range_too() -> None:
    cluster, leader = a_cluster()
    for _ in range(2):
        produce(leader, batch(b"b"))
    leader.node.partitions.delete_before(leader.leader("t"), 2)
    cluster.pass_ms(1500)
    assert ask(followers(cluster)[0], "b", 1).error_code == errors.OffsetOutOfRange.code


def test_fetch_that_waits_at_a_follower_returns_a_record_as_soon_as_it_is_committed() -> None:
    """Without the setting a follower gets the high watermark with its next records, or after half a second."""
    cluster, leader = a_cluster()
    follower = followers(cluster)[0]
    sent = follower.send(fetch_request(1, rack_id="b", max_wait_ms=60_000, min_bytes=1), 12)
    assert sent.waits
    assert produce(leader, batch(b"b")).error_code == 0
    assert sent.answer is not None and values(sent.answer.responses[0].partitions[0].records) == [b"b"]


def test_a_follower_refuses_a_consumer_of_another_epoch() -> None:
    cluster, _ = a_cluster()
    follower = followers(cluster)[0]
    assert ask(follower, "b", current_leader_epoch=1).error_code == errors.UnknownLeaderEpoch.code


def test_a_session_repeats_the_preferred_read_replica_as_long_as_the_client_fetches_from_the_leader() -> None:
    cluster, leader = a_cluster()
    rack = RACKS[followers(cluster)[0].broker_id]
    answer = leader.ask(fetch_request(session_epoch=0, rack_id=rack), 12)
    assert answer.responses[0].partitions[0].preferred_read_replica > 0
    again = leader.ask(fetch_request(partitions=(), session_id=answer.session_id, session_epoch=1, rack_id=rack), 12)
    assert [data.preferred_read_replica for topic in again.responses for data in topic.partitions] == [
        answer.responses[0].partitions[0].preferred_read_replica
    ], "it is said for as long as it is asked for"


def test_an_unknown_selector_is_refused_by_name() -> None:
    with pytest.raises(Exception, match=r"replica\.selector\.class"):
        Cluster(settings={"replica.selector.class": "org.example.MySelector"})
