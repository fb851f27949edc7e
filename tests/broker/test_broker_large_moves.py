"""Reassignments of more partitions than a topic's node has room for: the rest is refused or waits."""

from collections.abc import Callable

import pytest
from cluster import Broker, Cluster

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.base.units import SECOND_MS
from ottla.broker.apis import k45_alter_partition_reassignments
from ottla.broker.controller import reassignment, reassignment_driver
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

PARTITIONS = 20
#: The assignment of the topic takes about 350 bytes, one that moves some 30 more.
NODE_BYTES = 560


@pytest.fixture(autouse=True)
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "NODE_BYTES_MAX", NODE_BYTES)
    monkeypatch.setattr(reassignment_driver, "MOVES_AT_ONCE", 4)
    monkeypatch.setattr(k45_alter_partition_reassignments, "MOVES_AT_ONCE", 4)


def a_cluster() -> Cluster:
    cluster = Cluster(4)
    assignments = [CreatableReplicaAssignment(partition_index=number, broker_ids=[1, 2]) for number in range(PARTITIONS)]
    requested = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7).topics[0].error_code == 0
    cluster.pass_ms(SECOND_MS)
    return cluster


def requested(cluster: Cluster, numbers: range, replicas: list[int] | None) -> list[int]:
    """The error code of each partition."""
    requested_moves = [ReassignablePartition(partition_index=number, replicas=replicas) for number in numbers]
    answer = cluster.controller.ask(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=requested_moves)]), 1)
    return [one.error_code for one in answer.responses[0].partitions]


def moved(broker: Broker) -> list[int]:
    topic = broker.node.context.image.topics["t"]
    return [number for number, replicas in topic.replicas.items() if replicas == (3, 4) and number not in topic.adding]


def largest(cluster: Cluster) -> list[int]:
    """Sizes of the topic's node, as the controller writes it from now on."""
    found: list[int] = []
    submit = cluster.controller.session.submit

    def noted(ops: tuple[Op, ...], done: object) -> None:
        found.extend(len(op.data) for op in ops if op.path == layout.topic("t"))
        submit(ops, done)  # type: ignore[arg-type]

    cluster.controller.session.submit = noted  # type: ignore[method-assign, assignment]
    return found


def test_reassignments_above_the_size_limit_are_refused_and_can_be_retried() -> None:
    cluster = a_cluster()
    sizes = largest(cluster)
    cluster.cut_off(3)
    codes = requested(cluster, range(PARTITIONS), [3, 4])
    refused = codes.index(errors.PolicyViolation.code)
    assert refused > 0 and codes == [0] * refused + [errors.PolicyViolation.code] * (PARTITIONS - refused)
    cluster.cut.clear()
    cluster.pass_ms(4 * SECOND_MS)
    assert moved(cluster.controller) == list(range(refused))
    while refused < PARTITIONS:
        codes = requested(cluster, range(refused, PARTITIONS), [3, 4])
        assert codes[0] == 0
        refused += codes.count(0)
        cluster.pass_ms(4 * SECOND_MS)
    assert moved(cluster.controller) == list(range(PARTITIONS))
    assert max(sizes) <= NODE_BYTES


def test_moves_can_be_taken_back_also_when_there_is_no_room() -> None:
    cluster = a_cluster()
    cluster.cut_off(3)
    begun = requested(cluster, range(PARTITIONS), [3, 4]).count(0)
    assert begun < PARTITIONS
    assert requested(cluster, range(begun), None) == [0] * begun
    assert not cluster.controller.node.context.image.topics["t"].adding


def test_reassignments_in_the_store_wait_when_the_limits_are_reached() -> None:
    cluster = a_cluster()
    sizes = largest(cluster)
    cluster.cut_off(3)
    data = layout.encode_reassignment({TopicPartition("t", number): (3, 4) for number in range(PARTITIONS)})
    cluster.store.session().submit((Op("create", layout.REASSIGN_PARTITIONS, data),), lambda result: None)
    cluster.run()
    cluster.pass_ms(3 * SECOND_MS)
    assert 0 < len(cluster.controller.node.context.image.topics["t"].adding) < PARTITIONS
    cluster.cut.clear()
    cluster.pass_ms(20 * SECOND_MS)
    assert moved(cluster.controller) == list(range(PARTITIONS))
    assert layout.REASSIGN_PARTITIONS not in cluster.store.tree.nodes and max(sizes) <= NODE_BYTES
    assert not [text for text in cluster.controller.warnings if "reassign" in text]


def test_reassignment_in_the_store_that_exceeds_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "NODE_BYTES_MAX", 100)
    cluster = a_cluster()
    data = layout.encode_reassignment({TopicPartition("t", 3): (3, 4)})
    cluster.store.session().submit((Op("create", layout.REASSIGN_PARTITIONS, data),), lambda result: None)
    cluster.run()
    cluster.pass_ms(3 * SECOND_MS)
    assert moved(cluster.controller) == [] and layout.REASSIGN_PARTITIONS not in cluster.store.tree.nodes
    assert any("t-3: the topic's node would be larger" in text for text in cluster.controller.warnings)


def test_a_write_that_the_store_refuses_is_reported_once_and_not_retried_forever() -> None:
    cluster = a_cluster()
    tried: list[int] = []
    submit = cluster.controller.session.submit

    def small(ops: tuple[Op, ...], done: Callable[[StoreResult], None]) -> None:
        if any(op.path == layout.topic("t") for op in ops):
            tried.append(len(ops))
            cluster.later(lambda: done(StoreResult((), "too_large")))
        else:
            submit(ops, done)

    cluster.controller.session.submit = small  # type: ignore[method-assign, assignment]
    data = layout.encode_reassignment({TopicPartition("t", number): (3, 4) for number in (3, 4)})
    cluster.store.session().submit((Op("create", layout.REASSIGN_PARTITIONS, data),), lambda result: None)
    cluster.run()
    cluster.pass_ms(10 * SECOND_MS)
    assert len(tried) == 1 and layout.REASSIGN_PARTITIONS not in cluster.store.tree.nodes
    assert [text for text in cluster.controller.warnings if "more than the store takes" in text] == [
        "2 moves of partitions are more than the store takes at once; they are left undone"
    ]
