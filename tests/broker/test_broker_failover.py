"""What follows a leader: producers' sequences, groups and their offsets; and what holds while a replica has no room.

A repeat that reaches the new leader is recognized there, a coordinator is read from the log of the one before.
"""

from typing import Any

import pytest
from cluster import Broker, Cluster, batch, fetch, produce, produce_request, values
from groups import SETTINGS, commit, committed, coordinating, heartbeat, join, sync

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.base.ports import Op
from ottla.base.units import SECOND_MS, KiB
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

T0 = TopicPartition("t", 0)
TWO = {"min.insync.replicas": "2"}


def a_cluster(**configs: str) -> tuple[Cluster, Broker]:
    """Three brokers, and the leader of a topic of three replicas."""
    cluster = Cluster(brokers=3)
    leader = cluster.topic(replicas=3, configs={**TWO, **{name.replace("_", "."): value for name, value in configs.items()}})
    cluster.pass_ms(1500)
    return cluster, leader


def numbered(sequence: int, *contents: bytes) -> bytes:
    return batch(*(contents or (b"%d" % sequence,)), producer_id=7, producer_epoch=0, base_sequence=sequence)


# Producers.


def test_a_repeat_at_the_next_leader_is_answered_with_its_first_offset() -> None:
    cluster, leader = a_cluster()
    produce(leader, batch(b"other"))
    assert [produce(leader, numbered(sequence)).base_offset for sequence in range(6)] == [1, 2, 3, 4, 5, 6]
    cluster.kill(leader.broker_id)
    now = cluster.leading("t")
    again = produce(now, numbered(5))
    assert (again.error_code, again.base_offset) == (0, 6)
    assert produce(now, numbered(1)).base_offset == 2, "all five batches that the last leader remembered"
    assert produce(now, numbered(7)).error_code == errors.OutOfOrderSequenceNumber.code
    assert produce(now, numbered(6)).base_offset == 7
    cluster.pass_ms(1000)
    assert values(fetch(now).records) == [b"other", *(b"%d" % sequence for sequence in range(7))]


def test_a_batch_that_only_a_lost_leader_had_is_new_to_the_next_one() -> None:
    cluster, leader = a_cluster()
    assert produce(leader, numbered(0)).error_code == 0
    cluster.cut_off(leader.broker_id)
    cluster.pass_ms(1000)
    sent = leader.send(produce_request(numbered(1, b"unheard"), timeout_ms=60_000), 12)
    gone = cluster.kill(leader.broker_id)
    cluster.cut = set()
    now = cluster.leading("t")
    assert sent.waits
    assert produce(now, numbered(1, b"again")).base_offset == 1
    cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    assert produce(now, numbered(2)).base_offset == 2
    follower = cluster[gone.broker_id].node.partitions.followers[T0]
    cluster.pass_ms(1000)
    assert values(follower.log.read(0)) == [b"0", b"again", b"2"]
    assert follower.log.producers.by_id[7].epoch == 0, "the producer state of the truncated batch is removed, too"
    cluster.kill(now.broker_id)
    cluster.pass_ms(1000)
    assert produce(cluster.leading("t"), numbered(1, b"again")).base_offset == 1


def test_too_few_in_sync_is_an_error_before_the_append_and_another_one_after_it() -> None:
    """19 and 20: of the first nothing is in the log, so that another try is no repeat."""
    cluster, leader = a_cluster()
    followers = [number for number in cluster.brokers if number != leader.broker_id]
    cluster.kill(followers[0])
    cluster.flushing = False
    sent = leader.send(produce_request(numbered(0), timeout_ms=60_000), 12)
    cluster.kill(followers[1])
    assert sent.answer.responses[0].partition_responses[0].error_code == errors.NotEnoughReplicasAfterAppend.code == 20
    end = leader.leader("t").log.end_offset
    assert produce(leader, numbered(1)).error_code == errors.NotEnoughReplicas.code == 19
    assert (end, leader.leader("t").log.end_offset) == (1, 1)


# Groups.


def groups_of(brokers: int = 3) -> tuple[Cluster, Broker]:
    """A cluster whose __consumer_offsets is replicated, and the coordinator of group g."""
    cluster = Cluster(brokers, settings=SETTINGS)
    cluster.topic("t", partitions=4)
    coordinating(cluster)
    cluster.pass_ms(1500)
    return cluster, coordinating(cluster)


def a_member(cluster: Cluster, broker: Broker) -> Any:
    """The answer to its join; it is the leader of a stable group of one."""
    joined = join(broker, "g")
    cluster.pass_ms(5 * SECOND_MS)
    answer = joined.answer
    synced = sync(broker, answer, given={answer.member_id: b"all of t"})
    cluster.run()
    assert synced.answer.error_code == 0
    return answer


def test_a_group_and_its_offsets_move_to_the_next_leader_of_their_partition() -> None:
    cluster, coordinator = groups_of()
    joined = a_member(cluster, coordinator)
    assert commit(coordinator, "g", "t", 1, 42, joined=joined) == 0
    cluster.pass_ms(1000)
    cluster.kill(coordinator.broker_id)
    cluster.pass_ms(2000)
    now = coordinating(cluster)
    assert now is not coordinator
    assert committed(now)["t", 1][0] == 42
    assert heartbeat(now, joined) == 0, "its generation continues, no member has to rejoin"
    assert commit(now, "g", "t", 1, 43, joined=joined) == 0


def test_coordinator_answers_load_in_progress_until_its_log_is_replayed() -> None:
    cluster, coordinator = groups_of()
    joined = a_member(cluster, coordinator)
    assert commit(coordinator, "g", "t", 1, 42, joined=joined) == 0
    cluster.pass_ms(1000)
    for broker in cluster.brokers.values():
        broker.reading = False
    cluster.kill(coordinator.broker_id)
    cluster.pass_ms(2000)
    some = next(iter(cluster.brokers.values()))
    now = cluster[some.ask(FindCoordinatorRequest(key="g"), 2).node_id]
    assert commit(now, "g", "t", 1, 43, joined=joined) == errors.CoordinatorLoadInProgress.code
    asked = now.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 9)
    assert asked.groups[0].error_code == errors.CoordinatorLoadInProgress.code, "rather than that there are no offsets"
    now.read_logs()
    cluster.pass_ms(1000)
    assert heartbeat(now, joined) == 0 and committed(now)["t", 1][0] == 42


# Without room.


def test_a_follower_without_room_leaves_the_isr_and_catches_up_when_there_is_some() -> None:
    cluster, leader = a_cluster()
    follower = next(broker for broker in cluster.brokers.values() if broker is not leader)
    disk = follower.disks["disk0"]
    disk.capacity_bytes = disk.used_bytes + 100
    sent = leader.send(produce_request(batch(b"x" * KiB), timeout_ms=120_000), 12)
    cluster.pass_ms(20 * SECOND_MS)
    assert sent.waits and follower.halted is None
    cluster.pass_ms(15 * SECOND_MS)
    assert sent.answer.responses[0].partition_responses[0].error_code == 0, "the leader continues without it"
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None and follower.broker_id not in state.isr and len(state.isr) == 2
    assert T0 in follower.node.partitions.followers and not follower.node.partitions.offline, "full is not broken"
    assert produce(leader, batch(b"y" * KiB)).error_code == 0
    disk.capacity_bytes = 1 << 40
    follower.measured(free_bytes=1 << 40)
    cluster.pass_ms(5 * SECOND_MS)
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None and follower.broker_id in state.isr
    assert follower.node.partitions.followers[T0].log.end_offset == 2


def test_stuck_follower_does_not_rejoin_the_isr_repeatedly() -> None:
    """With nothing committed any more it has all that is, and is late all the same."""
    cluster, leader = a_cluster(min_insync_replicas="3")
    follower = next(broker for broker in cluster.brokers.values() if broker is not leader)
    disk = follower.disks["disk0"]
    disk.capacity_bytes = disk.used_bytes + 100
    assert produce(leader, batch(b"x" * KiB), acks=1).error_code == 0
    cluster.pass_ms(40 * SECOND_MS)
    image = cluster.controller.node.context.image
    assert follower.broker_id not in image.topics["t"].states[0].isr
    version = image.topics["t"].versions[0]
    cluster.pass_ms(60 * SECOND_MS)
    assert image.topics["t"].versions[0] == version
    disk.capacity_bytes = 1 << 40
    cluster.pass_ms(5 * SECOND_MS)
    assert follower.broker_id in image.topics["t"].states[0].isr


# The state's version.


@pytest.mark.parametrize("reported", [False, True], ids=["a controller that has not heard", "a controller that has"])
def test_an_isr_request_based_on_an_older_state_is_refused(reported: bool) -> None:
    """Compare and set: the faster change was decided on a state that this leader has not seen. Source: KIP-497, KAFKA-2729."""
    cluster, leader = a_cluster()
    topic = cluster.controller.node.context.image.topics["t"]
    before = topic.states[0]
    requested = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=before.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=leader.broker_id, broker_epoch=leader.node.context.epoch or 0)],
        partition_epoch=topic.versions[0],
    )
    cluster.store_delivers = reported
    newer = PartitionState(
        leader=before.leader,
        leader_epoch=LeaderEpoch(before.leader_epoch),
        isr=before.isr,
        isr_epochs=before.isr_epochs,
        controller_epoch=1,
    )
    path = layout.partition_state("t", 0)
    cluster.store.session().submit((Op("set", path, layout.encode_partition_state(newer)),), lambda result: None)
    cluster.run()
    written = cluster.store.tree.nodes[path].version
    request = AlterPartitionRequest(
        broker_id=leader.broker_id,
        broker_epoch=leader.node.context.epoch or 0,
        topics=[AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[requested])],
    )
    sent = cluster.controller.send(request, 3)
    node = cluster.store.tree.nodes[path]
    assert (node.version, layout.decode_partition_state(node.data).isr) == (written, before.isr)
    cluster.store_delivers = True
    cluster.pass_ms(3000)
    assert sent.answer.topics[0].partitions[0].error_code == errors.InvalidUpdateVersion.code
    assert produce(leader, batch(b"a")).error_code == 0
