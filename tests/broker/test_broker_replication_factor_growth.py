"""__consumer_offsets starts with a replica on each live broker, and gets the others when more brokers register."""

from typing import Any

import pytest
from cluster import Broker, Cluster
from groups import commit, committed, coordinating

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId
from ottla.base.units import SECOND_MS
from ottla.broker.controller.reassignment import grown
from ottla.broker.metadata.image import Image, Registration, Topic
from ottla.store.layout import PartitionState, TopicAssignment, decode_topic, encode_topic
from ottla.wire import errors
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

OFFSETS = "__consumer_offsets"
SETTINGS = {"offsets.topic.num.partitions": "3"}


def without_some(*away: int, brokers: int = 3, **settings: str) -> tuple[Cluster, dict[int, Broker]]:
    """A cluster some of whose brokers died before anybody looked for a coordinator; and those."""
    cluster = Cluster(brokers, settings={**SETTINGS, **{name.replace("_", "."): text for name, text in settings.items()}})
    return cluster, {number: cluster.kill(number) for number in away}


def back(cluster: Cluster, gone: Broker) -> None:
    cluster.start(gone.broker_id, gone.texts, [disk.restart() for disk in gone.disks.values()])


def offsets_topic(cluster: Cluster) -> Topic:
    return cluster.controller.node.context.image.topics[OFFSETS]


def copies(cluster: Cluster) -> list[int]:
    """Replicas of each partition that are in sync."""
    return [len(state.isr) for state in offsets_topic(cluster).states.values()]


def found(cluster: Cluster) -> Any:
    return cluster.controller.ask(FindCoordinatorRequest(key="g"), 2)


def test_offsets_get_the_copies_that_brokers_which_were_away_should_have_had() -> None:
    cluster, gone = without_some(2, 3)
    cluster.topic("t", partitions=2)
    assert commit(coordinating(cluster), "g", "t", 0, 7) == 0
    assert (copies(cluster), offsets_topic(cluster).factor_wanted) == ([1, 1, 1], 3)
    back(cluster, gone[2])
    cluster.pass_ms(4 * SECOND_MS)
    assert (copies(cluster), offsets_topic(cluster).factor_wanted) == ([2, 2, 2], 3)
    back(cluster, gone[3])
    cluster.pass_ms(4 * SECOND_MS)
    topic = offsets_topic(cluster)
    assert (copies(cluster), topic.factor_wanted) == ([3, 3, 3], 0)
    assert {replicas[0] for replicas in topic.replicas.values()} == {1, 2, 3}, "each broker is to lead one"
    cluster.kill(1)
    cluster.pass_ms(2 * SECOND_MS)
    assert committed(coordinating(cluster)) == {("t", 0): (7, -1, "")}


def test_single_broker_serves_groups_without_waiting_for_replicas() -> None:
    cluster = Cluster(settings=SETTINGS)
    coordinating(cluster)
    cluster.pass_ms(3 * SECOND_MS)
    assert (copies(cluster), offsets_topic(cluster).factor_wanted) == ([1, 1, 1], 3)
    assert cluster[1].warnings == []


def test_another_controller_adds_what_the_one_before_did_not() -> None:
    cluster, gone = without_some(1, 2)
    coordinating(cluster)
    for broker in gone.values():
        back(cluster, broker)
    cluster.restart(cluster.controller.broker_id)
    cluster.pass_ms(8 * SECOND_MS)
    assert (copies(cluster), offsets_topic(cluster).factor_wanted) == ([3, 3, 3], 0)


def test_a_number_of_copies_that_is_set_is_kept_to() -> None:
    cluster, gone = without_some(3, offsets_topic_replication_factor="3")
    answer = found(cluster)
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    assert answer.error_message == f"{OFFSETS} cannot be created: it is to have 3 replicas, and 2 brokers are alive"
    assert OFFSETS not in cluster.controller.node.context.image.topics
    back(cluster, gone[3])
    coordinating(cluster)
    assert (copies(cluster), offsets_topic(cluster).factor_wanted) == ([3, 3, 3], 0)


@pytest.mark.parametrize("partition", [0, 2])
def test_reassigned_topic_is_excluded_from_replication_factor_growth(partition: int) -> None:
    cluster, gone = without_some(3)
    coordinating(cluster)
    requested_moves = ReassignablePartition(partition_index=partition, replicas=[1])
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=OFFSETS, partitions=[requested_moves])])
    assert cluster.controller.ask(request, 1).responses[0].partitions[0].error_code == 0
    back(cluster, gone[3])
    cluster.pass_ms(4 * SECOND_MS)
    assert offsets_topic(cluster).factor_wanted == 0
    assert sorted(copies(cluster)) == [1, 2, 2]


def a_small_topic(number: int, racks: str, *, leaving: int = 0) -> tuple[Image, Topic]:
    """A topic with one replica on broker 1, in an image of brokers in these racks."""
    image = Image()
    for broker, rack in enumerate(racks, start=1):
        found = Registration(BrokerId(broker), f"host{broker}", 9092, rack, epoch=broker, leaving=broker == leaving)
        image.brokers[BrokerId(broker)] = found
    state = PartitionState(leader=1, leader_epoch=LeaderEpoch(0), isr=(1,), isr_epochs=(1,), controller_epoch=1)
    return image, Topic("t", TopicId(bytes(16)), {number: (1,)}, 0, states={number: state}, versions={number: 0}, factor_wanted=3)


def test_copies_that_are_added_lie_in_racks_that_have_none() -> None:
    for number in range(10):
        image, topic = a_small_topic(number, "aabbc")
        move = grown(image, topic, number)
        assert move is not None and len(move.adding) == 2
        assert {image.brokers[BrokerId(broker)].rack for broker in move.replicas} == {"a", "b", "c"}


def test_a_broker_that_is_about_to_stop_gets_no_copies() -> None:
    image, topic = a_small_topic(0, "abc", leaving=2)
    move = grown(image, topic, 0)
    assert move is not None and move.adding == (3,)
    image, topic = a_small_topic(0, "ab", leaving=2)
    assert grown(image, topic, 0) is None


def test_the_target_replicas_of_a_topic_are_in_its_node() -> None:
    assignment = TopicAssignment(topic_id=TopicId(bytes(15) + b"7"), replicas={0: (1,)}, factor_wanted=3)
    assert decode_topic(encode_topic(assignment)) == assignment
    assert b"wanted" not in encode_topic(TopicAssignment(topic_id=TopicId(bytes(15) + b"7"), replicas={0: (1,)}))
