"""Commits and deletions of many offsets are written in portions, in turns. A small turn stands for a large request."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from access_rules import ALICE, ROOT, grant, guarded, revoke, rule
from cluster import Broker, Cluster, Sent
from garbage import garbage_of
from groups import INITIAL_DELAY_MS, cluster_of_groups, commit, committed, coordinating, join, stable, sync
from transactional import Producer, cluster_of_transactions, coordinator, state_of

from ottla.base.acls import Operation, ResourceType
from ottla.base.origin import ANONYMOUS
from ottla.base.units import DAY_MS
from ottla.log.log import Log
from ottla.records.batch import headers
from ottla.wire import errors
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription, encode_embedded
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.find_coordinator import GROUP
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T = ("t", range(4))
READS_T = (("range", encode_embedded(ConsumerProtocolSubscription(topics=["t"]))),)
Named = tuple[str, Sequence[int]]


def commit_of(*topics: Named, offset: int = 5, group: str = "g", **fields: Any) -> OffsetCommitRequest:
    asked = [
        OffsetCommitRequestTopic(name=name, partitions=[OffsetCommitRequestPartition(number, offset) for number in numbers])
        for name, numbers in topics
    ]
    return OffsetCommitRequest(group_id=group, topics=asked, **fields)


def deletion_of(*topics: Named, group: str = "g") -> OffsetDeleteRequest:
    asked = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(number) for number in numbers])
        for name, numbers in topics
    ]
    return OffsetDeleteRequest(group_id=group, topics=asked)


def codes(answer: Any) -> list[int]:
    return [place.error_code for topic in answer.topics for place in topic.partitions]


def offsets(broker: Broker, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: offset for place, (offset, _, _) in committed(broker, group).items()}


def batches(broker: Broker, group: str = "g") -> list[int]:
    """Records of each batch in the log of a group's coordinator."""
    log: Log = broker.node.groups.shard_of(group).leader.log
    found = log.locate(log.start_offset, max_bytes=1 << 24, upto=log.end_offset)
    return [] if found is None else [header.last_offset_delta + 1 for _, header in headers(memoryview(found.read()))]


def begin(
    broker: Broker, request: Any, version: int, turns: int = 0, *, until: Callable[[], bool] = lambda: True, entries: int = 1, **sender: Any
) -> Sent:
    """A request with portions of so many entries, which has had so many turns after the first. Other requests have usual turns."""
    turns_, broker.cluster.turning = broker.node.context.turns, False
    usual, turns_.elements = turns_.elements, 2 * entries
    sent = broker.send(request, version, **sender)
    for _ in range(turns):
        broker.turn()
    while not until():
        broker.turn()
    assert sent.waits and broker.turns_due == 1
    turns_.elements = usual
    return sent


def finish(broker: Broker, sent: Sent) -> Any:
    while broker.turns_due:
        broker.turn()
    return sent.answer


def load_again(broker: Broker, group: str = "g") -> None:
    """The coordinator of a group ends, and begins to load its log."""
    context = broker.node.context
    context.effects = []
    broker.node.groups.shard_of(group).reload()
    broker._perform(context.effects)


# OffsetCommit.


def test_a_hundred_offsets_are_one_batch_and_more_are_several() -> None:
    cluster = cluster_of_groups()
    cluster.topic("wide", partitions=250)
    cluster.topic("others", partitions=1)
    broker = coordinating(cluster)
    cluster.turning = False
    assert codes(broker.ask(commit_of(("wide", range(100))), 9)) == [0] * 100
    assert codes(broker.ask(commit_of(*[("others", [0])] * 100), 9)) == [0] * 100
    assert batches(broker) == [100, 100]
    cluster.turning = True
    assert codes(broker.ask(commit_of(("wide", range(250)), ("t", [0]), offset=6), 9)) == [0] * 251
    assert batches(broker)[2:] == [100, 100, 51]
    assert offsets(broker) == {**{("wide", number): 6 for number in range(250)}, ("others", 0): 5, ("t", 0): 6}


def test_long_metadata_makes_a_portion_shorter() -> None:
    broker = coordinating(cluster_of_groups())
    asked = [OffsetCommitRequestPartition(number % 4, 5, -1, "x" * 4000) for number in range(100)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=asked)])
    assert set(codes(broker.ask(request, 9))) == {0}
    assert batches(broker) == [40, 40, 20]


def test_other_requests_are_answered_between_the_portions_of_a_commit_and_see_those_that_are_written() -> None:
    broker = coordinating(cluster_of_groups())
    sent = begin(broker, commit_of(T), 9, turns=1)
    assert offsets(broker) == {("t", 0): 5, ("t", 1): 5}
    assert codes(finish(broker, sent)) == [0] * 4
    assert len(offsets(broker)) == 4


def test_a_rebalance_between_two_portions_refuses_the_rest_of_a_commit() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    [member] = stable(cluster, 1)
    request = commit_of(T, generation_id_or_member_epoch=member.generation_id, member_id=member.member_id)
    sent = begin(broker, request, 9, turns=1)
    join(broker, member=member.member_id, protocols=(("range", b"changed"),))
    cluster.pass_ms(INITIAL_DELAY_MS)
    assert codes(finish(broker, sent)) == [0, 0, errors.IllegalGeneration.code, errors.IllegalGeneration.code]
    assert offsets(broker) == {("t", 0): 5, ("t", 1): 5}


def test_an_error_of_the_first_portion_refuses_the_whole_commit_except_for_unknown_partitions() -> None:
    broker = coordinating(cluster_of_groups())
    request = commit_of(("t", [0, 9, 1]), ("none", [0]), generation_id_or_member_epoch=3, member_id="x")
    unknown, refused = errors.UnknownTopicOrPartition.code, errors.GroupIdNotFound.code
    assert codes(finish(broker, begin(broker, request, 9, turns=0))) == [refused, unknown, refused, unknown]


def test_a_commit_goes_on_with_the_group_as_it_is_loaded_again() -> None:
    broker = coordinating(cluster_of_groups())
    sent = begin(broker, commit_of(T), 9, turns=1)
    load_again(broker)
    broker.cluster.run()
    assert codes(finish(broker, sent)) == [0] * 4
    assert len(offsets(broker)) == 4


@pytest.mark.parametrize("durable", [True, False])
def test_a_coordinator_lost_between_two_portions_refuses_the_rest_and_what_is_not_committed(durable: bool) -> None:
    broker = coordinating(cluster_of_groups())
    broker.cluster.flushing = durable
    sent = begin(broker, commit_of(("t", [0, 9, 1, 2])), 9, turns=1)
    broker.reading = False
    load_again(broker)
    gone = errors.CoordinatorLoadInProgress.code
    written = 0 if durable else errors.NotCoordinator.code
    assert codes(finish(broker, sent)) == [written, errors.UnknownTopicOrPartition.code, gone, gone]


def test_portions_that_are_not_committed_in_time_are_refused_and_other_entries_keep_their_error() -> None:
    cluster = cluster_of_groups(offsets_commit_timeout_ms="2000")
    broker = coordinating(cluster)
    cluster.flushing = False
    sent = begin(broker, commit_of(("t", [0, 9, 1, 2])), 9, turns=0)
    while broker.turns_due:
        broker.turn()
    assert sent.waits
    cluster.pass_ms(2_100)
    late = errors.CoordinatorNotAvailable.code
    assert codes(finish(broker, sent)) == [late, errors.UnknownTopicOrPartition.code, late, late]


def test_a_portion_above_max_message_bytes_is_refused_with_the_rest() -> None:
    broker = coordinating(cluster_of_groups(message_max_bytes="2000"))
    asked = [OffsetCommitRequestPartition(0, 5, -1, "x" * size) for size in (10, 3000, 10)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=asked)])
    too_large = errors.InvalidCommitOffsetSize.code
    assert codes(finish(broker, begin(broker, request, 9, turns=0))) == [0, too_large, too_large]
    assert codes(coordinating(cluster_of_groups(message_max_bytes="2000")).ask(request, 9)) == [too_large] * 3


@pytest.mark.parametrize(("version", "unknown"), [(9, errors.UnknownTopicOrPartition), (10, errors.UnknownTopicId)])
def test_a_topic_deleted_between_two_portions_is_unknown_for_the_rest(version: int, unknown: type[errors.KafkaError]) -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    request = commit_of(T)
    request.topics[0].topic_id = broker.node.context.image.topics["t"].topic_id
    sent = begin(broker, request, version, turns=1)
    cluster.controller.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    assert codes(finish(broker, sent)) == [0, 0, unknown.code, unknown.code]
    cluster.pass_ms(1_000)
    assert offsets(broker) == {}


def test_a_right_removed_between_two_portions_counts_from_the_next_topic_on() -> None:
    cluster = guarded(topics=("t", "u"), partitions=4, offsets_topic_num_partitions="2", super_users=f"{ROOT};{ANONYMOUS}")
    broker = coordinating(cluster)
    grant(cluster, rule(Operation.READ), rule(Operation.READ, name="u"), rule(Operation.READ, ResourceType.GROUP, "g"))
    sent = begin(broker, commit_of(("t", [0, 1]), ("u", [0, 1]), ("t", [2])), 9, turns=0, principal=ALICE)
    cluster.turning = True
    revoke(cluster, resource_type_filter=2, resource_name_filter="u", pattern_type_filter=3)
    cluster.turning = False
    forbidden = errors.TopicAuthorizationFailed.code
    assert codes(finish(broker, sent)) == [0, 0, forbidden, forbidden, 0]


@pytest.mark.parametrize("version", [9, 10])
def test_a_commit_of_a_client_without_rights_is_refused_in_turns(version: int) -> None:
    cluster = guarded(partitions=4, offsets_topic_num_partitions="2")
    broker = cluster[1]
    request = commit_of(*[T] * 3)
    forbidden = errors.GroupAuthorizationFailed.code
    broker.node.context.turns.elements = 1
    cluster.turning = False
    sent = broker.send(request, version, principal=ALICE)
    assert sent.waits
    assert codes(finish(broker, sent)) == [forbidden] * 12


def test_the_rest_of_a_commit_is_not_stored_after_its_connection_is_closed() -> None:
    broker = coordinating(cluster_of_groups())
    sent = begin(broker, commit_of(T), 9, turns=1)
    broker.hang_up(sent)
    while broker.turns_due:
        broker.turn()
    assert offsets(broker) == {("t", 0): 5, ("t", 1): 5}


# TxnOffsetCommit.


def transactional(producer: Producer, numbers: Sequence[int], offset: int = 7, **fields: Any) -> TxnOffsetCommitRequest:
    asked = [TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset) for number in numbers]
    return TxnOffsetCommitRequest(
        **{**producer.fields, "group_id": "g", "topics": [TxnOffsetCommitRequestTopic(name="t", partitions=asked)], **fields}
    )


def unstable(broker: Broker) -> set[int]:
    """Partitions of topic t with pending offsets."""
    return {partition for _, _, partition in broker.node.groups.shard_of("g").machine.offsets.pending.sorted_places()}


def with_producer(version: int, *, verified: str = "true") -> tuple[Cluster, Broker, Producer]:
    cluster = cluster_of_transactions(partitions=6, transaction_partition_verification_enable=verified)
    return cluster, coordinator(cluster, "g", GROUP), Producer(cluster, version=version)


@pytest.mark.parametrize(("version", "sent_version"), [(1, 3), (2, 5)])
@pytest.mark.parametrize("commits", [True, False])
def test_portions_of_offsets_are_of_one_transaction(version: int, sent_version: int, commits: bool) -> None:
    _cluster, broker, producer = with_producer(version)
    if version < 2:
        assert producer.add_offsets() == 0
    before = len(batches(broker))
    broker.node.context.turns.elements = 4
    answer = broker.ask(transactional(producer, [0, 1, 9, 2, 3, 4]), sent_version)
    assert codes(answer) == [0, 0, errors.UnknownTopicOrPartition.code, 0, 0, 0]
    assert batches(broker)[before:] == [2, 1, 2]
    assert unstable(broker) == {0, 1, 2, 3, 4} and offsets(broker) == {}
    assert producer.end(commit=commits) == 0
    assert offsets(broker) == ({("t", number): 7 for number in range(5)} if commits else {})


def test_a_transactional_commit_leaves_nothing_to_the_garbage_collector() -> None:
    _, broker, producer = with_producer(2)
    broker.node.context.turns.elements = 2
    assert codes(broker.ask(transactional(producer, range(4)), 5)) == [0] * 4
    request = transactional(producer, range(4))

    def again() -> None:
        broker.send(request, 5)
        broker._sent.clear()

    assert garbage_of(again) == []


def test_the_guard_of_a_transaction_is_kept_for_the_first_portion_that_has_records() -> None:
    _, broker, producer = with_producer(2)
    broker.node.context.turns.elements = 2
    unknown = errors.UnknownTopicOrPartition.code
    assert codes(broker.ask(transactional(producer, [8, 9, 0, 1]), 5)) == [unknown, unknown, 0, 0]
    assert producer.end() == 0 and offsets(broker) == {("t", 0): 7, ("t", 1): 7}


def open_transactions(broker: Broker) -> dict[int, int]:
    found: dict[int, int] = broker.node.groups.shard_of("g").leader.log.producers.open_transactions
    return found


@pytest.mark.parametrize("verified", ["true", "false"])
@pytest.mark.parametrize(("version", "error"), [(1, errors.InvalidTxnState), (2, errors.InvalidProducerEpoch)])
def test_portions_after_the_end_of_their_transaction_are_refused_and_begin_none(
    version: int, error: type[errors.KafkaError], verified: str
) -> None:
    cluster, broker, producer = with_producer(version, verified=verified)
    if version < 2:
        assert producer.add_offsets() == 0
    sent = begin(broker, transactional(producer, range(4)), 3 if version < 2 else 5, until=lambda: unstable(broker) == {0, 1})
    assert unstable(broker) == {0, 1}
    assert producer.end() == 0
    cluster.run()
    assert not unstable(broker)
    assert codes(finish(broker, sent)) == [0, 0, error.code, error.code]
    assert not open_transactions(broker) and not unstable(broker)
    assert offsets(broker) == {("t", 0): 7, ("t", 1): 7}


def test_portions_do_not_become_part_of_the_next_transaction_of_their_producer() -> None:
    _cluster, broker, producer = with_producer(1)
    assert producer.add_offsets() == 0
    sent = begin(broker, transactional(producer, range(4)), 3, until=lambda: unstable(broker) == {0, 1})
    assert producer.end() == 0
    assert producer.add_offsets() == 0
    again = broker.ask(transactional(producer, [3], offset=9), 3)
    assert codes(again) == [0] and unstable(broker) == {3}
    invalid = errors.InvalidTxnState.code
    assert codes(finish(broker, sent)) == [0, 0, invalid, invalid]
    assert unstable(broker) == {3}
    assert producer.end() == 0
    assert offsets(broker) == {("t", 0): 7, ("t", 1): 7, ("t", 3): 9}


def test_the_member_of_a_transactional_commit_is_checked_for_each_portion() -> None:
    cluster, broker, producer = with_producer(2)
    [member] = stable(cluster, 1)
    request = transactional(producer, range(4), generation_id=member.generation_id, member_id=member.member_id)
    sent = begin(broker, request, 5, until=lambda: unstable(broker) == {0, 1})
    join(broker, member=member.member_id, protocols=(("range", b"changed"),))
    cluster.pass_ms(INITIAL_DELAY_MS)
    refused = errors.IllegalGeneration.code
    assert codes(finish(broker, sent)) == [0, 0, refused, refused]
    assert producer.end() == 0 and offsets(broker) == {("t", 0): 7, ("t", 1): 7}
    assert state_of(cluster).state.value != "Ongoing"


# OffsetDelete.


def test_offsets_of_several_topics_are_deleted_in_portions_that_have_some_of_each() -> None:
    cluster = cluster_of_groups()
    cluster.topic("u", partitions=3)
    broker = coordinating(cluster)
    broker.ask(commit_of(T, ("u", range(3))), 9)
    before = len(batches(broker))
    broker.node.context.turns.elements = 6
    unknown = errors.UnknownTopicOrPartition.code
    answer = broker.ask(deletion_of(("t", [0, 1]), ("none", [0]), ("u", [2, 2, 9]), ("t", [2])), 0)
    assert (answer.error_code, codes(answer)) == (0, [0, 0, unknown, 0, 0, 0, 0])
    assert batches(broker)[before:] == [2, 1, 1]
    assert offsets(broker) == {("t", 3): 5, ("u", 0): 5, ("u", 1): 5}


def test_offsets_are_not_deleted_after_the_group_began_to_read_their_topic() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    broker.ask(commit_of(T), 9)
    sent = begin(broker, deletion_of(T), 0, turns=1)
    joined = join(broker, protocols=READS_T)
    cluster.pass_ms(INITIAL_DELAY_MS)
    sync(broker, joined.answer, given={joined.answer.member_id: b""})
    reads = errors.GroupSubscribedToTopic.code
    assert codes(finish(broker, sent)) == [0, 0, reads, reads]
    assert offsets(broker) == {("t", 2): 5, ("t", 3): 5}


def test_the_rest_of_a_deletion_is_refused_if_the_group_gets_members_that_are_no_consumers() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    broker.ask(commit_of(T), 9)
    sent = begin(broker, deletion_of(T), 0, turns=1)
    stable(cluster, 1, protocol_type="connect")
    assert codes(finish(broker, sent)) == [0, 0, errors.NonEmptyGroup.code, errors.NonEmptyGroup.code]
    assert offsets(broker) == {("t", 2): 5, ("t", 3): 5}


# DeleteGroups.


def deleted(answer: Any) -> dict[str, int]:
    return {result.group_id: result.error_code for result in answer.results}


def test_a_group_with_many_offsets_is_deleted_in_portions_and_last() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    broker.ask(commit_of(T), 9)
    groups = broker.node.groups.shard_of("g").machine
    sent = begin(broker, DeleteGroupsRequest(groups_names=["g", "none"]), 2, turns=2)
    assert "g" in groups.by_id and offsets(broker) == {("t", 2): 5, ("t", 3): 5}
    assert deleted(finish(broker, sent)) == {"g": 0, "none": errors.GroupIdNotFound.code}
    assert "g" not in groups.by_id and offsets(broker) == {}
    cluster.turning = True
    assert offsets(cluster.restart(1)) == {}


def test_a_group_with_few_offsets_is_deleted_in_one_batch() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    broker.ask(commit_of(T), 9)
    before = len(batches(broker))
    cluster.turning = False
    sent = broker.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert deleted(finish(broker, sent)) == {"g": 0}
    assert batches(broker)[before:] == [5]


def test_a_group_whose_offsets_are_committed_during_its_deletion_stays_with_those() -> None:
    broker = coordinating(cluster_of_groups())
    broker.ask(commit_of(T), 9)
    sent = begin(broker, DeleteGroupsRequest(groups_names=["g"]), 2, turns=2)
    assert commit(broker, "g", "t", 0, 8) == 0
    assert deleted(finish(broker, sent)) == {"g": errors.NonEmptyGroup.code}
    assert offsets(broker) == {("t", 0): 8}
    assert deleted(broker.ask(DeleteGroupsRequest(groups_names=["g"]), 2)) == {"g": 0}


def test_a_group_that_a_member_joins_during_its_deletion_stays_with_the_offsets_that_are_left() -> None:
    cluster = cluster_of_groups()
    broker = coordinating(cluster)
    broker.ask(commit_of(T), 9)
    sent = begin(broker, DeleteGroupsRequest(groups_names=["g"]), 2, turns=2)
    stable(cluster, 1)
    assert deleted(finish(broker, sent)) == {"g": errors.NonEmptyGroup.code}
    assert offsets(broker) == {("t", 2): 5, ("t", 3): 5}


# Deleted topics and expiry.


def wide(monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, Broker]:
    """A group with 30 offsets, of which ten are deleted in a step."""
    monkeypatch.setattr("ottla.broker.groups.groups.LOOKED_AT_ONCE", 10)
    cluster = cluster_of_groups()
    cluster.topic("wide", partitions=30)
    broker = coordinating(cluster)
    assert set(codes(broker.ask(commit_of(("wide", range(30))), 9))) == {0}
    return cluster, broker


def remaining(broker: Broker) -> int:
    return len(broker.node.groups.shard_of("g").machine.offsets.by_group.get("g", {}).get("wide", ()))


def delete_topic(cluster: Cluster, name: str) -> None:
    answer = cluster.controller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000), 6)
    assert answer.responses[0].error_code == 0


def test_the_offsets_of_a_deleted_topic_are_deleted_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, broker = wide(monkeypatch)
    delete_topic(cluster, "wide")
    left: list[int] = []
    while not left or left[-1]:
        left.append(remaining(broker))
        cluster.pass_ms(10)
    assert left == [20, 10, 0]
    assert not broker.node.groups.shard_of("g").machine._forgetting


def test_a_topic_that_is_created_again_has_no_offsets_of_the_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, broker = wide(monkeypatch)
    delete_topic(cluster, "wide")
    assert remaining(broker)
    cluster.topic("wide", partitions=30)
    assert not remaining(broker)
    assert commit(broker, "g", "wide", 29, 8) == 0
    cluster.pass_ms(1_000)
    assert offsets(broker) == {("wide", 29): 8}


def test_offsets_of_one_topic_expire_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, broker = wide(monkeypatch)
    shard = broker.node.groups.shard_of("g")
    cluster.jump_ms(8 * DAY_MS)
    left = [remaining(broker)]
    while left[-1]:
        cluster.pass_ms(10)
        left.append(remaining(broker))
    assert left == [20, 10, 0]
    assert shard.machine.offsets.bytes == 0
