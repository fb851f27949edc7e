"""DeleteRecords on replicated partitions: when it is answered, and that deleted records stay deleted on every later leader."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from cluster import Broker, Cluster, Sent, batch, fetch, produce, unpacked, values

from ottla.base.ids import TopicPartition
from ottla.sim.disk import SimDisk
from ottla.wire import errors
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState

T0 = TopicPartition("t", 0)


def delete_request(offset: int, *partitions: int, timeout_ms: int = 1000) -> DeleteRecordsRequest:
    asks = [DeleteRecordsPartition(partition_index=partition, offset=offset) for partition in partitions or (0,)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asks)], timeout_ms=timeout_ms)


def result(sent: Sent) -> Any:
    """(error, low watermark) of the first partition."""
    [answer] = sent.answer.topics[0].partitions
    return answer.error_code, answer.low_watermark


def a_replicated_topic(replicas: int = 3, configs: Mapping[str, str] | None = None) -> tuple[Cluster, Broker, list[Broker]]:
    """Leader and followers of a partition with five records, each a batch, on all replicas."""
    cluster = Cluster(brokers=replicas)
    leader = cluster.topic(replicas=replicas, configs=configs)
    for value in (b"a", b"b", b"c", b"d", b"e"):
        produce(leader, batch(value))
    return cluster, leader, [broker for broker in cluster.brokers.values() if broker is not leader]


def start_of(broker: Broker) -> int:
    replica = broker.node.partitions.replica(T0)
    assert replica is not None
    return replica.log.start_offset


def test_deletion_is_answered_when_all_replicas_have_moved_their_log_start() -> None:
    """Line 22."""
    _cluster, leader, followers = a_replicated_topic()
    sent = leader.send(delete_request(3), 2)
    # Without time passing: waiting fetches of followers are answered with the new log start.
    assert result(sent) == (0, 3)
    assert [start_of(broker) for broker in followers] == [3, 3]


def test_deletion_waits_for_a_live_follower_until_its_timeout() -> None:
    """Line 22."""
    cluster, leader, followers = a_replicated_topic()
    cluster.cut.add(frozenset((leader.broker_id, followers[0].broker_id)))
    sent = leader.send(delete_request(3, timeout_ms=1_700), 2)
    cluster.pass_ms(1_650)
    assert sent.waits
    cluster.pass_ms(100)
    assert result(sent) == (errors.RequestTimedOut.code, 0)
    assert start_of(leader) == 3, "the leader has deleted them already"
    cluster.cut.clear()
    cluster.pass_ms(15_000)
    assert result(leader.send(delete_request(3), 2)) == (0, 3)


def test_deletion_with_a_timeout_of_zero_has_a_second_to_reach_the_disk() -> None:
    cluster, leader, followers = a_replicated_topic()
    cluster.cut.add(frozenset((leader.broker_id, followers[0].broker_id)))
    sent = leader.send(delete_request(3, timeout_ms=0), 2)
    cluster.pass_ms(950)
    assert sent.waits
    cluster.pass_ms(100)
    assert result(sent) == (errors.RequestTimedOut.code, 0)


def test_deletion_does_not_wait_for_a_follower_whose_broker_is_gone() -> None:
    """Line 22."""
    cluster, leader, followers = a_replicated_topic()
    cluster.cut.add(frozenset((leader.broker_id, followers[0].broker_id)))
    sent = leader.send(delete_request(3, timeout_ms=60_000), 2)
    cluster.pass_ms(100)
    assert sent.waits
    cluster.kill(followers[0].broker_id)
    cluster.pass_ms(2_000)
    assert result(sent) == (0, 3)


def test_deletion_by_a_leader_that_steps_down_is_refused() -> None:
    cluster, leader, _followers = a_replicated_topic()
    cluster.cut_off(leader.broker_id)
    sent = leader.send(delete_request(3, timeout_ms=60_000), 2)
    assert sent.waits
    leader.session.suspend()
    cluster.run()
    assert result(sent) == (errors.NotLeaderOrFollower.code, -1)


def test_each_partition_of_a_deletion_has_its_own_result() -> None:
    _cluster, leader, _followers = a_replicated_topic()
    answers = leader.send(delete_request(3, 0, 7), 2).answer.topics[0].partitions
    assert [(answer.partition_index, answer.error_code, answer.low_watermark) for answer in answers] == [
        (0, 0, 3),
        (7, errors.UnknownTopicOrPartition.code, -1),
    ]


def test_deletion_is_not_answered_before_a_follower_has_recorded_its_log_start() -> None:
    cluster, leader, followers = a_replicated_topic(replicas=2)
    [follower] = followers
    follower.changing = False
    sent = leader.send(delete_request(3, timeout_ms=60_000), 2)
    cluster.pass_ms(2_000)
    assert sent.waits and start_of(follower) == 3
    follower.change_logs()
    cluster.run()
    assert result(sent) == (0, 3)


def test_deleted_records_do_not_return_with_a_new_leader_after_a_power_cut() -> None:
    cluster, leader, _followers = a_replicated_topic()
    assert result(leader.send(delete_request(3), 2)) == (0, 3)
    gone = [cluster.kill(number) for number in list(cluster.brokers)]
    for place, broker in enumerate(gone):
        if broker is not leader:
            cluster.start(broker.broker_id, broker.texts, [disk.crash(Random(place)) for disk in broker.disks.values()])
    cluster.pass_ms(5_000)
    now = cluster.leading("t")
    assert now.broker_id != leader.broker_id and start_of(now) == 3
    assert fetch(now, 2).error_code == errors.OffsetOutOfRange.code
    assert values(fetch(now, 3).records) == [b"d", b"e"]


def test_returning_replica_joins_the_isr_with_the_log_start_of_the_leader() -> None:
    cluster, leader, followers = a_replicated_topic()
    gone = cluster.kill(followers[0].broker_id)
    cluster.pass_ms(2_000)
    assert result(leader.send(delete_request(3), 2)) == (0, 3)
    # It has all records, and its log starts at 0.
    cluster.changing = False
    late = cluster.start(gone.broker_id, gone.texts, [disk.crash(Random(1)) for disk in gone.disks.values()])
    cluster.pass_ms(2_000)
    assert late.broker_id not in leader.leader("t").isr
    late.changing = True
    late.change_logs()
    cluster.pass_ms(2_000)
    assert late.broker_id in leader.leader("t").isr and start_of(late) == 3


def test_deletion_does_not_wait_for_an_eligible_replica_whose_broker_is_down() -> None:
    """Line 22."""
    cluster, leader, followers = a_replicated_topic(replicas=2, configs={"min.insync.replicas": "2"})
    gone = cluster.kill(followers[0].broker_id)
    cluster.pass_ms(2_000)
    assert leader.leader("t").isr_state.elr == (gone.broker_id,)
    assert result(leader.send(delete_request(3, timeout_ms=60_000), 2)) == (0, 3)
    late = cluster.start(gone.broker_id, gone.texts, [disk.crash(Random(1)) for disk in gone.disks.values()])
    cluster.pass_ms(2_000)
    assert late.broker_id in leader.leader("t").isr and start_of(late) == 3, "it deletes them before it is in sync again"


def test_eligible_replica_that_missed_a_deletion_leads_with_its_own_log_start() -> None:
    """As in Kafka; docs/decisions/0039."""
    cluster, leader, followers = a_replicated_topic(replicas=2, configs={"min.insync.replicas": "2"})
    gone = cluster.kill(followers[0].broker_id)
    cluster.pass_ms(2_000)
    assert result(leader.send(delete_request(3, timeout_ms=60_000), 2)) == (0, 3)
    ended = cluster.kill(leader.broker_id)
    late = cluster.start(gone.broker_id, gone.texts, [disk.crash(Random(1)) for disk in gone.disks.values()])
    cluster.pass_ms(5_000)
    assert cluster.leading("t") is late and start_of(late) == 0
    cluster.start(ended.broker_id, ended.texts, [disk.crash(Random(2)) for disk in ended.disks.values()])
    cluster.pass_ms(5_000)
    assert result(late.send(delete_request(3), 2)) == (0, 3), "the deletion can be repeated"


def test_log_start_that_a_full_disk_refuses_is_recorded_later() -> None:
    cluster, leader, followers = a_replicated_topic(replicas=2)
    [follower] = followers
    disk = follower.disks["disk0"]
    capacity, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes
    sent = leader.send(delete_request(3, timeout_ms=60_000), 2)
    cluster.pass_ms(3_000)
    assert sent.waits
    disk.capacity_bytes = capacity
    cluster.pass_ms(3_000)
    assert result(sent) == (0, 3)


def test_follower_reports_a_log_start_that_retention_moved() -> None:
    cluster, leader, followers = a_replicated_topic(configs={"internal.segment.bytes": "100", "retention.bytes": "100"})
    cluster.pass_ms(310_000)
    start = start_of(leader)
    assert start > 0
    progress = leader.leader("t").isr_state.progress
    assert [progress[broker.broker_id].log_start for broker in followers] == [start, start]
    assert result(leader.send(delete_request(start), 2)) == (0, start)


@pytest.mark.parametrize("offset", [1, 4, 6])
def test_replica_without_records_copies_a_batch_that_is_deleted_in_part(offset: int) -> None:
    """Found by the simulator, seed 21: it began inside of the batch, and could not append it."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic(replicas=2)
    for _ in range(2):
        produce(leader, batch(b"a", b"b", b"c", b"d"))
    [gone] = [broker for broker in cluster.brokers.values() if broker is not leader]
    cluster.kill(gone.broker_id)
    assert result(leader.send(delete_request(offset), 2)) == (0, offset)
    follower = cluster.start(gone.broker_id, gone.texts, [SimDisk("disk0", now_ms=lambda: cluster.wall_ms)])
    cluster.pass_ms(15_000)
    log = follower.node.partitions.followers[T0].log
    assert (log.start_offset, log.end_offset) == (offset, 8)
    assert set(leader.leader("t").isr) == {leader.broker_id, follower.broker_id}
    cluster.kill(leader.broker_id)
    cluster.pass_ms(2_000)
    assert [number for number, *_ in unpacked(fetch(follower, offset).records) if number >= offset] == list(range(offset, 8))
    assert fetch(follower, offset - 1).error_code == errors.OffsetOutOfRange.code


def test_log_start_of_a_response_that_a_follower_did_not_apply_is_sent_again() -> None:
    """Found by the simulator, seed 92: the leader counted it as sent, and the replica never joined the ISR."""
    _cluster, leader, followers = a_replicated_topic(replicas=2)
    state = ReplicaState(replica_id=followers[0].broker_id, replica_epoch=followers[0].node.context.epoch or 0)
    log = leader.leader("t").log
    ask = FetchPartition(partition=0, current_leader_epoch=leader.leader("t").epoch, fetch_offset=5, log_start_offset=0)

    def sent(session: int, epoch: int) -> Any:
        topics = [FetchTopic(topic_id=log.topic_id, partitions=[ask])]
        request = FetchRequest(replica_state=state, session_id=session, session_epoch=epoch, topics=topics, max_wait_ms=60_000)
        return leader.send(request, 15)

    leader.send(delete_request(3), 2)
    first = sent(0, 0).answer
    again = sent(first.session_id, 1).answer
    assert [response.responses[0].partitions[0].log_start_offset for response in (first, again)] == [3, 3]
