"""Creating, deleting, growing and paging through topics. Lines are those of docs/semantics.md."""

from typing import Any

import pytest
from cluster import Broker, Cluster, batch, produce, produce_request
from garbage import garbage_of

from ottla.base.ports import Op
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableReplicaAssignment as Assignment
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.create_topics import CreatableTopicConfig as Config
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest


def create(broker: Broker, name: str = "t", partitions: int = 1, factor: int = 1, *, version: int = 7, **fields: Any) -> Any:
    requested = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)
    return broker.ask(CreateTopicsRequest(topics=[requested], timeout_ms=1000), version).topics[0]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"factor": 0}, errors.InvalidReplicationFactor),
        ({"factor": 4}, errors.InvalidReplicationFactor),
        ({"factor": -2}, errors.InvalidReplicationFactor),
        ({"partitions": 0}, errors.InvalidPartitions),
        ({"partitions": -2}, errors.InvalidPartitions),
        ({"assignments": [Assignment(partition_index=0, broker_ids=[1])]}, errors.InvalidRequest),
        ({"partitions": -1, "assignments": [Assignment(broker_ids=[1])]}, errors.InvalidRequest),
        ({"partitions": -1, "factor": -1, "assignments": [Assignment(broker_ids=[9])]}, errors.InvalidReplicaAssignment),
        ({"partitions": -1, "factor": -1, "assignments": [Assignment(broker_ids=[])]}, errors.InvalidReplicaAssignment),
        ({"partitions": -1, "factor": -1, "assignments": [Assignment(broker_ids=[1, 1])]}, errors.InvalidReplicaAssignment),
        (
            {"partitions": -1, "factor": -1, "assignments": [Assignment(partition_index=1, broker_ids=[1])]},
            errors.InvalidReplicaAssignment,
        ),
        (
            {"partitions": -1, "factor": -1, "assignments": [Assignment(broker_ids=[1]), Assignment(broker_ids=[2])]},
            errors.InvalidReplicaAssignment,
        ),
        ({"name": "taken"}, errors.TopicAlreadyExists),
        ({"name": "a/b"}, errors.InvalidTopic),
        ({"name": ""}, errors.InvalidTopic),
        ({"name": ".."}, errors.InvalidTopic),
        ({"name": "x" * 250}, errors.InvalidTopic),
        ({"name": "with_underscore"}, errors.InvalidTopic),
        ({"configs": [Config(name="no.such", value="1")]}, errors.InvalidConfig),
        ({"configs": [Config(name="retention.ms", value="soon")]}, errors.InvalidConfig),
        ({"configs": [Config(name="retention.ms", value=None)]}, errors.InvalidConfig),
        ({"partitions": 10_001}, errors.PolicyViolation),
    ],
)
def test_a_topic_that_cannot_be_is_refused(fields: dict[str, Any], error: type[errors.KafkaError]) -> None:
    """Line 17."""
    cluster = Cluster(brokers=3)
    cluster.topic("taken")
    cluster.topic("with.underscore")
    answer = create(cluster[1], **fields)
    assert answer.error_code == error.code, answer.error_message
    assert answer.error_message and answer.topic_id == bytes(16) and answer.num_partitions == -1
    assert len(cluster[1].node.context.image.topics) == 2


def test_topic_named_twice_in_a_request_is_not_created() -> None:
    """Line 17."""
    broker = Cluster()[1]
    requests = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b", "a")]
    answer = broker.ask(CreateTopicsRequest(topics=requests), 7)
    assert {topic.name: topic.error_code for topic in answer.topics} == {"a": errors.InvalidRequest.code, "b": 0}
    assert list(broker.node.context.image.topics) == ["b"]


@pytest.mark.parametrize("applied", [False, True])
def test_a_change_that_the_store_does_not_confirm_is_answered_as_one_that_may_be_made(applied: bool) -> None:
    broker = Cluster()[1]
    broker.session.fail_next(applied=applied)
    answer = create(broker)
    assert answer.error_code == errors.RequestTimedOut.code and "may still be made" in answer.error_message
    assert ("t" in broker.node.context.image.topics) is applied


def test_validate_only_checks_everything_and_creates_nothing() -> None:
    """Line 17."""
    broker = Cluster()[1]
    good, bad = CreatableTopic(name="t", num_partitions=2, replication_factor=1), CreatableTopic(name="u", replication_factor=1)
    answer = broker.ask(CreateTopicsRequest(topics=[good, bad], validate_only=True), 7)
    assert [topic.error_code for topic in answer.topics] == [0, errors.InvalidPartitions.code]
    assert answer.topics[0].num_partitions == 2 and broker.node.context.image.topics == {}


def test_minus_one_means_the_broker_defaults_in_every_version() -> None:
    """Line 17."""
    broker = Cluster(settings={"num.partitions": "4"})[1]
    for version in (2, 3, 4):
        assert create(broker, f"old{version}", -1, -1, version=version).error_code == 0
        assert len(broker.node.context.image.topics[f"old{version}"].replicas) == 4
    answer = create(broker, "new", -1, -1, version=5)
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 4, 1)


def test_partitions_in_one_request_are_bounded_over_all_its_topics() -> None:
    broker = Cluster(settings={"ottla.partitions.per.request.max": "5"})[1]
    requests = [CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in ("a", "b")]
    answer = broker.ask(CreateTopicsRequest(topics=requests), 7)
    assert [topic.error_code for topic in answer.topics] == [0, errors.PolicyViolation.code]


def test_partitions_in_the_cluster_are_bounded() -> None:
    cluster = Cluster(settings={"ottla.partitions.max": "3"})
    assert create(cluster[1], "a", 3).error_code == 0
    assert create(cluster[1], "b", 1).error_code == errors.PolicyViolation.code
    requested = CreatePartitionsTopic(name="a", count=4, assignments=None)
    answer = cluster[1].ask(CreatePartitionsRequest(topics=[requested], timeout_ms=1000), 3)
    assert answer.results[0].error_code == errors.PolicyViolation.code


def test_create_topics_returns_partitions_settings_and_id() -> None:
    """Line 18."""
    broker = Cluster()[1]
    answer = create(broker, partitions=2, configs=[Config(name="retention.ms", value="5")], version=7)
    assert (answer.num_partitions, answer.replication_factor) == (2, 1)
    assert answer.topic_id == broker.node.context.image.topics["t"].topic_id != bytes(16)
    retention = next(config for config in answer.configs if config.name == "retention.ms")
    assert (retention.value, retention.config_source) == ("5", 1)
    before = create(broker, "u", version=4)
    assert (before.num_partitions, before.topic_id) == (-1, bytes(16))


def test_topic_is_created_on_the_brokers_of_the_request() -> None:
    cluster = Cluster(brokers=3)
    requested_moves = [Assignment(partition_index=0, broker_ids=[3]), Assignment(partition_index=1, broker_ids=[1])]
    assert create(cluster[1], partitions=-1, factor=-1, assignments=requested_moves).error_code == 0
    assert (cluster.leading("t", 0).broker_id, cluster.leading("t", 1).broker_id) == (3, 1)


def test_an_answer_that_the_store_owes_for_too_long_is_a_timeout() -> None:
    cluster = Cluster()
    cluster.store_delivers = False
    requested = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    sent = cluster[1].send(CreateTopicsRequest(topics=[requested], timeout_ms=500), 7)
    assert sent.waits
    cluster.pass_ms(600)
    assert sent.answer.topics[0].error_code == errors.RequestTimedOut.code


# Deleting.


def delete(broker: Broker, *states: DeleteTopicState, version: int = 6) -> list[Any]:
    return list(broker.ask(DeleteTopicsRequest(topics=list(states), timeout_ms=1000), version).responses)


def test_topics_are_deleted_by_name_and_by_id() -> None:
    """Line 19."""
    cluster = Cluster()
    broker = cluster.topic("a")
    cluster.topic("b", configs={"retention.ms": "1"})
    b_id = broker.node.context.image.topics["b"].topic_id
    answers = delete(broker, DeleteTopicState(name="a"), DeleteTopicState(name=None, topic_id=b_id))
    assert [(one.name, one.error_code) for one in answers] == [("a", 0), ("b", 0)]
    assert broker.node.context.image.topics == {} and broker.node.context.image.configs == {}
    assert broker.node.partitions.leaders == {} and len(broker.removed) == 2


def test_a_recreated_topic_has_another_id_and_no_settings() -> None:
    cluster = Cluster()
    broker = cluster.topic("t", configs={"retention.ms": "1"})
    first = broker.node.context.image.topics["t"].topic_id
    produce(broker, batch(b"old"))
    delete(broker, DeleteTopicState(name="t"))
    cluster.topic("t")
    assert broker.node.context.image.topics["t"].topic_id != first
    assert broker.leader("t").log.end_offset == 0
    assert broker.node.context.topic_options("t").retention_ms != 1


def test_a_topic_whose_last_override_was_removed_can_be_deleted_and_created_with_overrides() -> None:
    cluster = Cluster()
    broker = cluster.topic("t", configs={"retention.ms": "1"})
    path = "/config/topics/t"
    node = cluster.store.tree.nodes[path]
    cluster.store.session().submit((Op("set", path, b'{"version":1,"config":{}}', version=node.version),), lambda result: None)
    cluster.run()
    assert broker.node.context.image.configs == {}
    assert delete(broker, DeleteTopicState(name="t"))[0].error_code == 0
    assert path not in cluster.store.tree.nodes
    cluster.topic("t", configs={"retention.ms": "2"})


@pytest.mark.parametrize("overrides", [{}, {"segment.ms": "7"}])
def test_settings_that_an_earlier_topic_left_behind_are_not_the_new_ones(overrides: dict[str, str]) -> None:
    """A change of settings that passes a deletion on its way to the store can leave them there."""
    cluster = Cluster()
    left = Op("create", "/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
    cluster.store.session().submit((left,), lambda result: None)
    cluster.run()
    broker = cluster.topic("t", configs=overrides)
    assert broker.node.context.image.overrides("topics", "t") == overrides


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (DeleteTopicState(name="nowhere"), errors.UnknownTopicOrPartition),
        (DeleteTopicState(name=None, topic_id=b"\2" * 16), errors.UnknownTopicId),
        (DeleteTopicState(name="t", topic_id=b"\2" * 16), errors.InvalidRequest),
        (DeleteTopicState(name=None), errors.InvalidRequest),
    ],
)
def test_a_topic_that_is_not_there_cannot_be_deleted(state: DeleteTopicState, error: type[errors.KafkaError]) -> None:
    """Line 19."""
    cluster = Cluster()
    broker = cluster.topic("t")
    assert delete(broker, state)[0].error_code == error.code
    assert "t" in broker.node.context.image.topics


def test_deleting_can_be_forbidden() -> None:
    """Line 19."""
    cluster = Cluster(settings={"delete.topic.enable": "false"})
    broker = cluster.topic("t")
    assert delete(broker, DeleteTopicState(name="t"))[0].error_code == errors.TopicDeletionDisabled.code
    old = broker.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 2)
    assert old.responses[0].error_code == errors.InvalidRequest.code


def test_producers_that_wait_on_a_deleted_topic_are_answered_at_once() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    cluster.flushing = False
    sent = broker.send(produce_request(batch(b"v"), timeout_ms=60_000), 9)
    delete(broker, DeleteTopicState(name="t"))
    gone = (errors.UnknownTopicOrPartition.code, errors.NotLeaderOrFollower.code)
    assert sent.answer.responses[0].partition_responses[0].error_code in gone


# Growing.


def grow(broker: Broker, count: int, name: str = "t", *, validate_only: bool = False, assignments: list[list[int]] | None = None) -> Any:
    chosen = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    requested = CreatePartitionsTopic(name=name, count=count, assignments=chosen)
    return broker.ask(CreatePartitionsRequest(topics=[requested], timeout_ms=1000, validate_only=validate_only), 3).results[0]


def test_a_topic_grows_and_keeps_what_it_has() -> None:
    cluster = Cluster(brokers=3)
    broker = cluster.topic("t", partitions=2)
    produce(broker, batch(b"v"))
    before = dict(broker.node.context.image.topics["t"].replicas)
    assert grow(cluster[1], 5).error_code == 0
    after = broker.node.context.image.topics["t"].replicas
    assert len(after) == 5 and {number: after[number] for number in before} == before
    assert all(cluster.leading("t", number) for number in range(5))
    assert broker.leader("t").log.end_offset == 1


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_a_topic_neither_shrinks_nor_stays(count: int) -> None:
    """Line 19."""
    cluster = Cluster()
    broker = cluster.topic("t", partitions=2)
    assert grow(broker, count).error_code == errors.InvalidPartitions.code


def test_new_partitions_are_checked_like_those_of_a_new_topic() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.topic("t")
    assert grow(broker, 2, "nowhere").error_code == errors.UnknownTopicOrPartition.code
    for assignments in ([[1], [2]], [[9]], [[]], [[1, 2]]):  # type: ignore[var-annotated]
        assert grow(broker, 2, assignments=assignments).error_code == errors.InvalidReplicaAssignment.code
    assert grow(broker, 2, assignments=[[2]], validate_only=True).error_code == 0
    assert len(broker.node.context.image.topics["t"].replicas) == 1
    assert grow(broker, 2, assignments=[[2]]).error_code == 0
    assert cluster.leading("t", 1).broker_id == 2


def test_a_topic_named_twice_grows_neither_time() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    requests = [CreatePartitionsTopic(name="t", count=count, assignments=None) for count in (2, 3)]
    answer = broker.ask(CreatePartitionsRequest(topics=requests, timeout_ms=1000), 3)
    assert [one.error_code for one in answer.results] == [errors.InvalidRequest.code]


# Paging.


def pages(broker: Broker, limit: int, *names: str) -> list[list[tuple[str, list[int]]]]:
    found = []
    cursor = None
    while True:
        topics = [TopicRequest(name=name) for name in names]
        answer = broker.ask(DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor), 0)
        found.append([(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics])
        if answer.next_cursor is None:
            return found
        cursor = Cursor(topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index)


def test_all_topics_are_paged_through_in_the_order_of_their_names() -> None:
    cluster = Cluster()
    for name, count in (("c", 2), ("a", 3), ("b", 1)):
        broker = cluster.topic(name, partitions=count)
    assert pages(broker, 2) == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("c", [0, 1])]]
    assert pages(broker, 2000) == [[("a", [0, 1, 2]), ("b", [0]), ("c", [0, 1])]]
    assert pages(broker, 0)[0] == [("a", [0])]


def test_a_page_is_never_larger_than_the_broker_allows() -> None:
    cluster = Cluster(settings={"max.request.partition.size.limit": "2"})
    broker = cluster.topic("t", partitions=5)
    assert pages(broker, 1000) == [[("t", [0, 1])], [("t", [2, 3])], [("t", [4])]]


def test_topics_requested_by_name_have_their_own_errors() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    answer = broker.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in ("t", "no", "a/b")]), 0)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a/b", errors.InvalidTopic.code),
        ("no", errors.UnknownTopicOrPartition.code),
        ("t", 0),
    ]
    described = answer.topics[2]
    assert described.topic_id == broker.node.context.image.topics["t"].topic_id
    part = described.partitions[0]
    assert (part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes, part.offline_replicas) == (1, 0, [1], [1], [])


def test_a_cursor_that_points_nowhere_is_refused() -> None:
    cluster = Cluster()
    broker = cluster.topic("t")
    for cursor in (Cursor(topic_name="u", partition_index=0), Cursor(topic_name="t", partition_index=-1)):
        answer = broker.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], cursor=cursor), 0)
        assert [topic.error_code for topic in answer.topics] == [errors.InvalidRequest.code]


def test_paging_continues_after_a_topic_that_was_deleted_meanwhile() -> None:
    cluster = Cluster()
    cluster.topic("a")
    broker = cluster.topic("c")
    answer = broker.ask(DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="b", partition_index=7)), 0)
    assert [topic.name for topic in answer.topics] == ["c"]


def test_a_topic_that_is_deleted_or_grows_while_it_is_to_grow_is_judged_as_it_is_then() -> None:
    """Found by the fuzzer: the answer was UNKNOWN_SERVER_ERROR."""
    cluster = Cluster()
    broker = cluster.topic("t")
    cluster.topic("u")

    def grow(name: str, count: int) -> Any:
        requested = CreatePartitionsTopic(name=name, count=count, assignments=None)
        return broker.send(CreatePartitionsRequest(topics=[requested], timeout_ms=1000), 3)

    cluster.store_delivers = False
    broker.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000), 6)
    deleted, first, same, more, fewer = grow("t", 4), grow("u", 4), grow("u", 4), grow("u", 6), grow("u", 3)
    cluster.store_delivers = True
    cluster.run()
    codes = [sent.answer.results[0].error_code for sent in (deleted, first, same, more, fewer)]
    assert codes == [errors.UnknownTopicOrPartition.code, 0, errors.InvalidPartitions.code, 0, errors.InvalidPartitions.code]
    assert len(broker.node.context.image.topics["u"].replicas) == 6
    assert broker.leader("u", 5).log.end_offset == 0


def test_settings_that_a_deleted_topic_left_behind_and_that_change_meanwhile_do_not_keep_a_topic_from_being_created() -> None:
    """Found by the fuzzer: the answer was UNKNOWN_SERVER_ERROR."""
    cluster = Cluster()
    broker = cluster[1]
    path, left = layout.config("topics", "t"), layout.encode_config({"retention.ms": "5"})
    tool = cluster.store.session()
    tool.submit((Op("create", path, left),), lambda result: None)
    cluster.run()
    cluster.store_delivers = False
    tool.submit((Op("set", path, left, version=0),), lambda result: None)
    requests = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    first, second = [broker.send(CreateTopicsRequest(topics=requests, timeout_ms=1000), 7) for _ in range(2)]
    cluster.store_delivers = True
    cluster.run()
    assert [sent.answer.topics[0].error_code for sent in (first, second)] == [0, errors.TopicAlreadyExists.code]
    assert broker.node.context.image.overrides("topics", "t") == {}


@pytest.mark.slow
def test_creating_growing_and_deleting_topics_leaves_no_cyclic_garbage() -> None:
    """Cycles of thousands of topics make a garbage collection that stops the broker for a quarter of a second."""
    broker = Cluster()[1]
    create(broker, "first")

    def act() -> None:
        for number in range(50):
            assert create(broker, f"t-{number}").error_code == 0
            growth = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=f"t-{number}", count=2, assignments=None)], timeout_ms=1000)
            assert broker.ask(growth, 3).results[0].error_code == 0
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"t-{number}")], timeout_ms=1000)
            assert broker.ask(deletion, 6).responses[0].error_code == 0

    assert garbage_of(act) == []
