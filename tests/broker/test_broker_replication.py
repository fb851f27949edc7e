"""Replication: what followers copy, when records are committed, which replica leads after a failure."""

from random import Random

import pytest
from cluster import Broker, Cluster, batch, fetch, fetch_request, produce, produce_request, values

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.broker.replica.fetchers import FetchPosition
from ottla.broker.replica.follower import Follower
from ottla.log.directory import LogDirectory
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

T0 = TopicPartition("t", 0)
TWO = {"min.insync.replicas": "2"}


def state_of(cluster: Cluster) -> PartitionState:
    state = cluster.controller.node.context.image.state(T0)
    assert state is not None
    return state


def followers(cluster: Cluster) -> dict[int, Follower]:
    return {
        number: broker.node.partitions.followers[T0] for number, broker in cluster.brokers.items() if T0 in broker.node.partitions.followers
    }


def logs(cluster: Cluster) -> list[bytes]:
    """What each broker alive has of the partition."""
    found = []
    for broker in cluster.brokers.values():
        partitions = broker.node.partitions
        replica = partitions.leaders.get(T0) or partitions.followers[T0]
        found.append(replica.log.read(0))
    return found


def a_pair(replicas: int = 3, brokers: int = 3, **configs: str) -> tuple[Cluster, Broker]:
    """A cluster, and the leader of a topic whose followers have begun to follow."""
    cluster = Cluster(brokers=brokers)
    leader = cluster.topic(replicas=replicas, configs={name.replace("_", "."): value for name, value in configs.items()})
    cluster.pass_ms(1500)
    return cluster, leader


# Copying, and what counts as committed.


def test_followers_hold_the_bytes_of_the_leader() -> None:
    cluster, leader = a_pair()
    assert produce(leader, batch(b"a", b"b")).error_code == 0
    assert produce(leader, batch(b"c")).error_code == 0
    cluster.pass_ms(1000)
    first, *others = logs(cluster)
    assert first and others == [first, first]
    assert [follower.high_watermark for follower in followers(cluster).values()] == [3, 3]


def test_acks_all_waits_until_the_batch_is_on_the_disk_of_every_member_of_the_isr() -> None:
    cluster, leader = a_pair()
    cluster.flushing = False
    sent = leader.send(produce_request(batch(b"a"), timeout_ms=60_000), 12)
    leader.flush()
    one, other = (cluster[number] for number in followers(cluster))
    one.flush()
    cluster.pass_ms(600)
    assert [follower.log.end_offset for follower in followers(cluster).values()] == [1, 1]
    assert sent.waits and leader.leader("t").high_watermark == 0
    other.flush()
    assert sent.answer.responses[0].partition_responses[0].error_code == 0


def test_with_write_caching_the_page_cache_of_every_member_is_enough() -> None:
    cluster, leader = a_pair(write_caching="true")
    cluster.flushing = False
    assert produce(leader, batch(b"a")).error_code == 0


def test_acks_1_answers_before_any_follower_has_the_batch() -> None:
    cluster, leader = a_pair()
    cluster.flushing = False
    assert produce(leader, batch(b"a"), acks=1).error_code == 0
    assert values(fetch(leader).records) == [], "consumers see what is committed"


def test_follower_reads_to_the_log_end_and_consumer_to_the_high_watermark() -> None:
    cluster, leader = a_pair()
    cluster.flushing = False
    produce(leader, batch(b"a"), acks=1)
    follower, epoch = next((number, cluster[number].node.context.epoch) for number in followers(cluster))
    answer = leader.ask(replica_request(cluster, follower, epoch, leader.leader("t").epoch), 15)
    assert values(answer.responses[0].partitions[0].records) == [b"a"]


def replica_request(
    cluster: Cluster, replica: int, broker_epoch: int | None, leader_epoch: int, *, offset: int = 0, last_epoch: int = -1
) -> FetchRequest:
    topic_id = cluster.controller.node.context.image.topics["t"].topic_id
    ask = FetchPartition(
        partition=0, fetch_offset=offset, current_leader_epoch=leader_epoch, last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20
    )
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=broker_epoch or 0),
        session_epoch=-1,
        topics=[FetchTopic(topic_id=topic_id, partitions=[ask])],
    )


def test_a_fetch_of_another_epoch_does_not_raise_the_high_watermark() -> None:
    """Source: KIP-320; a follower that takes another for its leader says nothing about this log."""
    cluster, leader = a_pair(replicas=2)
    (follower,) = followers(cluster)
    epoch = cluster[follower].node.context.epoch
    cluster[follower].halted = "stopped in the middle"
    produce_sent = leader.send(produce_request(batch(b"a"), timeout_ms=60_000), 12)
    answer = leader.ask(replica_request(cluster, follower, epoch, leader.leader("t").epoch + 1, offset=1), 15)
    assert answer.responses[0].partitions[0].error_code == errors.UnknownLeaderEpoch.code
    assert produce_sent.waits
    leader.ask(replica_request(cluster, follower, epoch, leader.leader("t").epoch, offset=1), 15)
    cluster.run()
    assert produce_sent.answer is not None, "the same in the leader's epoch does"


def test_a_fetch_of_an_earlier_registration_is_refused() -> None:
    """Source: KIP-903."""
    cluster, leader = a_pair(replicas=2)
    (follower,) = followers(cluster)
    before = cluster[follower].node.context.epoch
    cluster.restart(follower)
    answer = leader.ask(replica_request(cluster, follower, before, leader.leader("t").epoch), 15)
    assert answer.error_code == errors.StaleBrokerEpoch.code


def test_a_broker_that_is_no_replica_does_not_follow() -> None:
    cluster, leader = a_pair(replicas=2)
    stranger = next(
        number for number in cluster.brokers if T0 not in cluster[number].node.partitions.followers and number != leader.broker_id
    )
    answer = leader.ask(replica_request(cluster, stranger, cluster[stranger].node.context.epoch, leader.leader("t").epoch), 15)
    assert answer.responses[0].partitions[0].error_code == errors.NotLeaderOrFollower.code


# The ISR.


def test_a_follower_that_does_not_catch_up_leaves_the_isr_and_writes_continue() -> None:
    cluster, leader = a_pair()
    slow = next(iter(followers(cluster)))
    cluster[slow].halted = "stopped in the middle"
    sent = leader.send(produce_request(batch(b"a"), timeout_ms=120_000), 12)
    cluster.pass_ms(20 * SECOND_MS)
    assert sent.waits
    cluster.pass_ms(15 * SECOND_MS)
    assert slow not in state_of(cluster).isr and len(state_of(cluster).isr) == 2
    assert sent.answer.responses[0].partition_responses[0].error_code == 0


def test_a_restarted_broker_joins_the_isr_when_it_has_caught_up() -> None:
    cluster, leader = a_pair()
    gone = next(iter(followers(cluster)))
    broker = cluster.kill(gone)
    assert gone not in state_of(cluster).isr
    produce(leader, batch(b"a"))
    cluster.start(gone, broker.texts, [disk.restart() for disk in broker.disks.values()])
    cluster.pass_ms(3000)
    assert set(state_of(cluster).isr) == set(cluster.brokers)
    assert len(set(logs(cluster))) == 1
    assert state_of(cluster).leader_epoch == 0, "who leads was never in doubt"


def test_a_follower_joins_the_isr_only_with_all_that_the_epoch_began_with() -> None:
    cluster, leader = a_pair()
    gone = next(iter(followers(cluster)))
    broker = cluster.kill(gone)
    for number in range(3):
        produce(leader, batch(b"%d" % number))
    cluster.flushing = False
    cluster.start(gone, broker.texts, [disk.restart() for disk in broker.disks.values()])
    cluster.pass_ms(1500)
    assert cluster[gone].node.partitions.followers[T0].log.end_offset == 3
    assert gone not in state_of(cluster).isr, "nothing of it is on disk there"
    cluster.flushing = True
    cluster[gone].flush()
    cluster.pass_ms(1500)
    assert gone in state_of(cluster).isr


def test_until_the_controller_has_answered_members_of_both_isrs_count() -> None:
    """The maximal ISR: a controller that got the request may elect the new member. Source: KIP-497."""
    cluster, leader = a_pair()
    gone = next(iter(followers(cluster)))
    broker = cluster.kill(gone)
    cluster.start(gone, broker.texts, [disk.restart() for disk in broker.disks.values()])
    led = leader.leader("t")
    led.isr_state.propose(tuple(cluster.brokers))
    cluster[gone].halted = "stopped in the middle"
    sent = leader.send(produce_request(batch(b"a"), timeout_ms=60_000), 12)
    cluster.pass_ms(1000)
    assert gone in led.isr_state.maximal and sent.waits


def test_acks_all_is_refused_below_min_insync_replicas_and_nothing_more_is_committed() -> None:
    cluster, leader = a_pair(min_insync_replicas="2")
    for number in list(followers(cluster)):
        cluster.kill(number)
    assert produce(leader, batch(b"a")).error_code == errors.NotEnoughReplicas.code
    assert produce(leader, batch(b"b"), acks=1).error_code == 0
    assert leader.leader("t").high_watermark == 0


def test_acks_all_that_meets_a_shrinking_isr_is_answered_with_an_error_of_its_own() -> None:
    cluster, leader = a_pair(min_insync_replicas="2")
    cluster.flushing = False
    sent = leader.send(produce_request(batch(b"a"), timeout_ms=60_000), 12)
    for number in list(followers(cluster)):
        assert sent.waits
        cluster.kill(number)
    assert sent.answer.responses[0].partition_responses[0].error_code == errors.NotEnoughReplicasAfterAppend.code


def alter(
    cluster: Cluster, leader: Broker, isr: dict[int, int], *, broker_epoch: int | None = None, partition_epoch: int | None = None
) -> int:
    """AlterPartition as the leader sends it; the error of the whole or of the partition."""
    topic = cluster.controller.node.context.image.topics["t"]
    requested = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=topic.states[0].leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in isr.items()],
        partition_epoch=topic.versions[0] if partition_epoch is None else partition_epoch,
    )
    request = AlterPartitionRequest(
        broker_id=leader.broker_id,
        broker_epoch=(leader.node.context.epoch or 0) if broker_epoch is None else broker_epoch,
        topics=[AlterPartitionRequestTopic(topic_id=topic.topic_id, partitions=[requested])],
    )
    answer = cluster.controller.ask(request, 3)
    return int(answer.error_code or answer.topics[0].partitions[0].error_code)


def test_the_controller_refuses_an_isr_by_name() -> None:
    cluster, leader = a_pair()
    alive = {number: broker.node.context.epoch or 0 for number, broker in cluster.brokers.items()}
    follower = next(iter(followers(cluster)))
    assert alter(cluster, leader, alive, broker_epoch=1) == errors.StaleBrokerEpoch.code
    assert alter(cluster, leader, alive, partition_epoch=99) == errors.InvalidUpdateVersion.code
    assert alter(cluster, leader, {**alive, follower: 1}) == errors.IneligibleReplica.code
    assert alter(cluster, leader, {follower: alive[follower]}) == errors.InvalidRequest.code
    assert alter(cluster, leader, {leader.broker_id: alive[leader.broker_id]}) == errors.NONE
    assert state_of(cluster).isr == (leader.broker_id,)


# Losing the leader.


def test_acknowledged_records_survive_their_leader() -> None:
    cluster, leader = a_pair(min_insync_replicas="2")
    for number in range(5):
        assert produce(leader, batch(b"%d" % number)).error_code == 0
    cluster.kill(leader.broker_id)
    now = cluster.leading("t")
    assert now.leader("t").epoch == 1
    cluster.pass_ms(1500)
    assert values(fetch(now).records) == [b"%d" % number for number in range(5)]
    assert produce(now, batch(b"more")).error_code == 0


def test_a_former_leader_cuts_off_what_was_never_committed() -> None:
    """Source: KIP-101, KIP-279."""
    cluster, leader = a_pair()
    produce(leader, batch(b"a"))
    cluster.cut_off(leader.broker_id)
    cluster.pass_ms(1000)
    produce(leader, batch(b"lost", b"lost"), acks=1)
    gone = cluster.kill(leader.broker_id)
    cluster.cut = set()
    now = cluster.leading("t")
    produce(now, batch(b"b"), acks=1)
    assert gone.node.partitions.leaders[T0].log.end_offset == 3
    cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3000)
    assert len(set(logs(cluster))) == 1
    assert values(fetch(now).records) == [b"a", b"b"]


def test_two_changes_of_leader_in_a_row_leave_the_copies_equal() -> None:
    """Each wrote what the other never had, in epochs that the other does not know. Source: KIP-279."""
    cluster, first = a_pair(replicas=2, brokers=3, unclean_leader_election_enable="true")
    (number,) = followers(cluster)
    produce(first, batch(b"both"))
    cluster.pass_ms(1000)
    cluster.cut_off(number)
    produce(first, batch(b"x"), acks=1)
    one = cluster.kill(first.broker_id)
    cluster.cut = {frozenset((number, other)) for other in cluster.brokers if other != number}
    cluster.pass_ms(1000)
    produce(cluster[number], batch(b"y"), acks=1)
    other = cluster.kill(number)
    cluster.cut = set()
    back = cluster.start(one.broker_id, one.texts, [disk.restart() for disk in one.disks.values()])
    cluster.pass_ms(1000)
    assert state_of(cluster).leader == back.broker_id and back.leader("t").epoch >= 2
    produce(back, batch(b"z"), acks=1)
    cluster.start(number, other.texts, [disk.restart() for disk in other.disks.values()])
    cluster.pass_ms(3000)
    (copy,) = followers(cluster).values()
    assert values(copy.log.read(0)) == values(back.leader("t").log.read(0)) == [b"both", b"x", b"z"]
    assert copy.log.read(0) == back.leader("t").log.read(0), "epochs and all"


def test_an_answer_without_records_does_not_make_a_follower_forget_its_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: KAFKA-15510."""
    asked: list[FetchPartition] = []
    cluster, leader = a_pair(replicas=2)
    ask_peer = Broker._ask_peer

    def ask(broker: Broker, effect: effects.PeerRequest) -> None:
        if isinstance(effect.message, FetchRequest):
            asked.extend(partition for topic in effect.message.topics for partition in topic.partitions)
        ask_peer(broker, effect)

    produce(leader, batch(b"a"))
    cluster.pass_ms(3000)
    monkeypatch.setattr(Broker, "_ask_peer", ask)
    leader.node.sessions._close(next(iter(leader.node.sessions._sessions.values())))
    cluster.pass_ms(2000)
    assert asked and all((partition.fetch_offset, partition.last_fetched_epoch) == (1, 0) for partition in asked)


def test_new_leader_lists_no_offsets_before_it_knows_the_high_watermark() -> None:
    cluster, leader = a_pair()
    produce(leader, batch(b"a"))
    now = next(cluster[number] for number in sorted(followers(cluster)))
    other = next(number for number in followers(cluster) if number != now.broker_id)
    cluster.cut.add(frozenset((now.broker_id, other)))
    cluster.flushing = False
    cluster.kill(leader.broker_id)
    now = cluster.leading("t")
    assert now.leader("t").high_watermark == 0, "the follower has not got it yet"
    ask = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
    )
    assert now.ask(ask, 7).topics[0].partitions[0].error_code == errors.OffsetNotAvailable.code
    assert now.ask(ask, 4).topics[0].partitions[0].error_code == errors.LeaderNotAvailable.code
    cluster.cut = set()
    cluster.pass_ms(2000)
    assert now.ask(ask, 7).topics[0].partitions[0].offset == 1


@pytest.mark.parametrize("unclean", ["false", "true"])
def test_a_replica_outside_of_the_isr_leads_only_where_losing_records_is_allowed(unclean: str) -> None:
    cluster, leader = a_pair(replicas=2, unclean_leader_election_enable=unclean)
    (follower,) = followers(cluster)
    broker = cluster.kill(follower)
    produce(leader, batch(b"a"))
    cluster.kill(leader.broker_id)
    cluster.start(follower, broker.texts, [disk.restart() for disk in broker.disks.values()])
    assert state_of(cluster).leader == (follower if unclean == "true" else -1)


def test_a_follower_begins_where_a_leader_begins_that_has_dropped_what_it_would_ask_for() -> None:
    cluster, leader = a_pair(replicas=2)
    (follower,) = followers(cluster)
    broker = cluster.kill(follower)
    for number in range(3):
        produce(leader, batch(b"%d" % number))
    leader.node.partitions.delete_before(leader.leader("t"), 2)
    cluster.start(follower, broker.texts, [disk.restart() for disk in broker.disks.values()])
    cluster.pass_ms(3000)
    log = cluster[follower].node.partitions.followers[T0].log
    assert (log.start_offset, log.end_offset) == (2, 3)
    assert follower in state_of(cluster).isr


def test_a_batch_of_a_later_epoch_than_the_followers_own_is_left_out() -> None:
    """Source: KAFKA-18723."""
    cluster, _ = a_pair(replicas=2)
    (number,) = followers(cluster)
    follower = followers(cluster)[number]
    data = bytearray(batch(b"a", base_offset=0, leader_epoch=0)) + bytearray(batch(b"b", base_offset=1, leader_epoch=1))
    assert follower.append(data, high_watermark=0, wall_ms=0) == 1
    assert follower.log.end_offset == 1


def test_a_late_response_of_a_former_leader_truncates_nothing() -> None:
    """After a long pause it sends a present follower an old diverging epoch; found by the simulator."""
    cluster, leader = a_pair(replicas=2)
    produce(leader, batch(b"a"))
    (number,) = followers(cluster)
    follower, fetcher = followers(cluster)[number], cluster[number].node.fetchers.of(T0)
    asked = {(follower.log.topic_id, 0): FetchPosition.now(follower)}
    diverging = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))
    answer = FetchResponse(responses=[FetchableTopicResponse(topic_id=follower.log.topic_id, partitions=[diverging])])
    follower.epoch += 1
    fetcher._asked = dict(asked)  # type: ignore[arg-type]
    fetcher._answered(answer)
    assert follower.log.end_offset == 1
    follower.epoch -= 1
    fetcher._asked = dict(asked)  # type: ignore[arg-type]
    fetcher._answered(answer)
    assert follower.log.end_offset == 0, "in time it is believed"


def test_holes_that_compaction_left_are_copied_and_outlive_a_crash() -> None:
    cluster, _ = a_pair(replicas=2, cleanup_policy="compact")
    (number,) = followers(cluster)
    follower = followers(cluster)[number]
    data = bytearray(batch(b"a", key=b"k", leader_epoch=0)) + bytearray(batch(b"b", key=b"k", base_offset=7, leader_epoch=0))
    assert follower.append(data, high_watermark=9, wall_ms=0) == 1, "the batch behind the hole may be damaged, and nothing follows it yet"
    data += bytearray(batch(b"c", key=b"k", base_offset=8, leader_epoch=0))
    assert follower.append(data, high_watermark=9, wall_ms=0) == 2
    log, disk = follower.log, cluster[number].disks["disk0"]
    plan = log.flush_plan()
    assert plan is not None and log.holes_below == 9
    plan.carry_out(disk)
    opened = LogDirectory.open(disk.crash(Random(1)), broker_id=number, cluster_id="cluster", now_ms=0)
    assert (opened.logs[T0].end_offset, opened.logs[T0].holes_below) == (9, 9)


# Consumers' offsets.


def test_fetch_of_a_consumer_at_a_follower_is_sent_to_the_leader() -> None:
    cluster, _ = a_pair()
    follower = cluster[next(iter(followers(cluster)))]
    answer = follower.ask(fetch_request(), 12)
    assert answer.responses[0].partitions[0].error_code == errors.NotLeaderOrFollower.code


def test_followers_compact_their_own_logs() -> None:
    cluster, leader = a_pair(replicas=2, cleanup_policy="compact", internal_segment_bytes="200", min_cleanable_dirty_ratio="0")
    for number in range(20):
        assert produce(leader, batch(b"%d" % number, key=b"k")).error_code == 0
    cluster.pass_ms(60 * SECOND_MS)
    (follower,) = followers(cluster).values()
    assert follower.log.clean_offset is not None and follower.log.clean_offset > 10
    assert follower.log.end_offset == leader.leader("t").log.end_offset == 20
