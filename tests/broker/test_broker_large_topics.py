"""Topics that need several multis: creation, growth and deletion in steps, also across a change of the controller."""

import pytest
from cluster import Broker, Cluster

from ottla.base.ports import Op, StoreResult
from ottla.broker.controller import election_queue, topic_writes, topics
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeQuorumRequest,
    UnregisterBrokerRequest,
)

PARTITIONS = 12
CREATE = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=2)], timeout_ms=1000)
GROW = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2 * PARTITIONS, assignments=None)], timeout_ms=1000)
DELETE = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)


@pytest.fixture(autouse=True)
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes little at once."""
    monkeypatch.setattr(topics, "MULTI_BYTES", 1_000)
    monkeypatch.setattr(election_queue, "MULTI_BYTES", 1_000)


def sizes(cluster: Cluster) -> list[int]:
    """Bytes of each multi that the controller writes from now on."""
    found: list[int] = []
    session = cluster.controller.session
    submit = session.submit

    def noted(ops: tuple[Op, ...], done: object) -> None:
        found.append(topics.size_of(ops))
        submit(ops, done)  # type: ignore[arg-type]

    session.submit = noted  # type: ignore[method-assign, assignment]
    return found


def dies_before(broker: Broker, writes: int) -> None:
    """The broker is dead from its next write but ``writes`` on."""
    submit = broker.session.submit
    left = writes

    def counted(ops: tuple[Op, ...], done: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            broker.halted = "killed"
        else:
            submit(ops, done)  # type: ignore[arg-type]

    broker.session.submit = counted  # type: ignore[method-assign, assignment]


def states(cluster: Cluster) -> int:
    """Partitions of the topic that have a state in the store."""
    return sum(path.endswith("/state") for path in cluster.store.tree.nodes)


def left_of_it(cluster: Cluster) -> list[str]:
    return [
        path for path in cluster.store.tree.nodes if path.startswith(("/brokers/topics/t", "/admin/delete_topics/t", "/config/topics/t"))
    ]


def after_the_death_of_the_controller(cluster: Cluster) -> Broker:
    cluster.kill(cluster.controller.broker_id)
    cluster.pass_ms(3000)
    return cluster.controller


def test_a_topic_too_large_for_one_multi_is_created_in_several_before_the_answer() -> None:
    cluster = Cluster(brokers=3)
    written = sizes(cluster)
    assert cluster.controller.ask(CREATE, 7).topics[0].error_code == 0
    assert states(cluster) == PARTITIONS
    assert len(written) > 3 and max(written[1:]) <= topics.MULTI_BYTES
    assert sum(len(broker.node.partitions.leaders) for broker in cluster.brokers.values()) == PARTITIONS


def test_a_topic_that_fits_is_created_in_one_multi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cluster = Cluster(brokers=3)
    before = cluster.store.tree.zxid
    cluster.controller.ask(CREATE, 7)
    assert cluster.store.tree.zxid == before + 1


@pytest.mark.parametrize("writes", range(5))
def test_a_creation_that_its_controller_does_not_live_to_end_is_ended_by_the_next_or_never_began(writes: int) -> None:
    cluster = Cluster(brokers=4)
    dies_before(cluster.controller, writes)
    cluster.controller.send(CREATE, 7)
    begun = states(cluster)
    controller_id = after_the_death_of_the_controller(cluster)
    if writes == 0:
        assert left_of_it(cluster) == []
        assert controller_id.ask(CREATE, 7).topics[0].error_code == 0
    else:
        assert 0 < begun < PARTITIONS
    assert states(cluster) == PARTITIONS
    found = controller_id.node.context.image.topics["t"].states.values()
    assert all(state.leader in cluster.brokers and set(state.isr) <= set(cluster.brokers) for state in found)


def test_growth_above_the_size_of_one_multi_is_written_in_several() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    assert cluster.controller.ask(GROW, 3).results[0].error_code == 0
    assert states(cluster) == 2 * PARTITIONS


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_growth_that_its_controller_does_not_live_to_end_is_ended_by_the_next(writes: int) -> None:
    cluster = Cluster(brokers=4)
    cluster.controller.ask(CREATE, 7)
    dies_before(cluster.controller, writes)
    cluster.controller.send(GROW, 3)
    assert PARTITIONS < states(cluster) < 2 * PARTITIONS
    after_the_death_of_the_controller(cluster)
    assert states(cluster) == 2 * PARTITIONS


def test_a_topic_too_large_for_one_multi_is_deleted_in_several_before_the_answer() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    written = sizes(cluster)
    assert cluster.controller.ask(DELETE, 6).responses[0].error_code == 0
    assert left_of_it(cluster) == []
    assert len(written) > 2 and max(written) <= topics.MULTI_BYTES + topics.OP_BYTES + len(layout.CONTROLLER_EPOCH)
    assert all(not broker.node.partitions.leaders and not broker.node.partitions.followers for broker in cluster.brokers.values())
    assert cluster.controller.ask(CREATE, 7).topics[0].error_code == 0


def test_the_files_of_a_large_topic_go_with_each_step() -> None:
    cluster = Cluster(brokers=1)
    requested = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
    cluster.controller.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), 7)
    dies_before(cluster[1], 2)
    cluster[1].send(DELETE, 6)
    assert 0 < states(cluster) < PARTITIONS
    assert len(cluster[1].node.context.directories[0].logs) == states(cluster) == PARTITIONS - len(cluster[1].removed)


@pytest.mark.parametrize("writes", range(5))
def test_a_deletion_that_its_controller_does_not_live_to_end_is_ended_by_the_next_or_never_began(writes: int) -> None:
    cluster = Cluster(brokers=4)
    cluster.controller.ask(CREATE, 7)
    dies_before(cluster.controller, writes)
    cluster.controller.send(DELETE, 6)
    after_the_death_of_the_controller(cluster)
    if writes == 0:
        assert states(cluster) == PARTITIONS
    else:
        assert left_of_it(cluster) == []
        assert all("t" not in broker.node.context.image.topics for broker in cluster.brokers.values())


def test_a_second_request_waits_for_the_same_deletion() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    cluster.store_delivers = False
    sent = [cluster.controller.send(DELETE, 6) for _ in range(2)]
    cluster.store_delivers = True
    cluster.run()
    assert [one.answer.responses[0].error_code for one in sent] == [0, 0]


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_growth_that_a_deletion_overtakes_is_no_internal_error(begun: int) -> None:
    """Found by the fuzzer: the growth was begun, the topic was deleted, and the answer was UNKNOWN_SERVER_ERROR."""
    cluster = Cluster(brokers=3)
    controller = cluster.controller
    controller.ask(CREATE, 7)
    cluster.store_delivers = False
    grown = controller.send(GROW, 3)
    for _ in range(begun):
        controller.session.deliver(1)
    deleted = controller.send(DELETE, 6)
    cluster.store_delivers = True
    cluster.run()
    assert deleted.answer.responses[0].error_code == 0
    assert grown.answer.results[0].error_code in (0, errors.UnknownTopicOrPartition.code)
    assert not left_of_it(cluster)


def test_a_store_that_breaks_off_in_the_middle_of_a_deletion_sees_it_ended() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    session = cluster.controller.session
    submit, count = session.submit, 0

    def third_fails(ops: tuple[Op, ...], done: object) -> None:
        nonlocal count
        count += 1
        if count == 3:
            session.fail_next(applied=False)
        submit(ops, done)  # type: ignore[arg-type]

    session.submit = third_fails  # type: ignore[method-assign, assignment]
    answer = cluster.controller.ask(DELETE, 6)
    assert answer.responses[0].error_code != 0
    cluster.pass_ms(3000)
    assert left_of_it(cluster) == []


# Operators' tools.


def written(cluster: Cluster, *ops: Op) -> None:
    results: list[StoreResult] = []
    session = cluster.store.session()
    session.submit(ops, results.append)
    cluster.run()
    assert results[0].error is None


def test_a_topic_that_an_operators_tool_marks_is_deleted() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    written(cluster, Op("create", layout.deleted_topic("t")))
    assert left_of_it(cluster) == []


def test_a_mark_is_taken_away_where_there_is_nothing_to_delete_or_deleting_is_forbidden() -> None:
    cluster = Cluster(brokers=3, settings={"delete.topic.enable": "false"})
    cluster.controller.ask(CREATE, 7)
    written(cluster, Op("create", layout.deleted_topic("t")), Op("create", layout.deleted_topic("unknown")))
    assert not [path for path in cluster.store.tree.nodes if path.startswith("/admin/delete_topics/")]
    assert states(cluster) == PARTITIONS
    assert "delete.topic.enable" in cluster.controller.warnings[-1]


def test_a_topic_written_to_the_store_by_a_tool_is_created() -> None:
    cluster = Cluster(brokers=3)
    assignment = layout.TopicAssignment(topic_id=b"0123456789abcdef", replicas={0: (1, 2), 1: (2, 3), 2: (9, 3)})  # type: ignore[arg-type]
    written(cluster, Op("create", layout.topic("t"), layout.encode_topic(assignment)))
    cluster.pass_ms(2000)
    found = cluster.controller.node.context.image.topics["t"].states
    assert {number: (state.leader, state.isr) for number, state in found.items()} == {0: (1, (1, 2)), 1: (2, (2, 3)), 2: (3, (3,))}


def test_a_partition_whose_brokers_are_all_away_waits_for_one_of_them() -> None:
    cluster = Cluster(brokers=3)
    gone = cluster.kill(3)
    assignment = layout.TopicAssignment(topic_id=b"0123456789abcdef", replicas={0: (3,)})  # type: ignore[arg-type]
    written(cluster, Op("create", layout.topic("t"), layout.encode_topic(assignment)))
    cluster.pass_ms(2000)
    assert states(cluster) == 0
    cluster.start(3, gone.texts, [disk.restart() for disk in gone.disks.values()])
    assert states(cluster) == 1 and cluster[3].leader("t").epoch == 0


def test_a_partitions_node_without_a_state_is_not_in_the_way() -> None:
    cluster = Cluster(brokers=3)
    assignment = layout.TopicAssignment(topic_id=b"0123456789abcdef", replicas={0: (1, 2)})  # type: ignore[arg-type]
    made = [Op("create", path) for path in (layout.partitions("t"), layout.partition("t", 0))]
    written(cluster, Op("create", layout.topic("t"), layout.encode_topic(assignment)), *made)
    cluster.pass_ms(2000)
    assert states(cluster) == 1


def test_a_topic_with_something_inexplicable_below_it_is_given_up_and_not_tried_for_ever() -> None:
    cluster = Cluster(brokers=3)
    cluster.controller.ask(CREATE, 7)
    written(cluster, Op("create", "/brokers/topics/t/partitions/99"))
    before = cluster.store.tree.zxid
    assert cluster.controller.ask(DELETE, 6).responses[0].error_code == errors.UnknownServerError.code
    assert cluster.store.tree.zxid - before <= topic_writes.FAILURES_MAX


# What a cluster without a quorum of its own says.


def test_a_quorum_and_registrations_that_outlive_their_brokers_are_not_supported() -> None:
    broker = Cluster()[1]
    quorum = broker.ask(DescribeQuorumRequest(), 2)
    assert quorum.error_code == errors.UnsupportedVersion.code and "no quorum" in quorum.error_message
    assert broker.ask(DescribeQuorumRequest(), 0).error_code == errors.UnsupportedVersion.code
    unregistered = broker.ask(UnregisterBrokerRequest(broker_id=7), 0)
    assert unregistered.error_code == errors.UnsupportedVersion.code and "session" in unregistered.error_message
