"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords. Lines are those of docs/semantics.md."""

from random import Random
from typing import Any

import pytest
from cluster import WALL_MS, Broker, Cluster, batch, fetch, fetch_request, produce, values

from ottla.broker.apis.partition_requests import WAIT_MS
from ottla.broker.delayed import TICK_MS
from ottla.records.build import build_batch
from ottla.wire import errors
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic


def list_request(
    timestamp: int, *, partition: int = 0, isolation_level: int = 0, epoch: int = -1, replica_id: int = -1
) -> ListOffsetsRequest:
    ask = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    topics = [ListOffsetsTopic(name="t", partitions=[ask])]
    return ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=topics)


def at(broker: Broker, timestamp: int, *, version: int = 11, partition: int = 0, isolation_level: int = 0, epoch: int = -1) -> Any:
    request = list_request(timestamp, partition=partition, isolation_level=isolation_level, epoch=epoch)
    return broker.ask(request, version).topics[0].partitions[0]


def found(broker: Broker, timestamp: int, **fields: Any) -> tuple[int, int]:
    answer = at(broker, timestamp, **fields)
    assert answer.error_code == 0
    return answer.timestamp, answer.offset


def timed(*times: int) -> bytes:
    return bytes(build_batch([(time, None, b"v", ()) for time in times]))


def delete_request(offset: int, *, topic: str = "t", partition: int = 0) -> DeleteRecordsRequest:
    ask = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[ask])])


def delete(broker: Broker, offset: int, *, topic: str = "t", partition: int = 0) -> Any:
    return broker.ask(delete_request(offset, topic=topic, partition=partition), 2).topics[0].partitions[0]


def end_of(broker: Broker, epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0) -> Any:
    ask = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-2, topics=[OffsetForLeaderTopic(topic=topic, partitions=[ask])])
    return broker.ask(request, 4).topics[0].partitions[0]


# ListOffsets.


def test_latest_is_the_high_watermark_and_earliest_the_log_start() -> None:
    """Lines 44 and 54."""
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b", b"c"))
    delete(broker, 1)
    assert found(broker, -1) == (-1, 3)
    assert found(broker, -1, isolation_level=1) == (-1, 3)
    assert found(broker, -2) == (-1, 1)


def test_delete_records_waits_for_the_flush_of_the_only_replica() -> None:
    """Line 54."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, timed(WALL_MS))
    cluster.flushing = False
    produce(broker, timed(WALL_MS + 10), acks=1)
    asked = {time: broker.send(list_request(time), 11) for time in (-1, -3, WALL_MS + 1)}
    assert all(sent.waits for sent in asked.values())
    assert found(broker, -2) == found(broker, -4) == (-1, 0), "where the log starts is known"
    broker.flush()
    answers = {time: sent.answer.topics[0].partitions[0] for time, sent in asked.items()}
    assert {time: answer.offset for time, answer in answers.items()} == {-1: 2, -3: 1, WALL_MS + 1: 1}


def test_records_that_come_later_are_not_waited_for() -> None:
    """Line 54."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    sent = broker.send(list_request(-1), 11)
    produce(broker, batch(b"b"), acks=1)
    broker.flush()
    assert sent.answer.topics[0].partitions[0].offset == 1


def test_delete_records_times_out_if_the_flush_does_not_end() -> None:
    """Line 54."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a"), acks=1)
    sent = broker.send(list_request(-1), 11)
    cluster.pass_ms(WAIT_MS + TICK_MS)
    assert sent.answer.topics[0].partitions[0].offset == 0


def test_with_several_replicas_nothing_is_waited_for() -> None:
    """Line 54."""
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=2)
    leader = cluster.leading("t")
    cluster.flushing = False
    produce(leader, batch(b"a"), acks=1)
    assert found(leader, -1) == (-1, 0)


def test_a_tool_that_compares_replicas_gets_the_log_ends_of_leader_and_follower() -> None:
    """Line 54."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic(replicas=2)
    [follower] = [broker for broker in cluster.brokers.values() if broker is not leader]
    produce(leader, timed(WALL_MS, WALL_MS + 5))
    cluster.flushing = False
    cluster.cut.add(frozenset((leader.broker_id, follower.broker_id)))
    produce(leader, timed(WALL_MS + 9), acks=1)

    def offset(broker: Broker, timestamp: int, **fields: Any) -> Any:
        answer = broker.ask(list_request(timestamp, **fields), 11).topics[0].partitions[0]
        return answer.error_code or answer.offset

    assert [offset(broker, -1, replica_id=-2) for broker in (leader, follower)] == [3, 2]
    assert offset(leader, -1) == 2, "a consumer gets the high watermark"
    assert [offset(broker, WALL_MS + 1, replica_id=-2) for broker in (leader, follower)] == [1, 1]
    assert [offset(broker, WALL_MS + 6, replica_id=-2) for broker in (leader, follower)] == [2, -1]
    assert offset(follower, -2, replica_id=-2) == 0
    assert offset(follower, -1, replica_id=-2, epoch=leader.leader("t").epoch + 1) == errors.UnknownLeaderEpoch.code
    for replica_id in (-1, int(leader.broker_id)):
        assert offset(follower, -1, replica_id=replica_id) == errors.NotLeaderOrFollower.code


def test_the_greatest_timestamp_is_found_with_its_record() -> None:
    """Line 54."""
    broker = Cluster().topic()
    assert found(broker, -3) == (-1, -1)
    produce(broker, timed(WALL_MS, WALL_MS + 7, WALL_MS + 3))
    produce(broker, timed(WALL_MS + 5))
    assert found(broker, -3) == (WALL_MS + 7, 1)


def test_without_tiered_storage_all_of_the_log_is_local() -> None:
    """Line 54."""
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b"))
    delete(broker, 1)
    assert found(broker, -4) == (-1, 1)
    assert found(broker, -5) == (-1, -1)
    assert found(broker, -6) == (-1, -1)


@pytest.mark.parametrize(("timestamp", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-100, 12)])
def test_a_special_time_that_its_version_does_not_know_is_unsupported(timestamp: int, since: int) -> None:
    """Line 54."""
    broker = Cluster().topic()
    for version in range(1, 12):
        expected = 0 if version >= since else errors.UnsupportedVersion.code
        assert at(broker, timestamp, version=version).error_code == expected, version


def test_a_time_finds_the_first_record_at_or_after_it() -> None:
    """Line 54."""
    broker = Cluster().topic()
    produce(broker, timed(WALL_MS, WALL_MS + 10, WALL_MS + 20))
    produce(broker, timed(WALL_MS + 5, WALL_MS + 30))
    assert found(broker, 0) == (WALL_MS, 0)
    assert found(broker, WALL_MS + 1) == (WALL_MS + 10, 1)
    assert found(broker, WALL_MS + 20) == (WALL_MS + 20, 2)
    assert found(broker, WALL_MS + 21) == (WALL_MS + 30, 4)
    assert found(broker, WALL_MS + 31) == (-1, -1)


def test_a_record_that_is_not_committed_is_not_found() -> None:
    """Line 54."""
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=2)
    leader = cluster.leading("t")
    produce(leader, timed(WALL_MS))
    cluster.flushing = False
    produce(leader, timed(WALL_MS + 10), acks=1)
    assert found(leader, WALL_MS + 1) == (-1, -1)
    assert found(leader, -3) == (WALL_MS, 0)


def test_the_returned_leader_epoch_is_that_of_the_record() -> None:
    """Line 54."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, timed(WALL_MS))
    broker = cluster.restart(1)
    produce(broker, timed(WALL_MS + 10))
    assert at(broker, WALL_MS).leader_epoch == 0
    assert at(broker, WALL_MS + 1).leader_epoch == 1
    assert at(broker, -2).leader_epoch == 0
    assert at(broker, -1).leader_epoch == 1
    assert at(broker, WALL_MS, version=3).leader_epoch == -1


def test_a_partition_that_a_request_names_twice_is_refused_and_answered_once() -> None:
    """Line 54."""
    broker = Cluster().topic(partitions=2)
    asks = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in (0, 1, 0)]
    answer = broker.ask(ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asks)]), 7)
    assert [one.error_code for one in answer.topics[0].partitions] == [errors.InvalidRequest.code, 0]


def test_offsets_are_listed_by_the_leader_of_the_right_epoch() -> None:
    """Line 51."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    assert at(other, -1).error_code == errors.NotLeaderOrFollower.code
    assert at(leader, -1, partition=4).error_code == errors.UnknownTopicOrPartition.code
    assert at(leader, -1, epoch=1).error_code == errors.UnknownLeaderEpoch.code
    assert at(leader, -1, epoch=0).error_code == 0
    leader = cluster.restart(leader.broker_id)
    assert at(leader, -1, epoch=0).error_code == errors.FencedLeaderEpoch.code


# OffsetForLeaderEpoch.


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    """Line 53."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b"))
    cluster.restart(1)
    broker = cluster.restart(1)
    produce(broker, batch(b"c"))

    def end(epoch: int) -> tuple[int, int]:
        answer = end_of(broker, epoch)
        assert answer.error_code == 0
        return answer.leader_epoch, answer.end_offset

    assert broker.leader("t").epoch == 2
    assert end(0) == (0, 2)
    assert end(1) == (0, 2), "epoch 1 wrote nothing: the largest epoch that is not above it"
    assert end(2) == (2, 3), "the present epoch ends at the log end"
    assert end(3) == end(99) == (-1, -1), "a future epoch is not known"
    assert end(-1) == (-1, -1)


def test_only_the_leader_of_the_requested_epoch_returns_epoch_end_offsets() -> None:
    """Lines 51 and 53."""
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    assert end_of(other, 0).error_code == errors.NotLeaderOrFollower.code
    assert end_of(leader, 0, topic="nowhere").error_code == errors.UnknownTopicOrPartition.code
    assert end_of(leader, 0, current=1).error_code == errors.UnknownLeaderEpoch.code
    leader = cluster.restart(leader.broker_id)
    assert end_of(leader, 0, current=0).error_code == errors.FencedLeaderEpoch.code
    assert end_of(leader, 0, current=leader.leader("t").epoch).error_code == 0


# DeleteRecords.


def test_records_before_an_offset_are_deleted_and_the_low_watermark_is_returned() -> None:
    """Line 22."""
    broker = Cluster().topic()
    produce(broker, batch(b"a", b"b", b"c"))
    answer = delete(broker, 2)
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    assert fetch(broker, 0).error_code == errors.OffsetOutOfRange.code
    assert fetch(broker, 2).log_start_offset == 2
    assert delete(broker, 1).low_watermark == 2


def test_minus_one_deletes_up_to_the_high_watermark() -> None:
    """Line 22."""
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b"))
    assert delete(broker, -1).low_watermark == 2
    produce(broker, batch(b"c"))
    assert values(fetch(broker, 2).records) == [b"c"]


@pytest.mark.parametrize("offset", [-1, 2])
def test_records_acknowledged_with_acks_1_can_be_deleted_after_their_flush(offset: int) -> None:
    """Line 22."""
    cluster = Cluster()
    broker = cluster.topic()
    cluster.flushing = False
    produce(broker, batch(b"a", b"b"), acks=1)
    sent = broker.send(delete_request(offset), 2)
    assert sent.waits
    broker.flush()
    assert sent.answer.topics[0].partitions[0].low_watermark == 2


def test_records_above_the_high_watermark_cannot_be_deleted() -> None:
    """Line 22."""
    cluster = Cluster(brokers=2)
    cluster.topic(replicas=2)
    leader = cluster.leading("t")
    produce(leader, batch(b"a"))
    cluster.flushing = False
    produce(leader, batch(b"b"), acks=1)
    for offset in (2, 3, -2):
        answer = delete(leader, offset)
        assert (answer.error_code, answer.low_watermark) == (errors.OffsetOutOfRange.code, -1)


def test_records_of_a_compacted_topic_are_not_deleted_by_offset() -> None:
    """Line 22."""
    cluster = Cluster()
    broker = cluster.topic(configs={"cleanup.policy": "compact"})
    produce(broker, batch(b"a", key=b"k"))
    assert delete(broker, -1).error_code == errors.PolicyViolation.code
    cluster.topic("both", configs={"cleanup.policy": "compact,delete"})
    assert delete(broker, -1, topic="both").error_code == 0


def test_records_are_deleted_by_the_leader_and_not_in_internal_topics() -> None:
    cluster = Cluster(brokers=2)
    leader = cluster.topic()
    other = next(broker for broker in cluster.brokers.values() if broker is not leader)
    assert delete(other, -1).error_code == errors.NotLeaderOrFollower.code
    assert delete(leader, -1, partition=3).error_code == errors.UnknownTopicOrPartition.code
    internal = cluster.topic("__consumer_offsets")
    assert delete(internal, -1, topic="__consumer_offsets").error_code == errors.InvalidTopic.code


def test_deleted_records_stay_deleted_after_a_power_cut() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b", b"c"))
    delete(broker, 2)
    gone = cluster.kill(1)
    broker = cluster.start(1, gone.texts, [disk.crash(Random(1)) for disk in gone.disks.values()])
    assert broker.leader("t").log.start_offset == 2
    assert found(broker, -2) == (-1, 2)


def test_whole_segments_leave_the_disk_once_their_delay_is_over() -> None:
    cluster = Cluster()
    broker = cluster.topic(configs={"internal.segment.bytes": "100", "file.delete.delay.ms": "5000"})
    for _ in range(3):
        produce(broker, batch(b"x" * 50))
    delete(broker, 2)
    assert broker.removed == []
    assert any(name.endswith(".deleted") for name in broker.disks["disk0"].listdir("t-0"))
    cluster.pass_ms(5100)
    assert broker.removed and not any(name.endswith(".deleted") for name in broker.disks["disk0"].listdir("t-0"))


def test_fetch_that_waits_below_the_new_log_start_is_answered_at_once() -> None:
    cluster = Cluster()
    broker = cluster.topic()
    produce(broker, batch(b"a", b"b"))
    waiting = broker.send(fetch_request(0, max_wait_ms=10_000, min_bytes=100_000), 12)
    assert waiting.waits
    delete(broker, 1)
    assert waiting.answer.responses[0].partitions[0].error_code == errors.OffsetOutOfRange.code
