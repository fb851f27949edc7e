"""Reassignment: new replicas are in sync before old ones are removed, whatever fails meanwhile."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from cluster import Cluster, Sent, batch, fetch, produce, produce_request, values
from groups import cluster_of_groups, commit, committed, coordinating

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from ottla.base.ports import NodeState, Op
from ottla.base.units import SECOND_MS
from ottla.broker import events
from ottla.broker.controller.election import OptionsOf
from ottla.broker.controller.reassignment import Move, begun, cancelled, completed
from ottla.broker.metadata.image import Image, Registration, Topic
from ottla.broker.replica.isr_state import IsrState
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.create_topics import CreatableTopicConfig as Config
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

T0 = TopicPartition("t", 0)
WISHES = layout.REASSIGN_PARTITIONS


def in_sync(*isr: int) -> PartitionState:
    """A state led by 1."""
    return PartitionState(leader=1, leader_epoch=LeaderEpoch(0), isr=isr, controller_epoch=1)


def a_cluster(*replicas: Sequence[int], brokers: int = 6, configs: Mapping[str, str] | None = None, name: str = "t") -> Cluster:
    """A cluster with a topic whose partitions have these replicas, in sync and with three records each."""
    cluster = Cluster(brokers=brokers)
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=list(ids)) for number, ids in enumerate(replicas)]
    requested = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=assignments,
        configs=[Config(name=key, value=value) for key, value in (configs or {}).items()],
    )
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    cluster.pass_ms(1500)
    for number in range(len(replicas)):
        assert produce(cluster.leading(name, number), batch(b"a", b"b", b"c"), topic=name, partition=number).error_code == 0
    cluster.pass_ms(1000)
    return cluster


def requested(replicas: Sequence[int] | None, *, partition: int = 0, topic: str = "t", **fields: Any) -> AlterPartitionReassignmentsRequest:
    requested_moves = ReassignablePartition(partition_index=partition, replicas=None if replicas is None else list(replicas))
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[requested_moves])], **fields)


def move(cluster: Cluster, replicas: Sequence[int] | None, *, version: int = 1, **fields: Any) -> int:
    """Wish for replicas of a partition, or for its former ones; the error code of the answer."""
    answer = next(iter(cluster.brokers.values())).ask(requested(replicas, **fields), version)
    assert answer.error_code == 0
    return int(answer.responses[0].partitions[0].error_code)


def moving(cluster: Cluster) -> list[tuple[int, list[int], list[int], list[int]]]:
    """The topic's reassignments, as clients see them."""
    answer = cluster.controller.ask(ListPartitionReassignmentsRequest(topics=None), 0)
    return [
        (one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


def state_of(cluster: Cluster, partition: int = 0) -> PartitionState:
    state = cluster.controller.node.context.image.state(TopicPartition("t", partition))
    assert state is not None
    return state


def holders(cluster: Cluster, partition: TopicPartition = T0) -> list[int]:
    """Brokers that have a log of the partition on disk."""
    return [number for number, broker in cluster.brokers.items() if any(partition == held for _, held in broker.node.partitions.hosted())]


def replicas_of(cluster: Cluster, partition: int = 0) -> list[int]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    return list(cluster.controller.ask(request, 12).topics[0].partitions[partition].replica_nodes)


def stop_copying(cluster: Cluster, *numbers: int) -> None:
    """These brokers reach no other one, nor are reached; the store they do."""
    for number in numbers:
        cluster.cut_off(number)


# A move.


def test_a_partition_moves_with_all_its_records_and_leaves_no_log_behind() -> None:
    cluster = a_cluster((1, 2, 3))
    assert move(cluster, (4, 5, 6)) == 0
    cluster.pass_ms(3 * SECOND_MS)
    assert moving(cluster) == []
    assert replicas_of(cluster) == [4, 5, 6]
    assert (state_of(cluster).leader, sorted(state_of(cluster).isr)) == (4, [4, 5, 6])
    assert holders(cluster) == [4, 5, 6]
    assert values(fetch(cluster[4]).records) == [b"a", b"b", b"c"]
    assert produce(cluster[4], batch(b"d")).base_offset == 3


def test_replicas_are_added_before_any_is_removed() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    assert move(cluster, (3, 4, 5)) == 0
    cluster.pass_ms(3 * SECOND_MS)
    assert moving(cluster) == [(0, [3, 4, 5, 1, 2], [4, 5], [1, 2])]
    assert replicas_of(cluster) == [3, 4, 5, 1, 2]
    assert (state_of(cluster).leader, sorted(state_of(cluster).isr)) == (1, [1, 2, 3, 4])
    assert holders(cluster) == [1, 2, 3, 4, 5]
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), holders(cluster)) == ([], [3, 4, 5])
    assert state_of(cluster).leader == 3


def test_reassignment_is_stored_in_the_topic_node_in_kafkas_format() -> None:
    cluster = a_cluster((1, 2), (2, 3))
    stop_copying(cluster, 4)
    move(cluster, (4, 2))
    node = json.loads(cluster.store.tree.nodes["/brokers/topics/t"].data)
    assert node["version"] == 3
    assert node["partitions"] == {"0": [4, 2, 1], "1": [2, 3]}
    assert (node["adding_replicas"], node["removing_replicas"]) == ({"0": [4]}, {"0": [1]})
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    node = json.loads(cluster.store.tree.nodes["/brokers/topics/t"].data)
    assert node["partitions"] == {"0": [4, 2], "1": [2, 3]}
    assert (node["adding_replicas"], node["removing_replicas"]) == ({}, {})


def test_the_leader_stays_where_the_target_has_it() -> None:
    cluster = a_cluster((1, 2, 3))
    epoch = state_of(cluster).leader_epoch
    move(cluster, (4, 1, 5))
    cluster.pass_ms(SECOND_MS)
    assert (state_of(cluster).leader, replicas_of(cluster)) == (1, [4, 1, 5])
    assert state_of(cluster).leader_epoch == epoch + 2, "once when it began, once when it was done"


def test_members_of_the_isr_that_are_being_removed_count_until_the_move_is_done() -> None:
    cluster = a_cluster((1, 2), configs={"min.insync.replicas": "2"})
    stop_copying(cluster, 4)
    move(cluster, (4, 5))
    cluster.pass_ms(3 * SECOND_MS)
    cluster[2].halted = "stopped in the middle"
    sent = cluster[1].send(produce_request(batch(b"d"), timeout_ms=60_000), 12)
    cluster.pass_ms(5 * SECOND_MS)
    assert sent.waits, "broker 2 does not have it"


def test_replicas_being_added_do_not_raise_the_effective_min_insync_replicas() -> None:
    state = IsrState(1, (1, 4, 5), in_sync(1), 0, 0, adding=(4, 5))
    assert state.committed(7, min_insync=2) == 7, "one replica is all that the partition is to have for now"
    state.follow_replicas((1, 4, 5), (), 0)
    assert state.committed(7, min_insync=2) == -1


def test_several_partitions_of_a_topic_move_together() -> None:
    cluster = a_cluster((1, 2), (2, 3), (3, 1))
    requested_moves = [ReassignablePartition(partition_index=number, replicas=[4 + number, 4 + (number + 1) % 3]) for number in range(3)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=requested_moves)])
    answer = cluster[2].ask(request, 0)
    assert [one.error_code for one in answer.responses[0].partitions] == [0, 0, 0]
    cluster.pass_ms(3 * SECOND_MS)
    assert [replicas_of(cluster, number) for number in range(3)] == [[4, 5], [5, 6], [6, 4]]
    assert [holders(cluster, TopicPartition("t", number)) for number in range(3)] == [[4, 5], [5, 6], [4, 6]]


def test_a_new_order_of_the_same_replicas_takes_effect_at_once() -> None:
    cluster = a_cluster((1, 2, 3))
    assert move(cluster, (3, 2, 1)) == 0
    assert (moving(cluster), replicas_of(cluster), state_of(cluster).leader) == ([], [3, 2, 1], 1)
    assert holders(cluster) == [1, 2, 3]


def test_reassignment_to_the_current_replicas_changes_nothing() -> None:
    cluster = a_cluster((1, 2, 3))
    before = cluster.store.tree.nodes["/brokers/topics/t"].version
    assert move(cluster, (1, 2, 3)) == 0
    assert cluster.store.tree.nodes["/brokers/topics/t"].version == before


def test_producer_loses_no_records_during_reassignments() -> None:
    cluster = a_cluster((1, 2, 3), configs={"min.insync.replicas": "2"})
    acknowledged = [b"a", b"b", b"c"]
    sent: list[tuple[bytes, Sent]] = []
    for step, target in enumerate([(4, 5, 6), (2, 4, 1), (3, 6, 5)]):
        assert move(cluster, target) == 0
        for number in range(10):
            value = b"%d-%d" % (step, number)
            sent.append((value, cluster.leading("t").send(produce_request(batch(value), timeout_ms=30_000), 12)))
            cluster.pass_ms(97)
        cluster.pass_ms(4 * SECOND_MS)
        assert moving(cluster) == []
    for value, one in sent:
        if one.answer is not None and one.answer.responses[0].partition_responses[0].error_code == 0:
            acknowledged.append(value)
    assert len(acknowledged) > 20
    found = values(fetch(cluster.leading("t"), max_wait_ms=0).records)
    assert [value for value in found if value in acknowledged] == acknowledged


# More and fewer replicas.


def test_a_partition_may_get_more_replicas_and_fewer() -> None:
    cluster = a_cluster((1,))
    assert move(cluster, (1, 2, 3)) == 0
    cluster.pass_ms(3 * SECOND_MS)
    assert (replicas_of(cluster), sorted(state_of(cluster).isr), holders(cluster)) == ([1, 2, 3], [1, 2, 3], [1, 2, 3])
    assert move(cluster, (3,)) == 0
    cluster.pass_ms(SECOND_MS)
    assert (replicas_of(cluster), state_of(cluster).leader, holders(cluster)) == ([3], 3, [3])
    assert values(fetch(cluster[3]).records) == [b"a", b"b", b"c"]


def test_a_request_may_insist_on_as_many_replicas_as_there_are() -> None:
    cluster = a_cluster((1, 2))
    assert move(cluster, (4,), allow_replication_factor_change=False) == errors.InvalidReplicationFactor.code
    assert move(cluster, (4, 5), allow_replication_factor_change=False) == 0
    assert move(cluster, (4,), version=0) == 0


def test_a_smaller_set_waits_for_its_members_to_be_in_sync() -> None:
    cluster = a_cluster((1, 2, 3))
    gone = cluster.kill(2)
    assert move(cluster, (1, 2)) == 0
    cluster.pass_ms(SECOND_MS)
    assert moving(cluster) == [(0, [1, 2, 3], [], [3])]
    cluster.start(2, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster), holders(cluster)) == ([], [1, 2], [1, 2])


# Going back, and elsewhere.


def test_a_cancelled_reassignment_is_reverted_and_its_copies_are_deleted() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    move(cluster, (4, 5))
    cluster.pass_ms(3 * SECOND_MS)
    assert holders(cluster) == [1, 2, 3, 4, 5]
    assert move(cluster, None) == 0
    cluster.pass_ms(SECOND_MS)
    assert (moving(cluster), sorted(replicas_of(cluster)), holders(cluster)) == ([], [1, 2, 3], [1, 2, 3])
    assert (state_of(cluster).leader, sorted(state_of(cluster).isr)) == (1, [1, 2, 3])
    assert move(cluster, None) == errors.NoReassignmentInProgress.code


def test_a_move_is_not_cancelled_while_only_brokers_that_it_adds_have_all_records() -> None:
    cluster = a_cluster((1, 2))
    stop_copying(cluster, 5)
    move(cluster, (4, 5))
    cluster.pass_ms(3 * SECOND_MS)
    gone = cluster.kill(2)
    cluster.kill(1)
    assert (state_of(cluster).leader, state_of(cluster).isr) == (4, (4,))
    assert produce(cluster[4], batch(b"d")).error_code == 0
    assert move(cluster, None) == errors.InvalidReplicaAssignment.code
    cluster.start(2, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3 * SECOND_MS)
    assert move(cluster, None) == 0
    cluster.pass_ms(SECOND_MS)
    assert (moving(cluster), sorted(replicas_of(cluster)), state_of(cluster).leader) == ([], [1, 2], 2)
    assert values(fetch(cluster[2]).records) == [b"a", b"b", b"c", b"d"]


def test_second_reassignment_starts_from_the_replicas_before_the_first() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5, 6)
    move(cluster, (4, 5, 3))
    cluster.pass_ms(3 * SECOND_MS)
    assert move(cluster, (6, 2, 3)) == 0
    cluster.pass_ms(SECOND_MS)
    assert moving(cluster) == [(0, [6, 2, 3, 1], [6], [1])]
    assert holders(cluster) == [1, 2, 3, 6]
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster), holders(cluster)) == ([], [6, 2, 3], [2, 3, 6])


def test_reassignment_to_the_former_replicas_cancels_a_reassignment() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    move(cluster, (4, 5))
    cluster.pass_ms(3 * SECOND_MS)
    assert move(cluster, (1, 2, 3)) == 0
    cluster.pass_ms(SECOND_MS)
    assert (moving(cluster), replicas_of(cluster), holders(cluster)) == ([], [1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize(
    ("replicas", "fields", "error"),
    [
        ((), {}, errors.InvalidReplicaAssignment),
        ((4, 4), {}, errors.InvalidReplicaAssignment),
        ((1, 9), {}, errors.InvalidReplicaAssignment),
        ((1, -1), {}, errors.InvalidReplicaAssignment),
        ((1, 6), {}, errors.InvalidReplicaAssignment),
        ((4, 5), {"topic": "no"}, errors.UnknownTopicOrPartition),
        ((4, 5), {"partition": 7}, errors.UnknownTopicOrPartition),
        (None, {}, errors.NoReassignmentInProgress),
    ],
)
def test_an_impossible_reassignment_is_refused(replicas: Sequence[int] | None, fields: dict[str, Any], error: type[KafkaError]) -> None:
    cluster = a_cluster((1, 2))
    cluster.kill(6)
    assert move(cluster, replicas, **fields) == error.code
    assert moving(cluster) == []


def test_partition_repeated_in_a_request_is_refused() -> None:
    cluster = a_cluster((1, 2))
    requested_moves = [ReassignablePartition(partition_index=0, replicas=[4, 5])] * 2
    answer = cluster[1].ask(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=requested_moves)]), 1)
    assert [one.error_code for one in answer.responses[0].partitions] == [errors.InvalidRequest.code] * 2


def test_reassignments_are_listed_for_the_requested_partitions() -> None:
    cluster = a_cluster((1, 2), (1, 2))
    stop_copying(cluster, 4)
    move(cluster, (4, 2), partition=1)
    asked = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1, 9]), ListPartitionReassignmentsTopics(name="no")]
    (topic,) = cluster[2].ask(ListPartitionReassignmentsRequest(topics=asked), 0).topics
    assert (topic.name, [one.partition_index for one in topic.partitions]) == ("t", [1])


# What else happens meanwhile.


def test_a_new_controller_continues_a_reassignment() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    controller = cluster.controller.broker_id
    move(cluster, (2, 4, 5))
    cluster.pass_ms(2 * SECOND_MS)
    gone = cluster.kill(controller)
    assert cluster.controller.broker_id != controller
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [2, 4, 5])
    cluster.start(controller, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(SECOND_MS)
    assert holders(cluster) == [2, 4, 5], "what came back late lets go of its log, too"


def test_a_new_controller_completes_a_finished_reassignment() -> None:
    cluster = a_cluster((2, 3))
    dying = cluster.controller
    dying.node.controller._moves._go_on = lambda: None  # type: ignore[method-assign]
    move(cluster, (4, 3))
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), sorted(state_of(cluster).isr)) == ([(0, [4, 3, 2], [4], [2])], [2, 3, 4])
    cluster.kill(dying.broker_id)
    assert (moving(cluster), replicas_of(cluster)) == ([], [4, 3])


def test_deposed_controller_that_does_not_know_it_moves_no_partition() -> None:
    """Source: KAFKA-6082."""
    cluster = a_cluster((2, 3))
    zombie = cluster.controller
    cluster.store_delivers = False
    raised = Op("set", "/controller_epoch", b"2")
    taken = Op("set", "/controller", layout.encode_controller(3, 0))
    cluster.store.session().submit((taken, raised), lambda result: None)
    sent = zombie.send(requested((4, 5)), 1)
    cluster.store_delivers = True
    cluster.run()
    assert sent.answer.responses[0].partitions[0].error_code == errors.NotController.code
    assert json.loads(cluster.store.tree.nodes["/brokers/topics/t"].data)["partitions"] == {"0": [2, 3]}


def test_a_store_request_without_an_answer_is_retried() -> None:
    cluster = a_cluster((1, 2))
    stop_copying(cluster, 4)
    move(cluster, (4, 2))
    cluster.pass_ms(2 * SECOND_MS)
    failed: list[Sequence[Op]] = []
    cluster.cut.clear()
    held = cluster.controller.node.context.submit

    def submit(ops: Sequence[Op], done: Any) -> None:
        if not failed and any(op.kind == "set" and op.path == "/brokers/topics/t" for op in ops):
            failed.append(ops)
            cluster.controller.session.fail_next(applied=False)
        held(ops, done)

    cluster.controller.node.context.submit = submit  # type: ignore[method-assign]
    cluster.pass_ms(5 * SECOND_MS)
    assert failed
    assert (moving(cluster), replicas_of(cluster)) == ([], [4, 2])


def test_a_broker_that_dies_while_it_is_added_holds_the_move_up_until_it_is_back() -> None:
    cluster = a_cluster((1, 2))
    stop_copying(cluster, 4)
    move(cluster, (4, 2))
    gone = cluster.kill(4)
    cluster.cut.clear()
    cluster.pass_ms(SECOND_MS)
    assert moving(cluster) == [(0, [4, 2, 1], [4], [1])]
    assert produce(cluster[1], batch(b"d")).error_code == 0
    cluster.start(4, gone.texts, [disk.restart() for disk in gone.disks.values()])
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster), holders(cluster)) == ([], [4, 2], [2, 4])


def test_a_broker_that_starts_while_it_is_added_misses_nothing() -> None:
    cluster = a_cluster((1, 2))
    gone = cluster.kill(4)
    broker = cluster.start(4, gone.texts, [disk.restart() for disk in gone.disks.values()])
    stop_copying(cluster, 4)
    broker.halted = "it does nothing of what it should"
    move(cluster, (4, 2))
    gone = cluster.kill(4)
    assert cluster.start(4, gone.texts, [disk.restart() for disk in gone.disks.values()]).node.partitions.anew == {}
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert replicas_of(cluster) == [4, 2]


def test_groups_go_with_the_partition_that_keeps_them() -> None:
    cluster = cluster_of_groups(3, offsets_topic_replication_factor="1")
    first = coordinating(cluster)
    assert commit(first, "g", "t", 0, 7) == 0
    target = next(number for number in cluster.brokers if number != first.broker_id)
    kept = next(partition for partition in first.node.partitions.leaders if partition.topic == "__consumer_offsets")
    for number in range(2):
        move(cluster, (target,), topic=kept.topic, partition=number)
    cluster.pass_ms(3 * SECOND_MS)
    assert coordinating(cluster).broker_id == target
    assert committed(coordinating(cluster)) == {("t", 0): (7, -1, "")}
    assert kept not in first.node.partitions.followers and target in holders(cluster, kept)


def test_a_reassignment_continues_after_its_leader_failed_over() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    move(cluster, (4, 5, 6))
    cluster.pass_ms(3 * SECOND_MS)
    cluster.kill(1)
    assert state_of(cluster).leader in (2, 3, 4, 6)
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [4, 5, 6])
    assert values(fetch(cluster[state_of(cluster).leader]).records) == [b"a", b"b", b"c"]


def test_an_unclean_election_prefers_a_former_replica_to_one_being_added() -> None:
    cluster = a_cluster((1, 2), configs={"unclean.leader.election.enable": "true"})
    stop_copying(cluster, 2, 4)
    assert produce(cluster[1], batch(b"d"), acks=1).error_code == 0
    cluster.pass_ms(40 * SECOND_MS)
    assert state_of(cluster).isr == (1,)
    move(cluster, (4, 2))
    cluster.kill(1)
    assert state_of(cluster).leader == 2
    assert values(fetch(cluster[2]).records) == [b"a", b"b", b"c"]


def test_deleting_a_topic_ends_its_reassignments() -> None:
    cluster = a_cluster((1, 2, 3))
    stop_copying(cluster, 5)
    move(cluster, (4, 5))
    cluster.pass_ms(SECOND_MS)
    answer = cluster.controller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    assert answer.responses[0].error_code == 0
    cluster.cut.clear()
    cluster.pass_ms(2 * SECOND_MS)
    assert (moving(cluster), holders(cluster)) == ([], [])


def test_a_topic_may_grow_while_a_partition_moves() -> None:
    cluster = a_cluster((1, 2))
    stop_copying(cluster, 5)
    move(cluster, (4, 5))
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)], timeout_ms=1000)
    assert cluster.controller.ask(request, 3).results[0].error_code == 0
    assert moving(cluster) == [(0, [4, 5, 1, 2], [4, 5], [1, 2])]
    assert len(replicas_of(cluster, 1)) == 2, "as many as the first had before"
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), replicas_of(cluster)) == ([], [4, 5])


# A log is deleted only when the present store assigns it to no broker.


def test_a_broker_that_is_not_registered_deletes_nothing() -> None:
    """Its image may be older than the assignment under which it created its log. Source: KIP-570."""
    cluster = a_cluster((1, 2))
    broker = cluster[2]
    old = layout.TopicAssignment(topic_id=broker.node.context.image.topics["t"].topic_id, replicas={0: (1, 3)})
    broker.node.context.epoch = None
    broker.handle(events.StoreChanged(state=NodeState("/brokers/topics/t", layout.encode_topic(old), 0)))
    assert 2 in holders(cluster)


def test_a_log_of_another_topic_of_the_same_name_is_only_set_aside() -> None:
    cluster = a_cluster((1, 2))
    other = layout.TopicAssignment(topic_id=TopicId(bytes([7]) * 16), replicas={0: (1, 3)})
    cluster[2].handle(events.StoreChanged(state=NodeState("/brokers/topics/t", layout.encode_topic(other), 9)))
    cluster.run()
    assert 2 not in holders(cluster)
    (aside,) = [name for name in cluster[2].disks["disk0"].listdir() if name.endswith("-stray")]
    assert aside.startswith("t-0.") and cluster[2].removed == []


def test_a_broker_that_gets_a_partition_again_starts_with_an_empty_log() -> None:
    cluster = a_cluster((1, 2))
    for target in ((1, 3), (1, 2)):
        move(cluster, target)
        cluster.pass_ms(3 * SECOND_MS)
    assert (replicas_of(cluster), holders(cluster), sorted(state_of(cluster).isr)) == ([1, 2], [1, 2], [1, 2])
    assert cluster[2].node.partitions.followers[T0].log.end_offset == 3


def test_a_state_that_names_a_broker_which_the_assignment_no_longer_has_makes_it_no_leader() -> None:
    """The two nodes may arrive in either order; a leader without its log would serve an empty one."""
    cluster = a_cluster((1, 2))
    leader = cluster[1]
    late = leader.node.context.image.topics["t"].states[0]
    new = layout.TopicAssignment(topic_id=leader.node.context.image.topics["t"].topic_id, replicas={0: (2, 3)})
    leader.handle(events.StoreChanged(state=NodeState("/brokers/topics/t", layout.encode_topic(new), 9)))
    path = layout.partition_state("t", 0)
    leader.handle(events.StoreChanged(state=NodeState(path, layout.encode_partition_state(late), 99)))
    assert T0 not in leader.node.partitions.leaders and 1 not in holders(cluster)


def test_a_removed_replica_counts_until_the_partition_state_is_without_it() -> None:
    state = IsrState(1, (1, 2), in_sync(1, 2), 0, 0)
    state.follow_replicas((1, 3), (), 0)
    assert state.committed(7, min_insync=1) == -1, "2 may lead, for all that is known here"
    state.follow(in_sync(1), 1)
    assert state.committed(7, min_insync=1) == 7


def test_no_replica_joins_the_isr_under_an_outdated_assignment() -> None:
    """The controller and the leader have the state, and not yet the assignment, which is without the joining replica."""
    cluster = a_cluster((1, 2, 3))
    cluster.kill(3)
    leader, controller_id = cluster[1], cluster.controller
    topic = controller_id.node.context.image.topics["t"]
    cluster.store_delivers = False
    gone = layout.TopicAssignment(topic_id=topic.topic_id, replicas={0: (1, 2)})
    cluster.store.session().submit((Op("set", layout.topic("t"), layout.encode_topic(gone), version=topic.version),), lambda result: None)
    joins = Registration(BrokerId(3), "", 0, None, 77)
    for broker in (leader, controller_id):
        broker.node.context.image.brokers[BrokerId(3)] = joins
    registered = layout.BrokerRegistration(host="h", port=1, endpoints=(), timestamp_ms=0)
    cluster.store.session().submit((Op("create", layout.broker(3), layout.encode_broker(registered)),), lambda result: None)
    leader.leader("t").fetched(3, offset=leader.leader("t").log.end_offset, broker_epoch=77, now_ms=cluster.now_ms)
    leader.node.isr_changes.look(leader.leader("t"))
    leader._perform(leader.node.context.effects)
    cluster.run()
    node = cluster.store.tree.nodes[layout.partition_state("t", 0)]
    assert layout.decode_partition_state(node.data).isr == (1, 2)
    assert leader.leader("t").isr_state.maximal == {1, 2, 3}, "it was asked for"


def test_a_smaller_assignment_lowers_the_effective_min_insync_replicas_at_once() -> None:
    cluster = a_cluster((1, 2), configs={"min.insync.replicas": "2"})
    leader = cluster[1]
    topic, state = leader.node.context.image.topics["t"], state_of(cluster)
    cluster.cut_off(1)
    assert produce(leader, batch(b"d"), acks=1).error_code == 0
    alone = msgspec.structs.replace(state, isr=(1,), isr_epochs=state.isr_epochs[:1])
    leader.handle(events.StoreChanged(state=NodeState(layout.partition_state("t", 0), layout.encode_partition_state(alone), 99)))
    assert leader.leader("t").high_watermark == 3, "of two replicas both are needed"
    fewer = layout.TopicAssignment(topic_id=topic.topic_id, replicas={0: (1,)})
    leader.handle(events.StoreChanged(state=NodeState(layout.topic("t"), layout.encode_topic(fewer), 99)))
    assert leader.leader("t").high_watermark == 4


def test_a_member_of_the_isr_counts_although_the_assignment_arrives_later() -> None:
    assert IsrState(1, (1,), in_sync(1, 3), 4, 0).committed(7, min_insync=1) == -1


# Wishes in the store.


def requested_moves(cluster: Cluster, data: bytes) -> None:
    cluster.store.session().submit((Op("create", WISHES, data),), lambda result: None)
    cluster.run()


def test_older_tools_request_reassignments_through_the_store() -> None:
    cluster = a_cluster((1, 2), (1, 2))
    stop_copying(cluster, 6)
    requested_moves(cluster, layout.encode_reassignment({T0: (3, 4), TopicPartition("t", 1): (6, 2), TopicPartition("no", 0): (1,)}))
    cluster.pass_ms(3 * SECOND_MS)
    assert layout.decode_reassignment(cluster.store.tree.nodes[WISHES].data) == {TopicPartition("t", 1): (6, 2)}, "the other is done"
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert WISHES not in cluster.store.tree.nodes
    assert [replicas_of(cluster, 0), replicas_of(cluster, 1)] == [[3, 4], [6, 2]]
    assert any("no-0" in warning for broker in cluster.brokers.values() for warning in broker.warnings)


def test_thousands_of_partitions_move_in_a_few_rounds_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.controller.reassignment_driver.MOVES_AT_ONCE", 3)
    monkeypatch.setattr("ottla.broker.apis.k45_alter_partition_reassignments.MOVES_AT_ONCE", 3)
    cluster = a_cluster(*[(1,)] * 10)
    stop_copying(cluster, 2)
    targets = {TopicPartition("t", number): (2,) for number in range(10)}
    requests = [ReassignablePartition(partition_index=number, replicas=[2]) for number in range(8)]
    answer = cluster[3].ask(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=requests)]), 1)
    assert [one.error_code for one in answer.responses[0].partitions] == [0] * 8
    requested_moves(cluster, layout.encode_reassignment(targets))
    assert len(moving(cluster)) == 10
    version = cluster.store.tree.nodes["/brokers/topics/t"].version
    cluster.cut.clear()
    cluster.pass_ms(3 * SECOND_MS)
    assert (moving(cluster), [replicas_of(cluster, number) for number in range(10)]) == ([], [[2]] * 10)
    assert cluster.store.tree.nodes["/brokers/topics/t"].version - version <= 10
    assert WISHES not in cluster.store.tree.nodes


def test_reassignment_in_the_store_survives_the_controller() -> None:
    cluster = a_cluster((3, 2))
    stop_copying(cluster, 6)
    requested_moves(cluster, layout.encode_reassignment({T0: (6, 2)}))
    cluster.kill(cluster.controller.broker_id)
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert (replicas_of(cluster), WISHES in cluster.store.tree.nodes) == ([6, 2], False)


def test_invalid_reassignment_in_the_store_is_removed_with_a_warning() -> None:
    for data in (b"{", b"[]", b'{"version":1,"partitions":[]}', layout.encode_reassignment({T0: (9,)})):
        cluster = a_cluster((1, 2))
        requested_moves(cluster, data)
        assert WISHES not in cluster.store.tree.nodes
        assert any(WISHES in warning for warning in cluster.controller.warnings)
        assert replicas_of(cluster) == [1, 2]


def test_reassignment_by_request_overrides_one_in_the_store() -> None:
    cluster = a_cluster((1, 2))
    stop_copying(cluster, 6)
    requested_moves(cluster, layout.encode_reassignment({T0: (6, 2)}))
    assert moving(cluster) == [(0, [6, 2, 1], [6], [1])]
    assert move(cluster, None) == 0
    cluster.pass_ms(SECOND_MS)
    assert (moving(cluster), WISHES in cluster.store.tree.nodes) == ([], False)


# The decisions by themselves.


def an_image(
    replicas: Sequence[int],
    isr: Sequence[int],
    *,
    alive: Sequence[int] = (1, 2, 3, 4, 5, 6),
    leader: int | None = None,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> tuple[Image, Topic]:
    image = Image()
    image.brokers = {BrokerId(number): Registration(BrokerId(number), "", 0, None, 100 + number) for number in alive}
    topic = Topic("t", TopicId(bytes([1]) * 16), {0: tuple(replicas)}, version=3)
    if adding:
        topic.adding[0] = tuple(adding)
    if removing:
        topic.removing[0] = tuple(removing)
    topic.states[0] = PartitionState(
        leader=isr[0] if leader is None else leader,
        leader_epoch=LeaderEpoch(5),
        isr=tuple(isr),
        isr_epochs=tuple(100 + number for number in isr),
        controller_epoch=1,
    )
    topic.versions[0] = 8
    return image, topic


def shown(found: Move | None) -> Any:
    if found is None:
        return None
    return found.replicas, found.adding, found.removing, found.state.leader, found.state.isr, found.state.leader_epoch


@pytest.mark.parametrize(
    ("before", "target", "after"),
    [
        # present replicas, ISR, adding, removing -> replicas, adding, removing, leader, ISR, leader epoch
        (((1, 2), (1, 2), (), ()), (3, 4), ((3, 4, 1, 2), (3, 4), (1, 2), 1, (1, 2), 6)),
        (((1, 2), (1, 2), (), ()), (2, 3), ((2, 3, 1), (3,), (1,), 1, (1, 2), 6)),
        (((1, 2), (1, 2), (), ()), (1, 2), None),
        (((1, 2, 3), (1, 2, 3), (), ()), (2,), ((2,), (), (), 2, (2,), 6)),
        (((1, 2, 3), (1, 3), (), ()), (2,), ((2, 1, 3), (), (1, 3), 1, (1, 3), 6)),
        # Over a running reassignment, with the same target or another.
        (((3, 4, 1, 2), (1, 2), (3, 4), (1, 2)), (3, 4), None),
        (((3, 4, 1, 2), (1, 2, 3), (3, 4), (1, 2)), (5, 4), ((5, 4, 1, 2), (5, 4), (1, 2), 1, (1, 2), 6)),
        (((3, 4, 1, 2), (3, 1), (3, 4), (1, 2)), (5, 6), ((5, 6, 1, 2), (5, 6), (1, 2), 1, (1,), 6)),
        # The one that leads is all that is left: it stays until others have what it has.
        (((3, 4, 1, 2), (3,), (3, 4), (1, 2)), (5, 6), ((5, 6, 1, 2, 3), (5, 6), (1, 2, 3), 3, (3,), 6)),
        # The leader that is to go is followed by the first that can lead.
        (((1, 2, 3), (1, 2, 3), (), ()), (3, 2), ((3, 2), (), (), 3, (2, 3), 6)),
    ],
)
def test_beginning(before: Any, target: Sequence[int], after: Any) -> None:
    replicas, isr, adding, removing = before
    image, topic = an_image(replicas, isr, adding=adding, removing=removing)
    assert shown(begun(image, topic, 0, target)) == after


def test_a_move_is_not_done_by_a_member_of_the_isr_that_was_away_since() -> None:
    image, topic = an_image((3, 1), (1, 3), adding=(3,), removing=(1,))
    image.brokers[BrokerId(3)].epoch = 999
    assert completed(image, topic, 0) is None
    image.brokers[BrokerId(3)].epoch = 103
    assert shown(completed(image, topic, 0)) == ((3,), (), (), 3, (3,), 6)


def test_a_move_is_not_done_by_a_replica_that_lacks_records() -> None:
    image, topic = an_image((3, 1), (1, 3), adding=(3,), removing=(1,))
    image.brokers[BrokerId(3)].impaired = frozenset({T0})
    assert completed(image, topic, 0) is None


def test_a_broker_that_is_about_to_stop_leads_only_where_no_other_can() -> None:
    image, topic = an_image((3, 4, 1), (1, 3, 4), adding=(3, 4), removing=(1,))
    image.brokers[BrokerId(3)].leaving = True
    assert shown(completed(image, topic, 0)) == ((3, 4), (), (), 4, (3, 4), 6)
    image.brokers[BrokerId(4)].leaving = True
    assert shown(completed(image, topic, 0)) == ((3, 4), (), (), 3, (3, 4), 6)


def with_unclean(allowed: bool) -> OptionsOf:
    """Settings of topics whose ISR needs two members to commit anything."""
    texts = {"min.insync.replicas": "2", "unclean.leader.election.enable": str(allowed).lower()}
    return lambda topic: TopicOptions.of(texts)


def test_an_eligible_replica_stays_eligible_unless_it_is_removed() -> None:
    image, topic = an_image((4, 1, 2), (1,), adding=(4,), removing=(1,))
    state = topic.states[0]
    topic.states[0] = msgspec.structs.replace(state, elr=(2, 4), elr_epochs=(102, 104), last_known_elr=(4,))
    back = cancelled(image, topic, 0, options=with_unclean(False)).state
    assert (back.isr, back.elr, back.elr_epochs, back.last_known_elr) == ((1,), (2,), (102,), ())


def test_going_back_an_eligible_replica_leads_that_has_what_was_committed() -> None:
    """Since it left the ISR, nothing was."""
    image, topic = an_image((3, 1, 2), (3,), adding=(3,), removing=(1, 2))
    topic.states[0] = msgspec.structs.replace(topic.states[0], elr=(2, 1), elr_epochs=(102, 77))
    image.brokers[BrokerId(1)].offline = frozenset({T0})
    move = cancelled(image, topic, 0, options=with_unclean(False))
    assert shown(move) == ((1, 2), (), (), 2, (2,), 6)
    assert not move.state.recovering and move.state.elr == (1,)
    del image.brokers[BrokerId(2)]
    with pytest.raises(errors.InvalidReplicaAssignment):
        cancelled(image, topic, 0, options=with_unclean(False))


def test_going_back_to_brokers_that_lack_records_needs_unclean_elections() -> None:
    image, topic = an_image((3, 1, 2), (3,), adding=(3,), removing=(1, 2), alive=(2, 3))
    with pytest.raises(errors.InvalidReplicaAssignment):
        cancelled(image, topic, 0, options=with_unclean(False))
    back = cancelled(image, topic, 0, options=with_unclean(True))
    assert shown(back) == ((1, 2), (), (), 2, (2,), 6)
    assert back.state.recovering


def test_an_unclean_cancellation_prefers_a_complete_online_replica() -> None:
    image, topic = an_image((5, 1, 2, 3), (5,), adding=(5,), removing=(1, 2, 3), alive=(1, 2, 3, 5))
    image.brokers[BrokerId(1)].offline = frozenset({T0})
    image.brokers[BrokerId(2)].impaired = frozenset({T0})
    assert shown(cancelled(image, topic, 0, options=with_unclean(True))) == ((1, 2, 3), (), (), 3, (3,), 6)


def test_an_unclean_cancellation_lets_the_one_replica_that_lacks_records_lead() -> None:
    image, topic = an_image((3, 1), (3,), adding=(3,), removing=(1,), alive=(1, 3))
    image.brokers[BrokerId(1)].impaired = frozenset({T0})
    state = cancelled(image, topic, 0, options=with_unclean(True)).state
    assert (state.leader, state.recovering) == (1, True)


def test_a_leaderless_partition_may_be_moved_and_stays_without_a_leader() -> None:
    image, topic = an_image((1, 2), (1,), leader=-1, alive=(2, 3, 4))
    assert shown(begun(image, topic, 0, (3, 4))) == ((3, 4, 1, 2), (3, 4), (1, 2), -1, (1,), 6)
