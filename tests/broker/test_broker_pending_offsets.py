"""Offsets of transactions, as Apache Kafka leaves them in ``__consumer_offsets``: they count when their marker says so."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster import WALL_MS, Broker, Cluster
from groups import cluster_of_groups, commit, committed, coordinating, fetch_request

from ottla.base.units import DAY_MS
from ottla.broker.coordinator import CommitTransaction
from ottla.broker.groups.pending_offsets import PendingOffsets
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue, encode_record
from ottla.broker.replica.leader import Marker
from ottla.records.build import build_batch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker
from ottla.sim.shard_replay import differences
from ottla.wire import errors
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic

T0, T1 = ("t", 0), ("t", 1)


def append(broker: Broker, batch: bytearray) -> None:
    leader = broker.node.groups.shard_of("g").leader
    leader.append_own(memoryview(batch), wall_ms=WALL_MS, verify=False)
    broker.node.partitions.wrote(leader)


def pend(broker: Broker, producer: int, *offsets: int, partition: int = 0, sequence: int = 0, group: str = "g") -> None:
    """A transaction's offsets for t."""
    key = OffsetCommitKey(group=group, topic="t", partition=partition)
    encoded = [encode_record(key, OffsetCommitValue(offset=offset, commit_timestamp=WALL_MS)) for offset in offsets]
    records = [(WALL_MS, *each, ()) for each in encoded]
    append(broker, build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True))


def end(broker: Broker, producer: int, kind: int) -> None:
    """A transaction marker."""
    record = (WALL_MS, *marker(kind, 0), ())
    append(broker, build_batch([record], producer_id=producer, producer_epoch=0, transactional=True, control=True))


def reloaded(cluster: Cluster) -> Broker:
    broker = cluster.restart(1)
    assert not differences(broker.node)
    return broker


def offsets(broker: Broker, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: offset for place, (offset, _, _) in committed(broker, group).items()}


def stable_offsets(broker: Broker) -> dict[int, tuple[int, int]]:
    """Partition of t -> (error, offset) of a fetch that wants stable offsets."""
    request = fetch_request("g", {"t": [0, 1]})
    request.require_stable = True
    [group] = broker.ask(request, 9).groups
    return {place.partition_index: (place.error_code, place.committed_offset) for topic in group.topics for place in topic.partitions}


@pytest.mark.parametrize(("kind", "found"), [(COMMIT_MARKER, {T0: 7, T1: 9}), (ABORT_MARKER, {T0: 3})])
def test_offsets_of_a_transaction_count_only_if_it_was_committed(kind: int, found: dict[Any, int]) -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 3)
    pend(broker, 5, 6, 7)
    pend(broker, 5, 9, partition=1, sequence=2)
    end(broker, 5, kind)
    assert offsets(reloaded(cluster)) == found


def test_offsets_of_an_open_transaction_are_pending_and_unstable() -> None:
    """Line 46."""
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 3)
    commit(broker, "g", "t", 1, 4)
    pend(broker, 5, 7)
    broker = reloaded(cluster)
    assert offsets(broker) == {T0: 3, T1: 4}
    assert stable_offsets(broker) == {0: (errors.UnstableOffsetCommit.code, -1), 1: (0, 4)}
    end(broker, 5, COMMIT_MARKER)
    broker = reloaded(cluster)
    assert stable_offsets(broker) == {0: (0, 7), 1: (0, 4)}


def test_the_latest_record_counts_whatever_the_order_of_the_markers() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    pend(broker, 5, 1)
    pend(broker, 5, 2, partition=1, sequence=1)
    pend(broker, 6, 3)
    commit(broker, "g", "t", 1, 9)
    end(broker, 6, COMMIT_MARKER)
    end(broker, 5, COMMIT_MARKER)
    assert offsets(reloaded(cluster)) == {T0: 3, T1: 9}


def test_a_transaction_begun_later_is_not_overtaken_by_one_that_ends_later() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    pend(broker, 5, 1)
    end(broker, 5, ABORT_MARKER)
    pend(broker, 5, 2, sequence=1)
    end(broker, 6, COMMIT_MARKER)
    end(broker, 5, COMMIT_MARKER)
    assert offsets(reloaded(cluster)) == {T0: 2}


def test_deleting_offsets_drops_pending_ones() -> None:
    cluster = cluster_of_groups()
    pend(coordinating(cluster), 5, 7)
    broker = reloaded(cluster)
    gone = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    assert broker.ask(OffsetDeleteRequest(group_id="g", topics=[gone]), 0).topics[0].partitions[0].error_code == 0
    assert stable_offsets(broker)[0] == (0, -1)
    end(broker, 5, COMMIT_MARKER)
    assert offsets(reloaded(cluster)) == {}


def test_deleting_a_group_drops_its_pending_offsets() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 1, 4)
    pend(broker, 5, 7)
    broker = reloaded(cluster)
    assert [each.error_code for each in broker.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results] == [0]
    end(broker, 5, COMMIT_MARKER)
    assert offsets(reloaded(cluster)) == {}


def test_deleting_a_topic_drops_its_pending_offsets() -> None:
    cluster = cluster_of_groups()
    pend(coordinating(cluster), 5, 7)
    broker = reloaded(cluster)
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), 6)
    cluster.pass_ms(1_000)
    end(broker, 5, COMMIT_MARKER)
    cluster.topic("t", partitions=4)
    assert offsets(reloaded(cluster)) == {}


def test_a_pending_offset_keeps_the_group_and_the_partitions_old_offset_from_expiring() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 3)
    commit(broker, "g", "t", 1, 4)
    pend(broker, 5, 7)
    pend(broker, 6, 8, group="only-pending-7")
    broker = reloaded(cluster)
    cluster.jump_ms(8 * DAY_MS)
    assert offsets(broker) == {T0: 3}
    assert broker.node.groups.shard_of("g").machine.by_id.keys() >= {"g", "only-pending-7"}


def test_pending_offsets_are_counted_as_memory_until_they_are_decided() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 3)
    before = broker.node.groups.shard_of("g").machine.offsets.bytes
    pend(broker, 5, 7)
    assert reloaded(cluster).node.groups.shard_of("g").machine.offsets.bytes > before
    end(coordinating(cluster), 5, ABORT_MARKER)
    assert reloaded(cluster).node.groups.shard_of("g").machine.offsets.bytes == before


# A coordinator that writes and decides transactions itself.


def in_step(broker: Broker, act: Callable[[], Any]) -> None:
    """Runs a handler's part in a step of the broker."""
    broker.node.context.delayed.timer("test", act, broker.cluster.now_ms + 1)
    broker.cluster.pass_ms(20)


def write(broker: Broker, offset: int, *, producer: int = 5, verified: bool = True) -> None:
    shard = broker.node.groups.shard_of("g")
    guard = shard.leader.begin_verification(producer, 0, -1, raises_epoch=False, wall_ms=WALL_MS) if verified else None
    record = OffsetCommitKey(group="g", topic="t", partition=0), OffsetCommitValue(offset=offset, commit_timestamp=WALL_MS)
    in_step(broker, lambda: shard.write("g", [record], transaction=CommitTransaction(producer, 0, guard)))


def decide(broker: Broker, *, commit: bool, producer: int = 5) -> None:
    in_step(broker, lambda: broker.node.groups.shard_of("g").end_transaction(Marker(producer, 0, commit, 0)))


@pytest.mark.parametrize("commits", [True, False])
def test_what_the_coordinator_has_is_what_a_replay_of_its_log_has(commits: bool) -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    commit(broker, "g", "t", 0, 3)
    write(broker, 7)
    assert not differences(broker.node)
    assert stable_offsets(broker)[0] == (errors.UnstableOffsetCommit.code, -1) and offsets(broker) == {T0: 3}
    decide(broker, commit=commits)
    assert not differences(broker.node)
    assert offsets(broker) == offsets(reloaded(cluster)) == {T0: 7 if commits else 3}


def test_an_offset_of_a_transaction_that_was_not_verified_is_refused() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    shard = broker.node.groups.shard_of("g")
    end_offset = shard.leader.log.end_offset
    record = OffsetCommitKey(group="g", topic="t", partition=0), OffsetCommitValue(offset=1)
    with pytest.raises(errors.InvalidTxnState):
        shard.write("g", [record], transaction=CommitTransaction(5, 0))
    assert shard.leader.log.end_offset == end_offset and not shard.machine.offsets.pending


def test_a_decided_offset_is_not_shown_before_its_marker_is_committed() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    write(broker, 7)
    cluster.flushing = False
    decide(broker, commit=True)
    sent = broker.send(fetch_request("g"), 9)
    assert sent.waits
    cluster.flushing = True
    broker.flush()
    assert not sent.waits and sent.answer.groups[0].topics[0].partitions[0].committed_offset == 7


class Counted(str):
    """A group id that counts comparisons."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_deleted_offset_is_not_looked_for_among_those_of_other_groups() -> None:
    pending = PendingOffsets()
    for offset in range(100):
        group = "large" if offset < 90 else "small"
        pending.add(5, offset, OffsetCommitKey(group=Counted(group), topic="t", partition=offset), OffsetCommitValue(offset=1))
    Counted.compared = 0
    for offset in range(90, 100):
        pending.forget(OffsetCommitKey(group=Counted("small"), topic="t", partition=offset))
    assert Counted.compared < 90
    assert pending.sorted_places() == [("large", "t", partition) for partition in range(90)] and not pending.holds("small")
