"""Large requests are answered in turns, and others in between."""

from itertools import chain
from typing import Any

import pytest
from access_rules import ALICE, grant, guarded, rule
from cluster import Broker, Cluster, Sent, batch, produce, values
from garbage import garbage_of

from ottla.base.acls import Operation
from ottla.broker import effects
from ottla.broker.replica.partitions import FLUSH_WEIGHT
from ottla.broker.turns import TURN_ELEMENTS, portions
from ottla.wire import errors
from ottla.wire.compile import encode
from ottla.wire.messages import describe_topic_partitions
from ottla.wire.messages import incremental_alter_configs as incremental
from ottla.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics
from ottla.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

MANY = 2 * TURN_ELEMENTS + 200
VERSION = 9


def about(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)


def unknown(number: int = MANY) -> list[str]:
    return [f"unknown-{each}" for each in range(number)]


def waiting(broker: Broker, request: MetadataRequest) -> Sent:
    """The request after the step of its arrival."""
    broker.cluster.turning = False
    sent = broker.send(request, VERSION)
    assert sent.waits and broker.turns_due == 1
    return sent


def create(cluster: Cluster, name: str, partitions: int) -> None:
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1_000), 7).topics[0].error_code == 0


def test_portions_have_all_elements_in_order_and_are_no_heavier_than_a_turn() -> None:
    weights = [1] * 700 + [501] + [200, 200, 200]
    found = list(portions(range(len(weights)), weights.__getitem__, 500))
    assert list(chain(*found)) == list(range(len(weights)))
    assert [sum(weights[each] for each in portion) for portion in found] == [500, 200, 501, 400, 200]
    assert list(portions([], len)) == []


def test_a_large_request_is_answered_as_small_ones_are() -> None:
    cluster = Cluster()
    broker = cluster.topic("a", partitions=3)
    names = [*unknown(), "a", *unknown(5), "a b"]
    large = broker.ask(about(*names), VERSION)
    distinct = list(dict.fromkeys(names))
    small: list[Any] = []
    for start in range(0, len(distinct), 100):
        small += broker.ask(about(*distinct[start : start + 100]), VERSION).topics
    assert large.topics == small
    assert large.brokers == broker.ask(about("a"), VERSION).brokers
    assert large.controller_id == 1


def test_other_requests_are_answered_between_the_turns_of_a_large_one() -> None:
    cluster = Cluster()
    broker = cluster.topic("a")
    large = waiting(broker, about(*unknown()))
    for _ in range(3):
        broker.turn()
        assert large.waits
        assert broker.ask(about("a"), VERSION).topics[0].error_code == 0
    broker.turn()
    assert len(large.answer.topics) == MANY
    assert broker.turns_due == 0


def test_large_requests_take_turns() -> None:
    broker = Cluster()[1]
    first = waiting(broker, about(*unknown(TURN_ELEMENTS * 3)))
    second = broker.send(about(*unknown(TURN_ELEMENTS + 1)), VERSION)
    assert broker.turns_due == 1, "one turn at a time, whatever the number of requests"
    for _ in range(6):
        broker.turn()
    assert first.waits and not second.waits
    broker.turn()
    assert not first.waits


def test_the_work_of_a_closed_connection_ends() -> None:
    broker = Cluster()[1]
    gone = waiting(broker, about(*unknown()))
    broker.turn()
    other = broker.send(about(*unknown(TURN_ELEMENTS + 1)), VERSION)
    broker.hang_up(gone)
    for _ in range(4):
        broker.turn()
    assert gone.waits and not other.waits
    assert broker.turns_due == 0


def test_all_topics_are_answered_in_turns_by_their_partitions() -> None:
    cluster = Cluster()
    broker = cluster[1]
    for name in ("a", "b", "c"):
        create(cluster, name, TURN_ELEMENTS // 2)
    large = waiting(broker, MetadataRequest(topics=None))
    broker.turn()
    cluster.turning = True
    assert cluster.controller.ask(DeleteTopicsRequest(topic_names=["c"], timeout_ms=1_000), 5).responses[0].error_code == 0
    broker.turn()
    assert [(topic.name, len(topic.partitions)) for topic in large.answer.topics] == [("a", TURN_ELEMENTS // 2), ("b", TURN_ELEMENTS // 2)]


def test_the_rules_of_a_turn_count() -> None:
    cluster = guarded(topics=("a", "b"), partitions=TURN_ELEMENTS)
    broker = cluster[1]
    cluster.turning = False
    large = broker.send(about("a", "b"), VERSION, principal=ALICE)
    broker.turn()
    cluster.turning = True
    grant(cluster, rule(Operation.DESCRIBE, name="b"))
    broker.turn()
    assert [topic.error_code for topic in large.answer.topics] == [errors.TopicAuthorizationFailed.code, 0]


def test_a_request_in_turns_creates_no_more_topics_than_one_step_does() -> None:
    cluster = Cluster(settings={"ottla.auto.create.topics.max": "7"})
    broker = cluster[1]
    large = waiting(broker, MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in unknown()]))
    while large.waits:
        # Creations under way end between the turns.
        broker.turn()
    assert 0 < len(broker.node.context.image.topics) <= 7
    assert not broker.node.context.creating


class Broken(dict[str, Any]):
    """Topics that cannot be looked up."""

    def get(self, name: str, other: Any = None) -> Any:
        raise ZeroDivisionError(name)


def test_an_unexpected_exception_in_a_turn_is_answered() -> None:
    cluster = Cluster()
    broker, image = cluster.topic("a"), cluster[1].node.context.image
    large = waiting(broker, about(*unknown()))
    broker.turn()
    cluster.failures, topics, image.topics = [], image.topics, Broken()
    broker.turn()
    image.topics = topics
    assert [type(failure.error) for failure in cluster.failures] == [ZeroDivisionError]
    assert large.answer.topics[0].error_code == errors.UnknownServerError.code
    assert broker.turns_due == 0
    assert broker.ask(about("a"), VERSION).topics[0].error_code == 0


# Requests of many kinds are answered in turns as they are in one step. A small turn stands for a large request.


def with_groups() -> Cluster:
    """Topics "a" and "b", records in the first, and a group with offsets."""
    cluster = Cluster(settings={"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "2"})
    for name in ("a", "b"):
        create(cluster, name, 3)
    broker = cluster[1]
    for number in (0, 2):
        assert produce(broker, batch(b"x", b"y"), topic="a", partition=number).error_code == 0
    assert broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0].error_code == errors.CoordinatorNotAvailable.code
    cluster.pass_ms(1_000)
    asked = [OffsetCommitRequestPartition(partition_index=number, committed_offset=number + 1) for number in range(2)]
    commit = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="a", partitions=asked)])
    assert broker.ask(commit, 8).topics[0].partitions[0].error_code == 0
    return cluster


def places(kind: type[Any], field: str, *numbers: int | str, **fields: Any) -> list[Any]:
    return [kind(**{field: number}, **fields) for number in numbers]


LISTED = places(ListOffsetsPartition, "partition_index", 0, 1, 2, 9, 1, timestamp=-1)
BY_TIME = places(ListOffsetsPartition, "partition_index", 0, 1, 2, timestamp=5)
FETCHED = places(FetchPartition, "partition", 2, 0, 1, 9, 0, partition_max_bytes=1 << 20)
ENDED = places(OffsetForLeaderPartition, "partition", 0, 1, 9, leader_epoch=0)
DELETED = places(DeleteRecordsPartition, "partition_index", 0, 9, 2, offset=1)
MOVED = places(ReassignablePartition, "partition_index", 0, 1, 9, 1, replicas=[1])
STORED = places(OffsetCommitRequestPartition, "partition_index", 0, 9, 2, 0, committed_offset=7)
STORED_IN_TRANSACTION = places(TxnOffsetCommitRequestPartition, "partition_index", 0, 9, 2, committed_offset=7)
FORGOTTEN = places(OffsetDeleteRequestPartition, "partition_index", 0, 9, 1)
COMMITTED = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1, 2]) for name in ("a", "b", "c")]
MANY_KINDS: list[tuple[Any, int]] = [
    (ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=LISTED) for name in ("a", "b", "c")]), 7),
    (ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=BY_TIME) for name in ("a", "b", "a")]), 7),
    (OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=ENDED) for name in ("a", "c", "b")]), 4),
    (FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=name, partitions=FETCHED) for name in ("a", "b", "c", "a")]), 12),
    (FetchRequest(max_bytes=70, topics=[FetchTopic(topic=name, partitions=FETCHED) for name in ("a", "b")]), 12),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=COMMITTED) for name in ("g", "x", "g")]), 8),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "x")]), 8),
    (OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1, 2])]), 5),
    (FindCoordinatorRequest(coordinator_keys=["g", "x", "y", "g"]), 4),
    (DescribeGroupsRequest(groups=["g", "x", "g"]), 5),
    (ConsumerGroupDescribeRequest(group_ids=["g", "x"]), 0),
    (DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0, 1, 9]) for name in ("a", "c")]), 0),
    (DescribeTransactionsRequest(transactional_ids=["x", "y"]), 0),
    (DescribeTopicPartitionsRequest(topics=[describe_topic_partitions.TopicRequest(name=name) for name in ("b", "c", "a")]), 0),
    (DeleteRecordsRequest(timeout_ms=1_000, topics=[DeleteRecordsTopic(name=name, partitions=DELETED) for name in ("a", "c")]), 2),
    (DeleteGroupsRequest(groups_names=["x", "g", "x"]), 2),
    (OffsetCommitRequest(group_id="g", topics=places(OffsetCommitRequestTopic, "name", *"acba", partitions=STORED)), 9),
    (OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(topic_id=bytes(16), partitions=STORED)]), 10),
    (
        TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            topics=places(TxnOffsetCommitRequestTopic, "name", *"ac", partitions=STORED_IN_TRANSACTION),
        ),
        3,
    ),
    (OffsetDeleteRequest(group_id="g", topics=places(OffsetDeleteRequestTopic, "name", *"acba", partitions=FORGOTTEN)), 0),
    (
        CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in "xayxz"], timeout_ms=1_000
        ),
        7,
    ),
    (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=5) for name in "abxa"], timeout_ms=1_000), 3),
    (DeleteTopicsRequest(topic_names=["a", "x", "b", "x"], timeout_ms=1_000), 5),
    (IncrementalAlterConfigsRequest(resources=places(incremental.AlterConfigsResource, "resource_name", *"abxa", resource_type=2)), 1),
    (AlterConfigsRequest(resources=places(AlterConfigsResource, "resource_name", *"bx", resource_type=2)), 2),
    (
        ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequestTopicPartitions(topic=name, partitions=[0, 9, 0, 1]) for name in "abxa"], timeout_ms=1_000
        ),
        2,
    ),
    (ElectLeadersRequest(topic_partitions=None, timeout_ms=1_000), 2),
    (AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=MOVED) for name in "abx"], timeout_ms=1_000), 0),
]


@pytest.mark.parametrize(("request_", "version"), MANY_KINDS, ids=lambda value: type(value).__name__)
def test_a_request_of_each_kind_is_answered_in_turns_as_in_one_step(request_: Any, version: int) -> None:
    whole, parted = with_groups(), with_groups()
    parted[1].node.context.turns.elements, parted[1].node.context.turns.large_bytes = 1, -1
    expected = whole[1].ask(request_, version)
    parted.turning = False
    sent = parted[1].send(request_, version)
    turns = 0
    while sent.waits:
        parted[1].turn()
        turns += 1
    assert turns > 1
    assert encode(sent.answer, version) == encode(expected, version)


@pytest.mark.parametrize(("request_", "version"), MANY_KINDS, ids=lambda value: type(value).__name__)
def test_a_refused_request_leaves_nothing_to_the_garbage_collector(request_: Any, version: int) -> None:
    cluster = guarded(topics=("a", "b"))
    sent = cluster[1].send(request_, version, principal=ALICE)

    def again() -> None:
        cluster[1].send(request_, version, principal=ALICE)
        cluster[1]._sent.clear()

    assert garbage_of(again) == []
    assert sent.answer is not None


@pytest.mark.parametrize(("request_", "version"), MANY_KINDS, ids=lambda value: type(value).__name__)
def test_an_answered_request_leaves_nothing_to_the_garbage_collector(request_: Any, version: int) -> None:
    cluster = with_groups()
    broker = cluster[1]
    broker.node.context.turns.elements, broker.node.context.turns.large_bytes = 1, -1
    assert broker.send(request_, version).answer is not None
    cluster.pass_ms(10_000)

    def again() -> None:
        broker.send(request_, version)
        broker._sent.clear()

    assert garbage_of(again) == []


def test_a_limit_of_partitions_counts_those_of_a_request_once_though_some_are_created_between_its_turns() -> None:
    cluster = Cluster(settings={"ottla.partitions.max": "12"})
    broker = cluster[1]
    broker.node.context.turns.elements = 1
    topics = [CreatableTopic(name=f"t{number}", num_partitions=3, replication_factor=1) for number in range(5)]
    answer = broker.ask(CreateTopicsRequest(topics=topics, timeout_ms=1_000), 7)
    assert [topic.error_code for topic in answer.topics] == [0, 0, 0, 0, errors.PolicyViolation.code]
    more = [CreatableTopic(name="more", num_partitions=1, replication_factor=1)]
    assert broker.ask(CreateTopicsRequest(topics=more, timeout_ms=1_000), 7).topics[0].error_code == errors.PolicyViolation.code


def test_a_topic_that_is_made_again_between_the_turns_of_its_deletion_is_not_deleted() -> None:
    cluster = Cluster()
    broker = cluster.topic("a")
    create(cluster, "b", 1)
    broker.node.context.turns.elements, cluster.turning = 8, False
    sent = broker.send(DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1_000), 5)
    for _ in range(3):
        # It counts names, and looks both up.
        broker.turn()
    broker.node.context.turns.elements = 1_000
    assert broker.ask(DeleteTopicsRequest(topic_names=["b"], timeout_ms=1_000), 5).responses[0].error_code == 0
    create(cluster, "b", 1)
    while broker.turns_due:
        broker.turn()
    cluster.run()
    assert {result.name: result.error_code for result in sent.answer.responses} == {"a": 0, "b": errors.UnknownTopicOrPartition.code}
    assert "b" in broker.node.context.image.topics


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("turns", range(7))
def test_a_large_fetch_that_waits_gets_records_that_arrive_between_its_turns(turns: int, session_epoch: int) -> None:
    cluster = with_groups()
    broker = cluster[1]
    broker.node.context.turns.elements, broker.node.context.turns.large_bytes = 1, -1
    cluster.turning = False
    asked = [FetchTopic(topic=name, partitions=places(FetchPartition, "partition", 1, partition_max_bytes=1 << 20)) for name in ("b", "a")]
    waits = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, session_epoch=session_epoch, topics=asked)
    sent = broker.send(waits, 12)
    for _ in range(turns):
        if broker.turns_due:
            broker.turn()
    assert produce(broker, batch(b"late"), topic="b", partition=1).error_code == 0
    while broker.turns_due:
        broker.turn()
    assert not sent.waits
    assert [values(part.records) for topic in sent.answer.responses for part in topic.partitions if part.records] == [[b"late"]]
    if session_epoch == 0:
        cluster.turning = True
        assert produce(broker, batch(b"later"), topic="b", partition=1).error_code == 0
        more = broker.ask(FetchRequest(max_bytes=1 << 20, session_id=sent.answer.session_id, session_epoch=1), 12)
        assert [values(part.records) for topic in more.responses for part in topic.partitions] == [[b"late", b"later"]]


def test_a_session_that_is_closed_between_turns_watches_nothing() -> None:
    cluster = with_groups()
    broker = cluster[1]
    broker.node.context.turns.elements, broker.node.context.turns.large_bytes = 1, -1
    cluster.turning = False
    topics = [FetchTopic(topic="a", partitions=places(FetchPartition, "partition", 0, 1, 2, partition_max_bytes=1 << 20))]
    sent = broker.send(FetchRequest(session_epoch=0, topics=topics), 12)
    sessions = broker.node.sessions
    while not len(sessions):
        broker.turn()
    [session] = sessions._sessions.values()
    sessions.close(session)
    while sent.waits:
        broker.turn()
    assert not sessions._watching and not sessions.changes


def test_a_fetch_whose_connection_closes_between_turns_leaves_nothing() -> None:
    cluster = with_groups()
    broker = cluster[1]
    broker.node.context.turns.elements, broker.node.context.turns.large_bytes = 1, -1
    cluster.turning = False
    topics = [FetchTopic(topic="a", partitions=places(FetchPartition, "partition", 0, 1, 2, partition_max_bytes=1 << 20))]
    sent = broker.send(FetchRequest(topics=topics), 12)
    while not broker.node.sessions.changes:
        broker.turn()
    broker.hang_up(sent)
    broker.turn()
    assert not broker.node.sessions.changes and broker.turns_due == 0


def test_a_small_fetch_of_a_session_with_many_partitions_takes_turns() -> None:
    cluster = with_groups()
    broker = cluster[1]
    topics = [FetchTopic(topic="a", partitions=places(FetchPartition, "partition", 0, 1, 2, partition_max_bytes=1))]
    first = broker.ask(FetchRequest(max_bytes=1, session_epoch=0, topics=topics), 12)
    more = FetchRequest(max_bytes=1, session_id=first.session_id, session_epoch=1)
    broker.node.context.turns.elements = 2
    for number in range(3):
        assert produce(broker, batch(b"x"), topic="a", partition=number).error_code == 0
    cluster.turning = False
    sent = broker.send(more, 12)
    assert sent.waits
    while sent.waits:
        broker.turn()
    assert len([part for topic in sent.answer.responses for part in topic.partitions if part.records]) == 1


def test_flushes_of_many_partitions_begin_in_several_steps() -> None:
    cluster = Cluster()
    count = TURN_ELEMENTS + 10
    broker = cluster.topic("wide", partitions=count)
    cluster.flushing = False
    data = TopicProduceData(
        name="wide", partition_data=[PartitionProduceData(index=number, records=batch(b"x")) for number in range(count)]
    )
    steps: list[list[Any]] = []
    step = broker.node.step

    def noted(event: Any, now_ms: int) -> list[Any]:
        found = step(event, now_ms)
        steps.append([effect for effect in found if isinstance(effect, effects.Flush)])
        return found

    broker.node.step = noted  # type: ignore[method-assign]
    sent = broker.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
    begun = [[len(effect.plans) for effect in found] for found in steps if found]
    at_once = TURN_ELEMENTS // FLUSH_WEIGHT
    assert begun == [[at_once]] * FLUSH_WEIGHT + [[10]]
    broker.flush()
    assert {each.error_code for each in sent.answer.responses[0].partition_responses} == {0}


def waits_for_many(broker: Broker, count: int) -> Sent:
    """A fetch of partitions without records, and without a session."""
    asked = [FetchTopic(topic="wide", partitions=places(FetchPartition, "partition", *range(count), partition_max_bytes=1 << 20))]
    sent = broker.send(FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=asked), 12)
    assert sent.waits
    return sent


def watched(broker: Broker) -> int:
    return sum(key == ("wide", key[1]) for key in broker.node.context.delayed._waiting if isinstance(key, tuple))


@pytest.mark.parametrize("end", ["a record", "its time", "a lost connection"])
def test_a_fetch_of_many_partitions_begins_and_ends_to_wait_in_turns(end: str) -> None:
    count = 5 * TURN_ELEMENTS
    cluster = Cluster()
    broker = cluster.topic("wide", partitions=count)
    cluster.turning = False
    sent = waits_for_many(broker, count)
    seen = []
    while broker.turns_due:
        broker.turn()
        seen.append(watched(broker))
    steps = sorted(set(seen) - {0})
    assert len(steps) > 4 and steps[-1] == count, "some partitions in each turn"
    if end == "a record":
        assert produce(broker, batch(b"x"), topic="wide", partition=count - 1).error_code == 0
    elif end == "its time":
        cluster.pass_ms(600)
    else:
        broker.hang_up(sent)
    left = [watched(broker)]
    while broker.turns_due:
        broker.turn()
        left.append(watched(broker))
    assert left[-1] == 0 and len(set(left)) > 4 and not broker.node.sessions.changes
    if end != "a lost connection":
        got = [values(part.records) for part in sent.answer.responses[0].partitions if part.records]
        assert got == ([[b"x"]] if end == "a record" else [])


@pytest.mark.parametrize("turns", [0, 1, 10, 20, 25, 30])
def test_a_fetch_that_is_dropped_while_it_begins_to_wait_leaves_nothing(turns: int) -> None:
    cluster = Cluster()
    broker = cluster.topic("wide", partitions=5 * TURN_ELEMENTS)
    cluster.turning = False
    sent = waits_for_many(broker, 5 * TURN_ELEMENTS)
    for _ in range(turns):
        if broker.turns_due:
            broker.turn()
    broker.hang_up(sent)
    while broker.turns_due:
        broker.turn()
    assert watched(broker) == 0 and not broker.node.sessions.changes and broker.node.context.delayed.count == 0


def test_a_page_of_many_partitions_is_described_in_turns() -> None:
    count = 2 * TURN_ELEMENTS
    cluster = Cluster()
    broker = cluster.topic("wide", partitions=count)
    cluster.turning = False
    sent = broker.send(
        describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[describe_topic_partitions.TopicRequest(name="wide")]), 0
    )
    turned = 0
    while sent.waits:
        broker.turn()
        turned += 1
    assert turned >= 3 and [each.partition_index for each in sent.answer.topics[0].partitions] == list(range(count))
